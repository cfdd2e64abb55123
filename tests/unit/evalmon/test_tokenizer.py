"""One tokenizer file: what it adds, where its tokens lie in the text, which models it fits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from evalmon.errors import DataError
from evalmon.tokenizer import TextTokenizer
from evalmon.types import RunDescription

TEXT = "Zürich – the birds’ café 咖啡 sing, it's 2026 and   they fly\n\nhome <|endoftext|> now "
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

Make = Callable[..., TextTokenizer]


def trained(splitter: Any = None) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = splitter or pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    made.train_from_iterator([TEXT] * 4, trainer)
    return made


def saved(made: Tokenizer, path: Path) -> TextTokenizer:
    made.save(str(path))
    return TextTokenizer(path)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return saved(trained(), tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


def test_text_comes_back_with_and_without_special_tokens(tokenizer: TextTokenizer):
    ids = tokenizer.encode(TEXT)
    assert tokenizer.encode_batch([TEXT, "", "the"]) == [ids, [], tokenizer.encode("the")]
    assert tokenizer.decode(ids) == TEXT
    plain = TEXT.replace("<|endoftext|>", "")
    assert tokenizer.decode(ids, skip_special=True) == plain
    assert tokenizer.decode_batch([ids, tokenizer.encode("the")]) == [plain, "the"]


def test_a_file_that_cuts_pads_and_adds_tokens_changes_no_text(tmp_path: Path):
    made = trained()
    plain = saved(made, tmp_path / "plain.json").encode(TEXT)
    made.add_special_tokens([AddedToken("<s>", special=True)])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A <|endoftext|>",
        special_tokens=[("<s>", 320), ("<|endoftext|>", 0)],
    )
    made.enable_truncation(4)
    made.enable_padding(length=200)
    found = saved(made, tmp_path / "adding.json")
    assert found.encode(TEXT) == plain
    assert found.encode_batch([TEXT, "the"])[0] == plain
    assert (found.opening, found.vocab_size) == ((320,), 321)
    assert saved(trained(), tmp_path / "none.json").opening == ()


@settings(deadline=None, max_examples=60)
@given(text=st.text(min_size=1, max_size=40))
def test_bytes_of_tokens_are_those_of_the_text(tokenizer: TextTokenizer, text: str):
    (found,) = tokenizer.encode_spans([text])
    assert list(found.ids) == tokenizer.encode(text)
    before = found.bytes_before
    assert before[0] == 0 or not found.ids
    assert before[-1] == len(text.encode())
    assert list(before) == sorted(before)
    assert len(before) == len(found.ids) + 1


def test_a_character_of_several_tokens_counts_where_the_last_of_them_ends(tmp_path: Path):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(
        ["a"], trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False)
    )
    (found,) = saved(made, tmp_path / "bytes.json").encode_spans(["aü咖 b"])
    assert len(found.ids) == 8
    assert found.bytes_before == (0, 1, 1, 3, 3, 3, 6, 7, 8)


def test_bytes_are_counted_before_the_tokenizer_changes_the_text(tmp_path: Path):
    made = trained()
    made.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.NFKC()])
    (found,) = saved(made, tmp_path / "lower.json").encode_spans(["ﬁNE"])
    assert found.bytes_before[-1] == len("ﬁNE".encode()) == 5


@pytest.mark.parametrize(
    ("splitter", "forward"),
    [
        (pre_tokenizers.ByteLevel(add_prefix_space=False), True),
        (pre_tokenizers.ByteLevel(add_prefix_space=True), False),
        (pre_tokenizers.Metaspace(), False),
        (
            pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(CL100K), "isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            ),
            True,
        ),
        (
            pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Split(Regex(r"(?<=\s)\S|\b."), "isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            ),
            False,
        ),
    ],
)
def test_the_end_of_a_text_stands_for_it_where_nothing_looks_back(
    tmp_path: Path, splitter: Any, forward: bool
):
    found = saved(trained(splitter), tmp_path / "tokenizer.json")
    text = f"{TEXT} the quick fox sings"
    start = found.tail_start(text)
    assert (start > 0) is forward
    for more in ("", " fox", "s", "\n", "’s", " ", "<|endoftext|>"):
        whole, tail = found.encode(text + more), found.encode(text[start:] + more)
        assert whole[-len(tail) :] == tail
    assert found.tail_start("thequickfox") == 0


def test_a_model_with_too_few_ids_is_refused(tokenizer: TextTokenizer):
    tokenizer.require_fit(320, "the model")
    tokenizer.require_fit(400, "the model")
    with pytest.raises(DataError, match=r"tokenizer\.json: token '.+' has id 319, but run\.json"):
        tokenizer.require_fit(319, "run.json")


def test_a_file_that_is_missing_or_no_tokenizer_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"none\.json: the tokenizer cannot be read"):
        TextTokenizer(tmp_path / "none.json").encode("a")
    for content in (b"{}", b"\xff", json.dumps({"model": 1}).encode()):
        (tmp_path / "bad.json").write_bytes(content)
        with pytest.raises(DataError, match=r"bad\.json: not a tokenizers JSON file"):
            TextTokenizer(tmp_path / "bad.json").encode("a")


def test_a_run_without_a_tokenizer_is_refused(tmp_path: Path):
    run = RunDescription(
        name="run", path=tmp_path, adapter="a", model={}, tokenizer="", vocab_size=1, eos_id=0,
        sequence_length=2, batch_instances=1, planned_steps=1, planned_passes=1,
        source_instances=1, hosts=1, loader="l", seed=0, warmup_steps=0, recipe="", loss={},
        data="",
    )  # fmt: skip
    with pytest.raises(DataError, match=r"run\.json: names no tokenizer"):
        TextTokenizer.of_run(run)
