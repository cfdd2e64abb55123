"""A published curve beside a run: drawn as it is, only where it means the same, with its faults."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evalmon import reference, report
from evalmon.metrics import wilson_interval
from evalmon.reference_index import Entry, Source
from evalmon.reference_writing import add
from evalmon.report import figures
from evalmon.report.collect import collect
from evalmon.report.view import RunView
from evalmon.store import Store
from evalmon.types import Curve, Json, RunCurves, RunDescription, Sampling, Series
from tests import synthetic_store as synthetic

TRAIN, HOLDOUT = "train/ce_nats", synthetic.HOLDOUT
LAST = synthetic.STEPS[-1] * synthetic.TOKENS_PER_STEP


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own folder of reference curves, not there yet."""
    monkeypatch.setenv(reference.FOLDER_VARIABLE, str(tmp_path / "curves"))
    return tmp_path / "curves"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with one run, evaluated and not judged yet, that is laid beside ``published``."""
    with Store.open(tmp_path / "s.sqlite") as opened:
        register(opened, synthetic.describe(tmp_path, "clean"))
        yield opened


def register(store: Store, run: RunDescription, against: str = "published") -> None:
    """Store a run's evaluations."""
    synthetic.write_log(run)
    store.register(run, {"reference": against, "holdout": "synthetic"})
    for step in synthetic.STEPS[::5]:
        for evaluation in synthetic.evaluations(run, step)[:2]:
            store.append_evaluation(evaluation)


