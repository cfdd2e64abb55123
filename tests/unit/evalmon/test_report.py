"""What a report says is what the store holds, and nothing is loaded to read it."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from evalmon import report
from evalmon.errors import StoreError
from evalmon.report.collect import OVERDUE_SECONDS, collect
from evalmon.report.view import Marker, RunView
from evalmon.report.wording import headline, tiles
from evalmon.store import Store
from evalmon.types import CheckpointRef, Failure, Verdict, VerdictName
from tests import synthetic_store as synthetic


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Return a store with both synthetic runs, opened read-only."""
    path = synthetic.build(tmp_path_factory.mktemp("report"))
    with Store.open(path, read_only=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def view(store: Store) -> RunView:
    """Return the view of the faulty run."""
    return collect(store, "double-sharded", clock=lambda: synthetic.NOW)


def small_view(verdict: Verdict | None = None) -> RunView:
    """Return a view with little in it."""
    run = synthetic.describe(Path("runs"), "tiny")
    return RunView(
        run=run,
        reference=None,
        step=None,
        tokens=None,
        progress=None,
        verdict=verdict,
        train=(),
        holdout=(),
        holdout_name="",
        unmatched=None,
        markers=(),
        tasks=(),
        probes=(),
        alerts=(),
        deliveries=(),
        stuck=frozenset(),
        failures=(),
        identities=(),
        commands=("evalmon report runs/tiny",),
    )


def test_a_view_holds_run_and_reference_at_equal_tokens(view: RunView) -> None:
    tokens = tuple(step * synthetic.TOKENS_PER_STEP for step in synthetic.STEPS)
    assert [curve.run for curve in view.train] == ["double-sharded", "clean"]
    assert [curve.tokens for curve in view.holdout] == [tokens, tokens]
    assert [curve.tokens for curve in view.train] == [tokens[1:], tokens[1:]]
    assert view.holdout_name == synthetic.HOLDOUT
    own, other = view.holdout
    assert own.values == other.values == tuple(map(synthetic.holdout_nats, synthetic.STEPS))


def test_train_loss_is_the_median_of_the_steps_since_the_last_evaluation(view: RunView) -> None:
    middle = [synthetic.train_nats("double-sharded", step) for step in (195, 196)]
    assert view.train[0].values[-1] == pytest.approx(sum(middle) / 2, abs=1e-12)


def test_the_supported_band_is_train_loss_plus_unmatched_drop_within_tolerance(
    view: RunView,
) -> None:
    trace = view.unmatched
    assert trace is not None
    level = view.train[0].values[-1]
    assert level is not None
    assert trace.unmatched_nats[-1] == 1.0
    assert trace.supported_low_nats[-1] == pytest.approx(level + 1.0 - 0.3, abs=1e-12)
    assert trace.supported_high_nats[-1] == pytest.approx(level + 1.0 + 0.3, abs=1e-12)
    assert trace.supported_low_nats[0] is None  # no train step precedes the untrained model


def test_markers_stand_where_the_verdict_says(view: RunView) -> None:
    assert view.markers == (
        Marker("first repeat", 26 * 2048, 0.13),
        Marker("onset", 60 * 2048, 0.3),
        Marker("alarm", 90 * 2048, 0.45),
    )


def test_tasks_carry_wilson_intervals_of_run_and_reference(view: RunView) -> None:
    assert [row.task for row in view.tasks] == sorted(synthetic.TASKS)
    row = next(row for row in view.tasks if row.task == "boolq")
    assert (row.items, row.chance, row.reference_tokens) == (25, 0.5, view.tokens)
    assert row.run.value == 8 / 25
    assert (round(row.run.low, 3), round(row.run.high, 3)) == (0.172, 0.516)
    assert row.reference == row.run


def test_an_accuracy_of_zero_is_not_certain(tmp_path: Path) -> None:
    run = synthetic.describe(tmp_path, "clean")
    synthetic.write_log(run, 10)
    with Store.open(tmp_path / "s.sqlite") as store:
        store.register(run)
        loss, tasks, _ = synthetic.evaluations(run, 10)
        none_right = replace(tasks.scores[0], value=0.0, stderr=0.0)
        store.append_evaluation(loss)
        store.append_evaluation(replace(tasks, scores=(none_right,)))
        row = collect(store, "clean").tasks[0]
    assert row.run.value == 0.0
    assert round(row.run.high, 4) == 0.1332


def test_a_checkpoint_without_a_holdout_score_is_a_gap(tmp_path: Path) -> None:
    run = synthetic.describe(tmp_path, "clean")
    synthetic.write_log(run, 40)
    with Store.open(tmp_path / "s.sqlite") as store:
        store.register(run)
        for step in (10, 20, 30, 40):
            loss = synthetic.evaluations(run, step)[0]
            if step == 30:
                store.append_failure(Failure("holdout_loss", loss.checkpoint, "E", "why"), "1")
            else:
                store.append_evaluation(loss)
        shown = collect(store, "clean")
    assert [value is None for value in shown.holdout[0].values] == [False, False, True, False]
    assert [value is None for value in shown.train[0].values] == [False, False, True, False]
    assert [item.failure.message for item in shown.failures] == ["why"]


def test_a_failure_that_succeeded_later_is_not_shown(tmp_path: Path) -> None:
    run = synthetic.describe(tmp_path, "clean")
    synthetic.write_log(run, 10)
    with Store.open(tmp_path / "s.sqlite") as store:
        store.register(run)
        loss = synthetic.evaluations(run, 10)[0]
        store.append_failure(Failure("holdout_loss", loss.checkpoint, "E", "why"), "1")
        store.append_evaluation(loss)
        assert collect(store, "clean").failures == ()


def test_a_reference_with_another_metric_identity_is_not_drawn(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.sqlite") as store:
        for name in ("clean", "other"):
            run = synthetic.describe(tmp_path, name)
            synthetic.write_log(run, 10)
            store.register(run, {"reference": "clean" if name == "other" else ""})
            loss, tasks, _ = synthetic.evaluations(run, 10)
            if name == "other":
                score = loss.scores[0]
                loss = replace(
                    loss, scores=(replace(score, identity=replace(score.identity, item_limit=9)),)
                )
            store.append_evaluation(loss)
            store.append_evaluation(tasks)
        shown = collect(store, "other")
    assert [curve.run for curve in (*shown.train, *shown.holdout)] == ["other", "other"]
    assert all(row.reference is None for row in shown.tasks)
    assert "differs in 'item_limit': 9 against 25." in shown.notes[0]


def test_a_run_whose_directory_is_gone_is_still_reported(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.sqlite") as store:
        for name in ("clean", "double-sharded"):
            run = synthetic.describe(tmp_path, name)
            store.register(run)
            synthetic.add(store, run, 200)
            if name == "clean":
                synthetic.write_log(run)
        shown = collect(store, "double-sharded")
    assert [curve.run for curve in shown.train] == ["clean"]
    assert shown.verdict is not None
    assert len(shown.notes) == 1
    assert str(tmp_path / "double-sharded" / "log.jsonl") in shown.notes[0]


def test_an_unknown_run_is_named_with_those_there_are(store: Store) -> None:
    with pytest.raises(StoreError, match=r"no run 'nope'; it holds \['clean', 'double-sharded'\]"):
        collect(store, "nope")


@pytest.mark.parametrize(
    ("status", "age", "stuck"),
    [
        ("delivered", 10 * OVERDUE_SECONDS, False),
        ("pending", OVERDUE_SECONDS, False),
        ("pending", OVERDUE_SECONDS + 1, True),
        ("dead", 0.0, True),
    ],
)
def test_a_delivery_is_stuck_when_given_up_or_overdue(
    tmp_path: Path, status: str, age: float, stuck: bool
) -> None:
    run = synthetic.describe(tmp_path, "double-sharded")
    synthetic.write_log(run, 100)
    with Store.open(tmp_path / "s.sqlite", clock=lambda: synthetic.NOW) as store:
        store.register(run)
        synthetic.add(store, run, 100)
        store.append_attempt([store.alerts()[0].id], "console", status, "refused")
        shown = collect(store, "double-sharded", clock=lambda: synthetic.NOW + age)
    assert bool(shown.stuck) is stuck


def test_the_text_of_a_run_not_judged_yet() -> None:
    assert report.text(small_view()) == (
        "tiny: not judged yet\n"
        "tiny has not been judged yet.\n"
        "\n"
        "  First repeat    none (no id log to tell from)\n"
        "  Onset           none (no change point)\n"
        "  First alarm     none (the curve rule is silent)\n"
        "  Unmatched drop  — (no tolerance yet)\n"
        "\n"
        "Reproduce\n"
        "  evalmon report runs/tiny"
    )


def test_the_text_of_a_judged_run(view: RunView) -> None:
    shown = replace(view, tasks=view.tasks[:2], commands=("evalmon report runs/double-sharded",))
    assert report.text(shown) == (
        "double-sharded: memorization_confirmed "
        "(against clean, profile short, step 200, 410k tokens)\n"
        "double-sharded is memorizing: train loss fell 1.000 nats per token further than holdout "
        "loss, and data fingerprints show unplanned repeats since 53.2k tokens.\n"
        "\n"
        "  First repeat      53.2k tokens (87.5 % of draws repeat)\n"
        "  Onset             123k tokens (from the loss curves alone)\n"
        "  First alarm       184k tokens (level channel, 45.0 % of the plan)\n"
        "  Unmatched drop    1.000 nats (tolerance 0.300, 95 % interval 0.940 to 1.060)\n"
        "  Train gap         −1.000 nats\n"
        "  Holdout gap       +0.000 nats\n"
        "  Matched           0.0 % of the train drop\n"
        "  Basis             train and holdout\n"
        "  Fresh minus seen  +0.900 nats (+0.880 to +0.920)\n"
        "\n"
        "Why\n"
        "  - Train loss fell 1.00 nats further than holdout loss.\n"
        "  - 87.5 % of the instances drawn had been drawn before; one pass was planned.\n"
        "\n"
        "Tasks at 410k tokens, 95 % Wilson intervals\n"
        "  task   metric  questions  double-sharded       clean\n"
        "  ARC-C  acc     25         0.560 (0.371–0.733)  0.560 (0.371–0.733)\n"
        "  ARC-E  acc     25         0.440 (0.267–0.629)  0.440 (0.267–0.629)\n"
        "\n"
        "Alerts\n"
        "  - open since 184k tokens: double-sharded: train loss falls and holdout loss does not "
        "follow (step 90, 184,320 tokens); console: delivered\n"
        "\n"
        "Evaluator\n"
        "  - self-check: not run at step 200\n"
        "\n"
        "Reproduce\n"
        "  evalmon report runs/double-sharded"
    )


@pytest.mark.parametrize("name", VerdictName)
def test_every_verdict_has_a_sentence(view: RunView, name: VerdictName) -> None:
    assert view.verdict is not None
    sentence = headline(replace(view, verdict=replace(view.verdict, verdict=name)))
    assert "double-sharded" in sentence
    assert sentence.endswith(".")
    assert not re.search(r"[{}]|None", sentence)


def test_a_healthy_verdict_states_its_tolerance(store: Store) -> None:
    sentence = headline(collect(store, "clean"))
    assert sentence == (
        "clean is healthy: its holdout loss follows its train loss within ±0.300 nats per token."
    )


def test_no_repeat_and_no_id_log_are_told_apart(view: RunView) -> None:
    assert view.verdict is not None
    unknown = replace(view.verdict, first_repeat_tokens=None, repeated_fraction=None)
    none = replace(unknown, repeated_fraction=0.0)
    notes = [
        tiles(replace(view, verdict=verdict, markers=()))[0].note for verdict in (unknown, none)
    ]
    assert notes == ["no id log to tell from", "no unplanned repeat"]


def test_markdown_keeps_names_from_becoming_markup(view: RunView) -> None:
    shown = replace(view, run=replace(view.run, name="a_b*c|d"))
    assert report.markdown(shown).startswith("## a\\_b\\*c\\|d: ▲ Memorization confirmed\n")


class _Reader(HTMLParser):
    """Collects what a page loads, its visible words and its inline scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        for name, value in attrs:
            if name in {"src", "href", "srcset", "data", "action"} and value:
                self.loads.append(value)

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.words.append(data)


def read_page(text: str) -> _Reader:
    """Parse a page."""
    reader = _Reader()
    reader.feed(text)
    return reader


def test_the_page_loads_nothing_and_forbids_loading(view: RunView) -> None:
    page = report.html(view)
    reader = read_page(page)
    assert [load for load in reader.loads if not load.startswith("#")] == ["data:,"]
    assert "default-src 'none'" in page
    library = max(reader.scripts, key=len)
    rest = page.replace(library, "")
    assert not re.search(r"https?://|//cdn", rest)
    assert not re.search(r"@import|url\(", rest)


def test_the_pages_figures_are_strict_json(view: RunView) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    calls = [
        script for script in read_page(report.html(view)).scripts if "Plotly.newPlot(" in script
    ]
    assert len(calls) == 4  # losses, unmatched drop, probe, tasks
    for call in calls:
        start = call.index("[{", call.index("Plotly.newPlot("))
        traces, _ = json.JSONDecoder(parse_constant=refuse).raw_decode(call[start:])
        assert traces


def test_the_page_tells_the_story(view: RunView) -> None:
    words = " ".join(read_page(report.html(view)).words)
    for expected in (
        "▲ Memorization confirmed",
        "double-sharded is memorizing",
        "53.2k",
        "Loss at equal tokens",
        "data were sharded twice",
        "Seen-against-fresh probe",
        "0.560 (0.371–0.733)",
        "console: delivered",
        synthetic.HOLDOUT,
        "evalmon report",
    ):
        assert expected in words


def test_a_name_cannot_break_out_of_the_page(view: RunView) -> None:
    name = "</script><script>alert(1)</script>"
    curves = tuple(replace(curve, run=name) for curve in view.train)
    page = report.html(replace(view, run=replace(view.run, name=name), train=curves))
    assert "alert(1)</script>" not in page


def test_several_runs_share_one_script(store: Store) -> None:
    views = [collect(store, name) for name in store.runs()]
    one, two = report.html(views[0]), report.html_page(views, "Two runs")
    assert len(two) - len(one) < 200_000 < len(one)
    links = [load for load in read_page(two).loads if load.startswith("#")]
    assert links == ["#run-0", "#run-1"]


def test_failures_and_missing_parts_are_shown(view: RunView) -> None:
    run = view.run
    with Store.open("sqlite://") as store:
        store.register(run)
        ref = CheckpointRef(run.name, 40, 81_920, run.path / "checkpoints" / "40")
        for _ in range(2):
            store.append_failure(Failure("downstream_tasks", ref, "EvaluationError", "no items"))
        failures = store.failures(run.name)[-1:]
    shown = replace(small_view(), failures=failures, notes=("The train loss is not drawn.",))
    assert (
        "Failures\n  - step 40, downstream_tasks, 2 tries: EvaluationError: no items"
        in report.text(shown)
    )
    words = read_page(report.html(shown)).words
    assert {"no items", "The train loss is not drawn."} <= set(words)
