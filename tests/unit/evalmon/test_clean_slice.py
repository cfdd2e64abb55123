"""A holdout without its leaked documents, and the report that names them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon import bands, leakage, overlap_reports
from evalmon.bands import WindowComparison
from evalmon.clean_slice import CleanSlice, without_leaked
from evalmon.errors import DataError
from evalmon.types import (
    DocumentOverlap,
    LeakageReport,
    OverlapMeasure,
    Score,
    Series,
    TrainingDocument,
)
from tests.synthetic_store import identity

METRIC = "eval/lm/mine-validation/ce_nats"
IDS = tuple(f"d{n}" for n in range(10))
COPIES = ("d8", "d9")
PRINT = "0123456789abcdef"


def found(name: str, share: float = 0.93, *, exact: bool = False) -> DocumentOverlap:
    source = TrainingDocument(round(100 * share), exact, "web.npy", 3, "web")
    return DocumentOverlap(name, exact, 100, round(100 * share), (source,))


def report(*overlaps: DocumentOverlap) -> LeakageReport:
    return LeakageReport("tiny", "mine", PRINT, OverlapMeasure(), 10, 0, 50, 5_000, overlaps)


def score(values: dict[str, float], weights: dict[str, float] | None = None) -> Score:
    """Return a score that keeps its documents."""
    ids = tuple(values)
    sizes = [1.0 if weights is None else weights[name] for name in ids]
    pooled = float(np.average(list(values.values()), weights=sizes))
    return Score(
        METRIC, pooled, 0.01, len(ids), replace(identity("mine", "ce_nats"), data=PRINT),
        ids, tuple(values.values()), () if weights is None else tuple(sizes),
    )  # fmt: skip


def losses(copies: float, rest: float = 2.70) -> dict[str, float]:
    return {name: copies if name in COPIES else rest for name in IDS}


def sliced(scores: dict[int, Score], held: LeakageReport) -> CleanSlice:
    steps = np.array(sorted(scores))
    whole = Series(METRIC, steps, steps * 10, np.array([scores[n].value for n in steps.tolist()]))
    return without_leaked(whole, scores, held, "runs.sqlite")


LEAKED = report(
    found("d8"), found("d9", 1.0, exact=True), *(found(f"d{n}", 0.2) for n in (1, 2, 3))
)


def test_what_looks_matched_is_not_without_the_copies() -> None:
    """F34: the copies fall from 2.70 to 2.30, the others stay, train loss falls by 0.08."""
    both = sliced({100: score(losses(2.70)), 200: score(losses(2.30))}, LEAKED)
    assert both.whole.values == pytest.approx([2.70, 2.62])
    assert both.clean.values == pytest.approx([2.70, 2.70])
    assert (both.clean.metric, both.clean.tokens.tolist()) == (METRIC, [1000, 2000])
    train = Series("train/ce_nats", both.whole.steps, both.whole.tokens, np.array([2.50, 2.42]))
    matched = bands.compare_window(train, both.whole, 0, 1)
    assert matched.shortfall_nats == pytest.approx(0.0, abs=1e-12)
    assert not bands.unmatched(matched)
    clean: WindowComparison = bands.compare_window(train, both.clean, 0, 1)
    assert clean.holdout_gain_nats == pytest.approx(0.0, abs=1e-12)
    assert clean.shortfall_nats == pytest.approx(0.08)
    assert bands.unmatched(clean)


def test_exactly_the_leaked_are_named_with_match_and_share() -> None:
    both = sliced({100: score(losses(2.70))}, LEAKED)
    assert both.reason == (
        "holdout contaminated: 2 of 10 documents are in the training text (d9 whole, d8 share "
        "0.93); judged on the other 8"
    )
    assert both.evidence == [
        {"id": "d9", "share": 1.0, "exact": True, "ngrams": 100, "found": 100},
        {"id": "d8", "share": 0.93, "exact": False, "ngrams": 100, "found": 93},
    ]


def test_documents_count_by_their_tokens() -> None:
    weights = {name: float(n + 1) for n, name in enumerate(IDS)}
    values = {name: 2.0 + n / 10 for n, name in enumerate(IDS)}
    (got,) = sliced({5: score(values, weights)}, LEAKED).clean.values
    nats = sum(values[name] * weights[name] for name in IDS[:8])
    assert got == pytest.approx(nats / sum(range(1, 9)))


def test_documents_are_found_by_their_ids_in_any_order() -> None:
    turned = dict(reversed(losses(2.30).items()))
    both = sliced({1: score(losses(2.30)), 2: score(turned)}, LEAKED)
    assert both.clean.values == pytest.approx([2.70, 2.70])


@pytest.mark.parametrize(
    ("scores", "held", "said"),
    [
        (
            {1: score(losses(2.7)), 2: replace(score(losses(2.7)), item_ids=())},
            LEAKED,
            r"runs\.sqlite: .*keeps no value a document at step 2; evaluate these checkpoints",
        ),
        (
            {1: score({"other": 2.7, "d8": 2.7})},
            LEAKED,
            r"at step 1: document 'd9' of the report was not scored \(1 of 2\); run `evalmon audit",
        ),
        (
            {1: score(losses(2.7))},
            replace(LEAKED, fingerprint="f" * 16),
            f"a holdout of fingerprint {PRINT}, the report of mine with {'f' * 16}; run `evalmon",
        ),
        (
            {1: score(losses(2.7))},
            report(*(found(name) for name in IDS)),
            "all 10 documents are in the training text, none is left",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_refused(
    scores: dict[int, Score], held: LeakageReport, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        sliced(scores, held)


def test_a_checkpoint_without_a_score_is_named() -> None:
    whole = Series(METRIC, np.array([1, 2]), np.array([10, 20]), np.array([3.0, 2.9]))
    with pytest.raises(DataError, match="no value a document at step 2"):
        without_leaked(whole, {1: score(losses(2.7))}, LEAKED, "runs.sqlite")


# The report as the command printed it.


def test_a_report_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(f"some log line\n{json.dumps(leakage.record(LEAKED))}\n\n")
    assert overlap_reports.read(path) == LEAKED


RECORD = leakage.record(LEAKED)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n", "empty; keep what `evalmon audit leakage RUN --holdout FILE --json` prints"),
        ("sound: no document leaked\n", "line 1: no JSON"),
        ("[]\n", "line 1: no report of holdout leakage"),
        (json.dumps({**RECORD, "holdout": 3}), "3 is no name"),
        (json.dumps({key: RECORD[key] for key in RECORD if key != "overlaps"}), "'overlaps'"),
        (json.dumps({**RECORD, "overlaps": [{"id": "a"}]}), "'exact'"),
        (json.dumps({**RECORD, "overlaps": 7}), "no report of holdout leakage"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, text: str, said: Any) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(DataError) as error:
        overlap_reports.read(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)


def test_a_report_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.json: cannot be read"):
        overlap_reports.read(tmp_path / "absent.json")
