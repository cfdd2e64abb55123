"""Which run a MaxText log is of, its restarts told, and what it says against the caller."""

from pathlib import Path

import pytest

from evalmon.errors import DataError
from tests.unit.evalmon.logs.maxtext_lines import C4, LOADER, TRAIN, log_of, pod, points, read, step

NAME = "Config param run_name: {name}"
BATCH = "Config param global_batch_size_to_train_on: {size}"
LENGTH = "Config param max_target_length: 10"


def two_runs() -> list[str]:
    def lines(host: int, name: str, loss: float, size: int) -> list[str]:
        config = [BATCH.format(size=size), LENGTH, NAME.format(name=name)]
        steps = [step(n, loss + n) for n in range(3)]
        evaluated = f"Completed eval after train step 2, loss={loss:.3f}, avg_z_loss=0.000"
        return [pod(host, line) for line in [*config, *steps, evaluated]]

    return [*lines(0, "first", 2.0, 4), *lines(1, "first", 2.0, 4), *lines(0, "second", 5.0, 8)]


def test_two_runs_in_one_log_need_a_name(tmp_path: Path):
    path = log_of(tmp_path, *two_runs())
    with pytest.raises(DataError) as error:
        read(tmp_path, *two_runs())
    assert str(error.value) == (
        f"{path}: lines of 2 runs, by their run_name: first, second; give --run with one of them"
    )
    first = read(tmp_path, *two_runs(), run="first")
    assert (first.name, points(first)) == ("first", {1: 2.0, 2: 3.0, 3: 4.0})
    assert (first.tokens_per_step, first.seams, points(first, C4)) == (40, (), {3: 2.0})
    second = read(tmp_path, *two_runs(), run="second")
    assert (second.name, points(second)) == ("second", {1: 5.0, 2: 6.0, 3: 7.0})
    assert (second.tokens_per_step, second.seams, points(second, C4)) == (80, (), {3: 5.0})


def test_a_run_that_the_log_does_not_name_is_refused(tmp_path: Path):
    one = [NAME.format(name="olmo3-jax"), step(0, 3.0)]
    with pytest.raises(DataError, match="no run 'mine'; the log is of run_name olmo3-jax: give"):
        read(tmp_path, *one, run="mine")
    with pytest.raises(DataError, match=r"no run 'secnd'; .* first, second; nearest is 'second'"):
        read(tmp_path, *two_runs(), run="secnd")


def test_only_the_first_host_prints_settings(tmp_path: Path):
    lines = [pod(0, NAME.format(name="a")), pod(0, step(0, 3.0)), pod(1, step(0, 3.0))]
    run = read(tmp_path, *lines, tokens_per_step=10)
    assert (run.name, points(run)) == ("a", {1: 3.0})
    assert "2 hosts printed the same steps" in " ".join(run.notes)


def test_a_restart_is_told(tmp_path: Path):
    start = LOADER.format(host=0, resumed=0)
    resumed = LOADER.format(host=0, resumed=3)
    old = [step(n, 3.0) for n in range(5)]
    new = [step(n, 2.9) for n in range(3, 8)]
    run = read(tmp_path, start, *old, resumed, *new)
    assert (run.seams, run.superseded) == ((3,), 2)
    assert "restart: went on from step 3; 2 steps logged again" in run.notes
    clean = read(tmp_path, start, *old, LOADER.format(host=0, resumed=5), step(5, 2.9))
    assert "restart: went on from step 5; no step logged again" in clean.notes
    assert not [note for note in read(tmp_path, start, *old).notes if "restart" in note]


def test_the_same_output_twice_is_told(tmp_path: Path):
    lines = [LOADER.format(host=0, resumed=0), *(step(n, 3.0 - n / 10) for n in range(5))]
    run = read(tmp_path, *lines, *lines)
    assert points(run) == points(read(tmp_path, *lines))
    assert run.superseded == 5
    assert (
        "restart: went on from step 0; 5 steps logged again, 5 of them alike: the log may hold "
        "the same output twice"
    ) in run.notes


def test_evaluations_that_are_not_finite_are_told(tmp_path: Path):
    def evaluated(n: int, loss: str) -> str:
        return f"Completed eval after train step {n}, loss={loss}, avg_z_loss=0.001"

    losses = ["3.000", "nan", "inf"]
    lines = [line for n in range(3) for line in (step(n, 3.0), evaluated(n, losses[n]))]
    run = read(tmp_path, *lines)
    assert run.nonfinite == ((2, C4), (3, C4))
    assert f"{C4}: 2 values are NaN or infinite, from step 2 to 3; they are left out" in run.notes
    none = read(tmp_path, step(0, "nan"), step(1, 3.0), evaluated(1, "nan"))
    assert none.nonfinite == ((1, TRAIN), (2, C4))
    assert f"{TRAIN}: 1 value is NaN or infinite, at step 1; it is left out" in none.notes
    assert f"{C4}: its one value is NaN or infinite, at step 2: it has no curve" in none.notes


def test_tokens_that_were_given_against_those_of_the_log(tmp_path: Path):
    loader = LOADER.format(host=0, resumed=0)  # 4 sequences, 2 hosts, 128 tokens
    run = read(tmp_path, loader, step(0, 3.0), tokens_per_step=1000)
    assert run.tokens_per_step == 1000
    assert run.notes[0] == (
        "tokens per step are 1,000 as given; the loader's line says 1,024, which is not used"
    )
    assert "as given" not in " ".join(
        read(tmp_path, loader, step(0, 3.0), tokens_per_step=1024).notes
    )
    printed = [BATCH.format(size=4), LENGTH, step(0, 3.0)]
    assert read(tmp_path, *printed, tokens_per_step=50).notes[0] == (
        "tokens per step are 50 as given; the printed settings say 40, which is not used"
    )