def curve(
    metric: str,
    tokens: "range | tuple[int, ...]",
    values: "tuple[float, ...] | None" = None,
    facts: Mapping[str, Json] | None = None,
    sampling: Sampling = Sampling.FULL,
) -> Curve:
    """Make a curve with a point every so many tokens, one step per 100 tokens."""
    at = np.array(tokens, np.int64)
    falling = 4 - np.arange(len(at)) / 64 if values is None else np.array(values)
    return Curve(Series(metric, at // 100, at, falling), facts or {}, sampling)


def publish(folder: Path, *curves: Curve, name: str = "published") -> None:
    """Add a reference with the run's holdout, and other curves."""
    holdout = curve(HOLDOUT, range(25_000, 600_001, 25_000), facts={"tokenizer": "theirs"})
    found = {item.series.metric: item for item in (holdout, *curves)}
    about = Entry(
        name, folder, {}, ("Published/X",), "Model <7B>", 7, "stage 1", "theirs",
        known_faults=("A bump at <b>step 7</b>.",),
    )  # fmt: skip
    add(RunCurves("r", "t", found), about, Source("who made it", "MIT", "2026-01-02"))


def test_a_published_curve_is_drawn_as_it_is_and_a_bit_beyond_the_run(
    folder: Path, store: Store
) -> None:
    single = range(10_000, 600_001, 10_000)
    publish(folder, curve(TRAIN, single, sampling=Sampling.THINNED))
    view = collect(store, "clean")
    assert view.notes == ()
    assert [item.run for item in (*view.train, *view.holdout)] == 2 * ["clean", "published"]
    # to the first point past 1.05 of the run's 409,600 tokens
    assert view.holdout[1].tokens == tuple(range(25_000, 450_001, 25_000))
    assert view.holdout[1].values == tuple(4 - n / 64 for n in range(18))
    assert view.train[1].tokens == tuple(range(10_000, 440_001, 10_000))
    assert [item.single_steps for item in (*view.train, *view.holdout)] == [
        False, True, False, False,
    ]  # fmt: skip
    figure = json.loads(figures.losses(view).to_json() or "")
    drawn = {trace.get("name"): trace for trace in figure["data"]}
    assert drawn["published: train, single steps"]["mode"] == "markers"
    assert drawn["published: holdout"]["line"]["color"] == "#0072B2"
    assert figure["layout"]["xaxis"]["range"] == [0, pytest.approx(1.02 * LAST)]


def test_a_full_train_loss_is_drawn_as_medians_between_its_evaluations(
    folder: Path, store: Store
) -> None:
    publish(folder, curve(TRAIN, range(5_000, 600_001, 5_000)))
    shown = collect(store, "clean").train[1]
    assert shown.tokens == tuple(range(25_000, 450_001, 25_000))
    assert shown.values[:2] == (4 - 2 / 64, 4 - 7 / 64)
    assert not shown.single_steps


def test_accuracies_are_read_at_the_runs_tokens_and_never_beyond_the_curve(
    folder: Path, store: Store
) -> None:
    facts: dict[str, Json] = {"items": 25, "split": "validation", "shots": 0}
    label = "eval/downstream/{}_0shot/acc"
    ends = (300_000, 500_000, 700_000)
    publish(
        folder,
        curve(label.format("piqa"), ends, (0.5, 0.7, 0.8), facts),
        curve(label.format("boolq"), ends, (0.5, 0.7, 0.8), {**facts, "split": "test"}),
        curve(label.format("sciq"), ends, (0.5, 0.7, 0.8), {"shots": 0}),
        curve(label.format("winogrande"), (300_000, 350_000, 400_000), (0.5, 0.7, 0.8), facts),
    )
    rows = {row.task: row for row in collect(store, "clean").tasks}
    place = math.log1p(LAST) - math.log1p(300_000)
    value = 0.5 + 0.2 * place / (math.log1p(500_000) - math.log1p(300_000))
    assert rows["piqa"].reference == wilson_interval(round(25 * value), 25)
    assert (rows["piqa"].reference_tokens, rows["piqa"].reference_items) == (LAST, 25)
    assert {task: row.note for task, row in rows.items() if row.reference is None} == {
        "boolq": "another metric identity: split differs ('validation' against 'test')",
        "sciq": f"{value:.3f}, of an unknown number of questions",
        "winogrande": "not evaluated at these tokens",
        "arc_easy": "not in the reference",
        "arc_challenge": "not in the reference",
        "hellaswag": "not in the reference",
        "openbookqa": "not in the reference",
    }


def test_a_curve_of_another_meaning_is_not_drawn_and_what_differs_is_said(
    folder: Path, store: Store
) -> None:
    publish(
        folder,
        curve(HOLDOUT, range(25_000, 600_001, 25_000), facts={"split": "test"}),
        curve(TRAIN, range(5_000, 600_001, 5_000)),
    )
    view = collect(store, "clean")
    assert [item.run for item in view.holdout] == ["clean"]
    assert [item.run for item in view.train] == ["clean", "published"]
    assert view.notes == (f"The reference's {HOLDOUT} is not drawn: it does not mean the same.",)
    assert view.published is not None
    assert view.published.differences == (
        f"{HOLDOUT} differs from published's in 'split': 'validation' against 'test'",
    )


def test_an_offset_of_known_size_is_drawn_and_said(
    folder: Path, store: Store, tmp_path: Path
) -> None:
    publish(folder, curve(TRAIN, range(5_000, 600_001, 5_000), facts={"z_loss": "excluded"}))
    run = replace(synthetic.describe(tmp_path, "other"), loss={"z_loss_included": True})
    register(store, run)
    view = collect(store, "other")
    assert [item.run for item in view.train] == ["other", "published"]
    assert view.published is not None
    (said,) = view.published.differences
    assert "an offset of about 0.001 nats" in said
    assert view.published.one_sided == (f"{HOLDOUT}: tokenizer theirs",)


def test_a_curve_of_other_tokens_is_not_drawn(folder: Path, store: Store) -> None:
    publish(folder, curve(TRAIN, range(800_000, 900_001, 5_000), sampling=Sampling.THINNED))
    view = collect(store, "clean")
    assert [item.run for item in view.train] == ["clean"]
    (note,) = view.notes
    assert note == (
        f"The reference's {TRAIN} is not drawn: it reaches over other tokens (800,000 to 900,000) "
        "than the run (0 to 409,600)."
    )


def test_what_is_missing_or_broken_is_named_and_the_run_still_shown(
    folder: Path, store: Store
) -> None:
    unknown = collect(store, "clean")
    assert unknown.published is None
    assert unknown.notes[0].startswith(
        "The reference published is neither a run of this store nor a reference curve"
    )
    publish(folder)
    assert collect(store, "clean").notes == (
        f"The reference published has no {TRAIN}: it is not drawn.",
    )
    with reference.find("published").curves[HOLDOUT].file.open("a") as file:
        file.write("1,2,3\n")
    broken = collect(store, "clean")
    assert [item.run for item in broken.holdout] == ["clean"]
    assert "SHA-256" in broken.notes[0]


def test_a_run_of_the_store_goes_before_a_curve_of_its_name(
    folder: Path, store: Store, tmp_path: Path
) -> None:
    publish(folder)
    register(store, synthetic.describe(tmp_path, "published"), against="")
    view = collect(store, "clean")
    assert view.published is None
    assert view.holdout[1].tokens == view.holdout[0].tokens


def test_text_markdown_and_page_tell_source_licence_and_faults(folder: Path, store: Store) -> None:
    publish(folder, curve(TRAIN, range(10_000, 600_001, 10_000), sampling=Sampling.THINNED))
    view: RunView = collect(store, "clean")
    assert (
        "Reference published\n"
        "  - model: Model <7B>, stage 1\n"
        "  - tokenizer: theirs\n"
        "  - train/ce_nats: 60 points, thinned\n"
        f"  - {HOLDOUT}: 24 points, full\n"
        "  - source: who made it; licence MIT; taken on 2026-01-02\n"
        f"  - stated by the reference alone: {HOLDOUT}: tokenizer theirs\n"
        "  - known fault: A bump at <b>step 7</b>.\n"
    ) in report.text(view)
    assert "- known fault: A bump at \\<b\\>step 7\\</b\\>." in report.markdown(view)
    page = report.html(view)
    assert "A bump at &lt;b&gt;step 7&lt;/b&gt;." in page
    assert "who made it; licence MIT; taken on 2026-01-02" in page


def test_an_alias_is_named_as_the_reference_it_stands_for(
    folder: Path, store: Store, tmp_path: Path
) -> None:
    publish(folder)
    register(store, synthetic.describe(tmp_path, "other"), against="published/x")
    view = collect(store, "other")
    assert [item.run for item in view.holdout] == ["other", "published"]
    assert view.published is not None
    assert view.published.name == "published"
