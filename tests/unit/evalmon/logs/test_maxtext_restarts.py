"""MaxText's standard output of several hosts, through restarts, among unrelated lines."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evalmon.errors import DataError
from evalmon.logs import maxtext
from tests.unit.evalmon.logs.maxtext_lines import C4, LOADER, TRAIN, pod, points, read, step
from tests.unit.evalmon.logs.maxtext_log import Shape, write_case, write_log


def test_the_last_step_unequal_weights_nan_and_a_resumed_run_of_two_hosts(tmp_path: Path):
    first = [(0, 3.0, 90), (1, "nan", 95), (2, 2.0, 100), (3, 9.0, 50), (4, 9.0, 50)]
    again = [(3, 4.0, 10), (4, 2.5, 80)]
    lines = [pod(h, LOADER.format(host=h, resumed=0)) for h in (0, 1)]
    lines += [pod(h, step(n, loss, w)) for n, loss, w in first for h in (1, 0)]
    lines += ["checkpoint saved, loss scale unchanged", "W loss: 1.0 is not a step", "loss: 7.0"]
    lines += [pod(h, LOADER.format(host=h, resumed=3)) for h in (0, 1)]
    lines += [pod(h, step(n, loss, w)) for n, loss, w in again for h in (0, 1)]
    run = read(tmp_path, *lines, end="")
    assert points(run) == {1: 3.0, 3: 2.0, 4: 4.0, 5: 2.5}
    assert run.nonfinite == ((2, TRAIN),)
    assert (run.seams, run.superseded) == ((3,), 2)
    assert points(run, "data/loss_tokens") == {1: 90, 2: 95, 3: 100, 4: 10, 5: 80}
    assert run.tokens_per_step == 4 * 2 * 128
    assert run.curves[TRAIN].series.tokens.tolist() == [1024, 3072, 4096, 5120]
    two = [points(run)[n] for n in (3, 4)]
    weights = [points(run, "data/loss_tokens")[n] for n in (3, 4)]
    assert np.mean(two) == 3.0
    assert np.average(two, weights=weights) == pytest.approx(2.1818, abs=5e-5)
    assert "2 hosts printed the same steps" in "".join(run.notes)


def test_copies_of_hosts_are_one_step_and_the_first_host_is_believed(tmp_path: Path):
    lines = [pod(h, step(n, 3.0 - 0.1 * n)) for n in range(12) for h in (10, 2)]
    lines[6] = pod(10, step(3, 9.0))  # the tenth host differs
    lines[9] = pod(2, "lost")  # the second one's line of step 4 is missing
    run = read(tmp_path, *lines)
    values = points(run)
    assert list(values) == list(range(1, 13))
    assert values[4] == pytest.approx(2.7)
    assert values[5] == pytest.approx(2.6)
    assert (run.seams, run.superseded) == ((), 0)
    notes = " ".join(run.notes)
    assert "1 steps filled" in notes
    assert "disagree on 1 steps, first on step 4" in notes


def test_hosts_whose_names_are_not_printed_are_told_by_their_equal_lines(tmp_path: Path):
    order = [0, 1, 0, 1, 2, 2, 3, 4, 3, 4, 5, 5]
    run = read(tmp_path, *(step(n, 3.0 - 0.1 * n) for n in order))
    assert points(run) == {n + 1: pytest.approx(3.0 - 0.1 * n) for n in range(6)}
    assert (run.seams, run.superseded) == ((), 0)


def test_logs_of_two_pods_one_after_the_other_are_hosts_not_a_restart(tmp_path: Path):
    lines = [
        f"[pod/workers-{h}-abc/maxtext] " + step(n, 3.0 - 0.1 * n) for h in (0, 1) for n in range(9)
    ]
    run = read(tmp_path, *lines)
    assert list(points(run)) == list(range(1, 10))
    assert (run.seams, run.superseded) == ((), 0)


def test_nothing_is_taken_of_a_host_that_missed_a_restart(tmp_path: Path):
    lines = [pod(h, step(n, 3.0)) for n in range(10) for h in (0, 1)]
    run = read(tmp_path, *lines, *(pod(0, step(n, 2.9)) for n in range(6, 8)))
    assert points(run) == {n: 3.0 if n < 7 else 2.9 for n in range(1, 9)}
    assert "1 hosts went through other restarts" in " ".join(run.notes)


def test_times_tell_hosts_whose_logs_follow_one_another(tmp_path: Path):
    lines = [
        f"[pod/w-{h}/maxtext] 2025-04-17T14:05:{n:02}.{h}Z {step(n, 3.0 + 0.1 * h)}"
        for h in (1, 0)
        for n in range(9)
    ]
    run = read(tmp_path, *lines)
    assert points(run) == dict.fromkeys(range(1, 10), 3.0)
    assert (run.seams, run.superseded) == ((), 0)
    assert "hosts disagree on 9 steps" in " ".join(run.notes)


def test_a_restart_in_new_pods_goes_on_where_the_old_ones_were(tmp_path: Path):
    def text(name: str, n: int, loss: float, second: int) -> str:
        return (
            f"[pod/{name}/maxtext] I0417 14:05:{second:02}.491532 1{second} m.py:1] {step(n, loss)}"
        )

    old = [text(f"w-{h}-zzz", n, 3.0, n) for n in range(10) for h in (0, 1)]
    new = [text(f"w-{h}-aaa", n, 2.9, n + 20) for n in range(6, 14) for h in (0, 1)]
    run = read(tmp_path, *old, *new)
    assert points(run) == {n: 3.0 if n < 7 else 2.9 for n in range(1, 15)}
    assert (run.seams, run.superseded) == ((6,), 4)


@pytest.mark.parametrize("prefix", ["pods", "absl", "docker", "rank", "none"])
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_restart_that_rewinds_keeps_the_later_copy(tmp_path: Path, prefix: str, hosts: int):
    train, holdout = np.linspace(3, 2, 250), np.linspace(3.3, 2.4, 250)
    shape = Shape(prefix=prefix, hosts=hosts, restart=(211, 200))
    write_log(tmp_path / "a.log", train, holdout, shape, abandoned_offset=0.1)
    run = maxtext.read(tmp_path / "a.log")
    assert run.curves[TRAIN].series.steps.tolist() == list(range(1, 251))
    assert run.curves[TRAIN].series.values == pytest.approx(train + 0.001, abs=6e-4)
    assert (run.seams, run.superseded) == ((200,), 12)
    assert run.curves[C4].series.values == pytest.approx(holdout[19::20], abs=6e-4)
    assert run.tokens_per_step == 4_194_304


@pytest.mark.parametrize("marked", [True, False])
def test_an_evaluation_of_a_branch_left_behind_is_left_out(tmp_path: Path, marked: bool):
    def result(n: int, loss: float) -> str:
        return f"Completed eval after train step {n}, loss={loss:.3f}, avg_z_loss=0.000"

    run = read(
        tmp_path,
        *(step(n, 3.0) for n in range(4)), result(4, 2.4), step(4, 3.0), step(5, 3.0),
        result(6, 2.2), step(6, 3.0), result(7, 2.1),
        *(["number parameters: 7.298 billion"] if marked else []),
        result(5, 2.3), step(5, 2.9),
    )  # fmt: skip
    assert points(run, C4) == {5: 2.4, 6: 2.3}
    assert list(points(run)) == [1, 2, 3, 4, 5, 6]


def test_a_restart_that_has_not_come_to_a_step_leaves_the_branch_out(tmp_path: Path):
    lines = [LOADER.format(host=0, resumed=0), *(step(n, 3.0) for n in range(9))]
    run = read(tmp_path, *lines, LOADER.format(host=0, resumed=5))
    assert list(points(run)) == [1, 2, 3, 4, 5]
    assert run.superseded == 4


def test_a_clean_restart_is_a_seam_too(tmp_path: Path):
    lines = [step(n, 3.0) for n in range(5)], [step(n, 2.9) for n in range(5, 9)]
    start = "number parameters: 7.298 billion"
    assert read(tmp_path, start, *lines[0], start, *lines[1]).seams == (5,)
    assert read(tmp_path, start, *lines[0], *lines[1]).seams == ()


def alternating(other: float, block: int, late: int = 0, start: bool = True) -> list[str]:
    """Two processes of 60 steps, losses 3.0 and ``other``, the second ``late`` steps behind."""
    first = [step(n, 3.0) for n in range(60)]
    second = [step(n, other + 0.001 * n) for n in range(60)]
    lines = ["number parameters: 7.298 billion"] * 2 if start else []
    for at in range(0, 60 + late, block):
        lines += first[at : at + block] + second[max(at - late, 0) : max(at + block - late, 0)]
    return lines


@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize(("block", "late"), [(1, 0), (7, 0), (15, 0), (1, 20), (5, 33)])
def test_two_processes_in_one_log_are_no_restarts(
    tmp_path: Path, block: int, late: int, start: bool
):
    with pytest.raises(DataError, match="lines of two processes") as caught:
        read(tmp_path, *alternating(2.5, block, late, start), tokens_per_step=10)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'run.log'}: line ")
    assert "keep the output of each process in a file of its own" in said


def test_two_processes_are_told_by_the_lines_at_which_they_alternate(tmp_path: Path):
    lines = [step(0, 3.0), step(0, 2.0), step(1, 2.9), step(1, 1.9), step(2, 2.8), step(2, 1.8)]
    with pytest.raises(DataError) as caught:
        read(tmp_path, *lines)
    assert str(caught.value).removeprefix(str(tmp_path)) == (
        "/run.log: line 2: step 0 comes after step 0 (line 1), and the log goes back so 3 times "
        "with other losses: the lines of two processes stand among each other, or out of order; "
        "keep the output of each process in a file of its own, or let each line name its pod "
        "([pod/NAME/...])"
    )


def test_two_processes_with_names_are_hosts(tmp_path: Path):
    lines = [pod(h, step(n, 3.0 - h)) for n in range(60) for h in (0, 1)]
    run = read(tmp_path, *lines)
    assert points(run) == dict.fromkeys(range(1, 61), 3.0)
    assert run.seams == ()


def test_two_equal_copies_in_blocks_are_one_run(tmp_path: Path):
    copy = [step(n, 3.0 - 0.01 * n) for n in range(120)]
    lines = [line for at in range(0, 120, 40) for line in copy[at : at + 40] * 2]
    run = read(tmp_path, *lines)
    assert list(points(run)) == list(range(1, 121))


@pytest.mark.parametrize("start", [True, False])
def test_a_run_that_crashes_again_and_again_goes_on(tmp_path: Path, start: bool):
    """From a checkpoint every 10 steps, 4 to 9 steps after it."""
    lines, at = [], 0
    for attempt, more in enumerate([17, 14, 16, 19, 15, 18, 14, 30]):
        lines += ["number parameters: 7.298 billion"] if start else []
        lines += [step(n, 3.0 - 0.01 * attempt) for n in range(at, at + more)]
        at = (at + more) // 10 * 10
    run = read(tmp_path, *lines)
    assert list(points(run)) == list(range(1, 101))
    assert run.seams == tuple(range(10, 80, 10))


UNRELATED = st.one_of(
    st.sampled_from(
        [
            "loss: 1.0", "step: 3, loss: 2.0", "Completed eval step: 3, running loss=1.000",
            "Starting eval after train step 3", "saved a checkpoint at step 17", "\x1b[1mloss",
            " split as 94.10% learnable weight flops", "step=12 loss=3.0", '{"loss": 1.0}',
            "To see full metrics 'tensorboard --logdir=/tmp'", "uncompleted step: 3, loss: 1.000",
            "[pod/workers-0-abc/maxtext] waiting", "OLMo data: index of 12 files",
        ]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 400), UNRELATED), max_size=30))
def test_unrelated_lines_change_nothing(tmp_path: Path, inserted: list[tuple[int, str]]):
    path = tmp_path / "a.log"
    shape = Shape(hosts=2, prefix="pods", restart=(41, 33))
    write_log(path, np.linspace(3, 2, 60), np.linspace(3.3, 2.4, 60), shape)
    plain = maxtext.read(path)
    lines = path.read_text().splitlines()
    for place, text in inserted:
        lines.insert(place % (len(lines) + 1), text)
    path.write_bytes(("\n".join(lines) + "\n").encode())
    other = maxtext.read(path)
    assert list(other.curves) == list(plain.curves)
    for name, curve in plain.curves.items():
        series = other.curves[name].series
        for mine, theirs in (
            (curve.series.steps, series.steps),
            (curve.series.tokens, series.tokens),
            (curve.series.values, series.values),
        ):
            assert np.array_equal(mine, theirs)
    assert (other.seams, other.superseded, other.notes, other.tokens_per_step) == (
        plain.seams, plain.superseded, plain.notes, plain.tokens_per_step,
    )  # fmt: skip


def test_the_case_follows_its_curves(tmp_path: Path):
    at = np.array([10**9, 10**12, 2 * 10**12])
    train, holdout = np.array([4.0, 2.5, 2.3]), np.array([4.2, 2.9, 2.7])
    lines = write_case(tmp_path / "a.log", (at, train), (at, holdout), drop=(0.5, 0.25))
    run = maxtext.read(tmp_path / "a.log")
    loss, text = run.curves[TRAIN].series, run.curves[C4].series
    assert lines == len((tmp_path / "a.log").read_text().splitlines())
    assert math.isclose(loss.tokens[-1], 1.5e12, rel_tol=1e-4)
    truth = np.interp(np.log(loss.tokens), np.log(at), train) + 0.001
    low = np.arange(len(loss)) >= len(loss) // 2
    assert (loss.values - truth)[~low].mean() == pytest.approx(0, abs=0.004)
    assert (loss.values - truth)[low].mean() == pytest.approx(-0.25, abs=0.004)
    assert text.values == pytest.approx(
        np.interp(np.log(text.tokens), np.log(at), holdout), abs=0.006
    )
