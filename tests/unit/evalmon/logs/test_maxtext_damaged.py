"""MaxText's standard output with values that cannot be, colors, and a cut file."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from evalmon.errors import ConfigError, DataError
from evalmon.logs import maxtext
from tests.unit.evalmon.logs.maxtext_lines import (
    ABSL,
    C4,
    LOADER,
    TRAIN,
    log_of,
    points,
    read,
    step,
)
from tests.unit.evalmon.logs.maxtext_log import write_log


def refusal(tmp_path: Path, *lines: str) -> str:
    with pytest.raises(DataError) as caught:
        read(tmp_path, *lines)
    return str(caught.value).replace(str(tmp_path / "run.log"), "LOG")


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (str(10**9), "1000000000"),
        (str(10**25), "10000000000000000000000000"),
        ("9" * 5000, "9" * 30 + "…"),
    ],
)
def test_a_step_that_no_run_has_is_left_out_and_named(tmp_path: Path, number: str, shown: str):
    torn = step(1, 2.9).replace("step: 1,", f"step: {number},")
    evaluated = f"Completed eval after train step {number}, loss=2.500, avg_z_loss=0.001"
    run = read(tmp_path, step(0, 3.0), torn, step(2, 2.8), evaluated)
    assert points(run) == {1: 3.0, 3: 2.8}
    assert C4 not in run.curves
    assert (
        f"2 lines left out, first line 2: completed step {shown}, and no run has 1,000,000,000 "
        "steps"
    ) in run.notes


def test_the_highest_step_of_the_largest_batch_has_exact_tokens(tmp_path: Path):
    run = read(tmp_path, step(10**9 - 1, 3.0, None), tokens_per_step=1 << 32)
    assert run.curves[TRAIN].series.tokens.tolist() == [10**9 << 32]
    with pytest.raises(ConfigError, match="no batch has more than 4,294,967,296"):
        read(tmp_path, step(0, 3.0), tokens_per_step=(1 << 32) + 1)


def test_more_counted_tokens_than_a_batch_holds_are_left_out(tmp_path: Path):
    run = read(tmp_path, step(0, 3.0, 100), step(1, 2.9, 10**30), step(2, 2.8, 100))
    assert points(run) == {1: 3.0, 3: 2.8}
    assert run.curves[TRAIN].series.tokens.tolist() == [100, 300]
    assert any("first line 2: total_weights 1000000000" in note for note in run.notes)


@pytest.mark.parametrize("batch", ["99999999999999999999", "9" * 5000, "16777217"])
def test_a_batch_that_cannot_be_names_its_line(tmp_path: Path, batch: str):
    loader = LOADER.format(host=0, resumed=0).replace("batch=4", f"batch={batch}")
    lines = ["number parameters: 7.298 billion", loader, step(0, 3.0)]
    said = refusal(tmp_path, *lines)
    assert said.startswith("LOG: line 2: the loader's per_host_batch, shards and seq make ")
    assert said.endswith("no batch has more than 4,294,967,296; correct the line, or give "
                         "--tokens-per-step")  # fmt: skip
    assert read(tmp_path, *lines, tokens_per_step=7).tokens_per_step == 7


def test_printed_settings_that_cannot_be(tmp_path: Path):
    config = ["Config param global_batch_size_to_train_on: " + "9" * 5000,
              "Config param max_target_length: 8"]  # fmt: skip
    assert "global_batch_size_to_train_on times max_target_length is" in refusal(
        tmp_path, *config, step(0, 3.0)
    )
    unending = read(tmp_path, "Config param steps: " + "9" * 5000, step(0, 3.0))
    assert unending.planned_tokens is None


def test_a_step_to_resume_from_that_cannot_be_is_left_out(tmp_path: Path):
    run = read(tmp_path, LOADER.format(host=0, resumed="9" * 5000), step(0, 3.0))
    assert points(run) == {1: 3.0}
    assert "loader line without batch, shards, length or step" in " ".join(run.notes)


@pytest.mark.parametrize(
    "colored",
    [
        "\x1b[38;5;2mcompleted\x1b[K step: {n}, seconds: 1.0, loss: {loss}",
        "\x1b[32mcompleted\x1b[0m\x1b[K step\x1b[0m: {n}, \x1b[1mloss\x1b[22m: {loss}\x1b[0m",
        "\x1b[2K\x1b[1Gcompleted step: {n}, seconds: 1.0, loss: {loss}\x1b[?25h",
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_colors_cleared_lines_and_carriage_returns(tmp_path: Path, colored: str, end: str):
    text = end.join(colored.format(n=n, loss=3.0 - n) for n in range(3)) + end
    path = tmp_path / "run.log"
    path.write_text(text, newline="")
    assert maxtext.recognizes(path)
    assert points(maxtext.read(path, tokens_per_step=1)) == {1: 3.0, 2: 2.0, 3: 1.0}


def test_without_a_step_the_first_line_that_looks_like_one_is_quoted(tmp_path: Path):
    comma = ABSL + "completed step: 0, seconds: 1.000, loss: 8,302"
    assert refusal(tmp_path, "Config param steps: 5", comma, comma) == (
        "LOG: no completed step with a loss (2 lines left out, first line 2: completed step 0 "
        "without a loss); the first that looks like one is 'completed step: 0, seconds: 1.000, "
        "loss: 8,302'; expected lines such as 'completed step: 0, seconds: 1.234, loss: 10.123', "
        "give MaxText's standard output from its beginning"
    )
    joined = refusal(tmp_path, " ".join(step(n, 3.0) for n in range(50)))
    assert "first line 1: two results on one line" in joined
    assert "looks like one is 'completed step: 0, seconds: 1.000, total_weights: 100" in joined
    assert "looks like one" not in refusal(tmp_path, "Config param steps: 5")


def test_a_short_gzip_file_that_is_cut_is_recognized(tmp_path: Path):
    path = tmp_path / "run.log.gz"
    write_log(path, np.linspace(3, 2, 60), None)
    whole = path.read_bytes()
    assert len(gzip.decompress(whole)) < 2_000_000
    path.write_bytes(whole[: len(whole) // 2])
    assert maxtext.recognizes(path)
    cut = maxtext.read(path)
    assert 10 < len(cut.curves[TRAIN].series) < 60
    assert "the gzip file ends within line" in " ".join(cut.notes)


def test_braces_behind_a_blank_line_are_no_jsonl_log_of_maxtext(tmp_path: Path):
    record = '{"message": "completed step: 1, seconds: 1.0, loss: 2.0"}'
    assert not maxtext.recognizes(log_of(tmp_path, "", record))
    assert maxtext.recognizes(log_of(tmp_path, "start", "", "{}", step(0, 3.0)))
