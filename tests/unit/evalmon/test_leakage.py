"""Leakage: whole documents and n-grams of words, against a slow independent count."""

import gzip
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from evalmon import leakage
from evalmon.cli import main
from evalmon.errors import ConfigError, DataError
from evalmon.holdout import Holdout
from evalmon.types import Document, OverlapMeasure, RunDescription

EOS = 256
WORDS = [f"word{n}" for n in range(400)]


def text(*words: int) -> str:
    return " ".join(WORDS[n] for n in words)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """One token a byte, and one that ends documents."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({c: n for n, c in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|endoftext|>"])
    assert made.token_to_id("<|endoftext|>") == EOS
    return made


def train_on(
    path: Path,
    tokenizer: Tokenizer,
    files: Mapping[str, Sequence[str]],
    changes: dict[str, Any] | None = None,
) -> RunDescription:
    """Write a run whose token folder holds these documents; ``changes`` are of its index."""
    folder = path / "data"
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    named: list[dict[str, Any]] = []
    for label, documents in files.items():
        ids = [i for item in documents for i in [*tokenizer.encode(item).ids, EOS]]
        np.array(ids, "<u4").tofile(folder / f"{label}.npy")
        named.append({"path": f"{label}.npy", "label": label, "n_tokens": len(ids)})
    index = {"eos_id": EOS, "tokenizer": "tokenizer.json", "files": named, **(changes or {})}
    (folder / "index.json").write_text(json.dumps({"format": 2, **index}))
    run = RunDescription(
        name="tiny", path=path, adapter="none", model={}, tokenizer="data/tokenizer.json",
        vocab_size=300, eos_id=EOS, sequence_length=16, batch_instances=4, planned_steps=10,
        planned_passes=1, source_instances=40, hosts=1, loader="batch_strided", seed=0,
        warmup_steps=0, recipe="r", loss={}, data="data",
    )  # fmt: skip
    run.save()
    return run


def held(*texts: str) -> Holdout:
    return Holdout("mine", tuple(Document(f"d{n}", item) for n, item in enumerate(texts)))


def test_a_document_that_is_there_whole_is_found_with_its_place(
    tmp_path: Path, tokenizer: Tokenizer
):
    leaked = text(*range(30))
    files = {"web": [text(*range(100, 130)), leaked.upper().replace(" ", "\n\t")], "books": ["x"]}
    report = leakage.overlap(
        train_on(tmp_path, tokenizer, files), held(text(*range(200, 240)), leaked)
    )
    (item,) = report.overlaps
    assert (item.id, item.exact, item.share, item.ngrams) == ("d1", True, 1.0, 18)
    (source,) = item.sources
    assert (source.file, source.document, source.label) == ("web.npy", 2, "web")
    assert (source.exact, source.ngrams) == (True, 18)
    assert (report.documents, report.training_documents, report.exact) == (2, 3, 1)
    assert report.finding is not None
    assert (report.finding.kind, report.finding.run) == ("leakage", "tiny")
    assert report.finding.evidence["leaked"] == [item.record()]


def test_shares_are_those_of_a_slow_count(tmp_path: Path, tokenizer: Tokenizer):
    """Documents that share pieces of all lengths, over two files, with n = 5."""
    rng = np.random.default_rng(3)
    pieces = [rng.integers(0, 60, rng.integers(3, 30)).tolist() for _ in range(80)]

    def some() -> str:
        return text(*(n for k in rng.integers(0, 80, 4) for n in pieces[k]))

    files = {name: [some() for _ in range(300)] for name in ("a", "b")}
    held_out = held(*(some() for _ in range(40)), text(*range(300, 330)), text(1, 2))
    report = leakage.overlap(
        train_on(tmp_path, tokenizer, files), held_out, OverlapMeasure(5, minimum=3, share=0.9)
    )

    def grams(item: str) -> set[tuple[str, ...]]:
        words = re.findall(r"\w+", item.casefold())
        return {tuple(words[k : k + 5]) for k in range(len(words) - 4)}

    training = [
        (name, k, grams(t)) for name, texts in files.items() for k, t in enumerate(texts, 1)
    ]
    every = set[tuple[str, ...]]().union(*(found for _, _, found in training))
    expected: dict[str, tuple[int, int]] = {}
    for item in held_out.documents:
        own = grams(item.text)
        sharing = [(len(own & found), name, k) for name, k, found in training]
        if max(count for count, _, _ in sharing) >= 3:
            expected[item.id] = (len(own), len(own & every))
    assert {i.id: (i.ngrams, i.found) for i in report.overlaps} == expected
    assert 30 < len(expected) <= 40
    assert report.short == 1
    assert [item.share for item in report.leaked] == sorted(
        (found / own for own, found in expected.values() if found >= 0.9 * own), reverse=True
    )
    counts = {(f"{name}.npy", k): found for name, k, found in training}
    for item in report.overlaps:
        own = grams(next(d.text for d in held_out.documents if d.id == item.id))
        best = sorted((len(own & found) for found in counts.values()), reverse=True)[:5]
        shown = [source.ngrams for source in item.sources]
        assert shown == [count for count in best if count >= 3]
        for source in item.sources:
            assert source.ngrams == len(own & counts[source.file, source.document])


def test_case_and_punctuation_do_not_hide_an_n_gram(tmp_path: Path, tokenizer: Tokenizer):
    files = {"web": ["The QUICK (brown) fox — jumps, over; a lazy dog!"]}
    report = leakage.overlap(
        train_on(tmp_path, tokenizer, files),
        held("once the quick brown fox jumps over a lazy dog again"),
        OverlapMeasure(9),
    )
    (item,) = report.overlaps
    assert (item.ngrams, item.found, item.exact) == (3, 1, False)


def test_text_that_shares_nothing_is_sound(tmp_path: Path, tokenizer: Tokenizer):
    run = train_on(tmp_path, tokenizer, {"web": [text(*range(50))]})
    report = leakage.overlap(run, held(text(*range(100, 150)), text(*range(49, 100))))
    assert (report.overlaps, report.finding, report.leaked) == ((), None, ())


def test_documents_shorter_than_an_n_gram_are_looked_for_whole(
    tmp_path: Path, tokenizer: Tokenizer
):
    run = train_on(tmp_path, tokenizer, {"web": [text(1, 2, 3)]})
    report = leakage.overlap(run, held(text(1, 2, 3), text(1, 2)))
    assert [(item.id, item.share, item.ngrams) for item in report.overlaps] == [("d0", 1.0, 0)]
    assert (report.short, report.exact) == (2, 1)


def test_documents_are_numbered_by_their_ends_and_empty_ones_are_none(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(leakage, "_PIECE", 7)
    monkeypatch.setattr(leakage, "_BATCH", 2)
    first, last = text(*range(20)), text(*range(40, 60))
    run = train_on(tmp_path, tokenizer, {"web": [first, "", "x", "y", "", last]})
    path = tmp_path / "data/web.npy"
    cut = np.fromfile(path, "<u4")[:-1]  # the last document has no end
    cut.tofile(path)
    index = tmp_path / "data/index.json"
    index.write_text(index.read_text().replace(str(len(cut) + 1), str(len(cut))))
    report = leakage.overlap(run, held(last, first))
    assert {item.id: item.sources[0].document for item in report.overlaps} == {"d0": 6, "d1": 1}
    assert report.training_documents == 4


def test_the_runs_tokenizer_stands_in_where_the_folder_names_none(
    tmp_path: Path, tokenizer: Tokenizer
):
    run = train_on(tmp_path, tokenizer, {"web": [text(*range(20))]}, {"tokenizer": ""})
    assert leakage.overlap(run, held(text(*range(20)))).exact == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer": "absent.json"}, r"absent\.json: the tokenizer cannot be read"),
        ({"files": [{"path": "s3://b/a", "label": "a", "n_tokens": 1}]}, "'s3://b/a' is a URL"),
        ({"files": [{"path": "a", "label": "a", "n_tokens": 1}]}, "not the 1 uint32 tokens"),
    ],
)
def test_a_folder_that_cannot_be_read_as_text_is_refused(
    tmp_path: Path, tokenizer: Tokenizer, changes: dict[str, Any], said: str
):
    run = train_on(tmp_path, tokenizer, {"web": ["x"]}, changes)
    with pytest.raises(DataError, match=said):
        leakage.overlap(run, held(text(1)))


def test_neither_a_file_nor_a_known_holdout_is_refused():
    with pytest.raises(ConfigError, match="--holdout 'c4_de': no such file"):
        leakage.find_holdout("c4_de")


# The command.


def command(run: RunDescription, holdout: Path, *options: str) -> Result:
    arguments = ["audit", "leakage", str(run.path), "--holdout", str(holdout), *options]
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize(
    ("options", "code"),
    [((), 1), (("--share", "0.85"), 0), (("--ngram", "3", "--share", "0.85"), 1)],
)
def test_the_command_ends_with_one_from_the_share_that_counts(
    tmp_path: Path, tokenizer: Tokenizer, options: tuple[str, ...], code: int
):
    """22 words, of which training text holds the first 20 in a row."""
    run = train_on(tmp_path / "run", tokenizer, {"web": [text(*range(40), 99)]})
    words = [*range(20), 390, 391]
    path = tmp_path / "holdout.jsonl.gz"
    rows = [{"text": text(*words), "id": "near"}, {"text": text(*range(200, 230)), "id": "far"}]
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    done = command(run, path, "--json", *options)
    assert done.exit_code == code, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    # 10 13-grams, 8 of them within the first 20; 20 3-grams, 18 within.
    grams = (20, 18) if "--ngram" in options else (10, 8)
    (item,) = found["overlaps"]
    assert (item["id"], item["ngrams"], item["found"], item["exact"]) == ("near", *grams, False)
    assert (found["documents"], found["overlapping"], found["exact"]) == (2, 1, 0)
    assert (found["sound"], found["leaked"]) == (code == 0, code)
    assert found["holdout"] == "holdout"
    assert "training text: 1 documents" in done.stderr
