"""MaxText's standard output: every version's lines, tokens, z-loss, and what is refused."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon import tags
from evalmon.errors import ConfigError, DataError
from evalmon.logs import maxtext
from evalmon.types import Sampling
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
from tests.unit.evalmon.logs.maxtext_log import Shape, write_log

# Lines of every version


@pytest.mark.parametrize(
    ("tail", "nats"),
    [
        (("completed step: 7, seconds: 4.2, TFLOP/s/device: 401.500, Tokens/s/device: 9801.250, "
         "total_weights: 100, loss: 2.501, lm_loss: 2.501, perplexity: 12.195"), 2.501),
        (("completed step: 7, seconds: 4.2, live slice count: 2, TFLOP/s/device: 401.500, "
         "Tokens/s/device: 9801.250, total_weights: 100, loss: 2.501, lm_loss: 2.501, "
         "perplexity: 12.195"), 2.501),
        (("[Rampup Batch Size Phase], completed step: 7, seconds: 4.2, total_weights: 100, "
         "loss: 2.501, lm_loss: 2.501, perplexity: 12.195"), 2.501),
        (("completed profiler activation/deactivation step: 7, total_weights: 100, loss: 2.501, "
         "lm_loss: 2.501, perplexity: 12.195"), 2.501),
        (("[Rampup Batch Size Phase], completed profiler activation/deactivation step: 7, "
         "total_weights: 100, loss: 2.501, lm_loss: 2.501, perplexity: 12.195"), 2.501),
        (("completed step: 7, seconds: 4.2, TFLOP/s/device: 401.500, Tokens/s/device: 9801.250, "
         "total_weights: 100, loss: 2.501"), 2.501),
        ("completed step: 7, seconds: 4.2, TFLOP/s/device: 401.500, loss: 2.501", 2.501),
        (("completed step: 7, seconds: 4.2, total_weights: 100, loss: 2.511, lm_loss: 2.501, "
         "perplexity: 12.195, moe_lb_loss: 0.010000"), 2.501),
        (("completed step: 7, seconds: 4.2, total_weights: 100, loss: 2.611, moe_lb_loss: 0.010, "
         "main_model_loss: 2.511, mtp_loss: 0.100"), 2.501),
        (("completed step: 7, seconds: 4.2, total_weights: 100, loss: 2.501, lm_loss: 0.000, "
         "perplexity: 0.000"), 2.501),
        ("completed step: 7, seconds: 4.2, loss: Array(2.501, dtype=float32)", 2.501),
        ("completed step: 7, seconds: 4.2, loss: 2.501\x1b[0m", 2.501),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "before",
    [
        "",
        ABSL,
        f"[pod/a-0/b] {ABSL}",
        f"2025-04-17T14:05:19.491532123Z {ABSL}",
        f"[pod/a-0/b] 2025-04-17T14:05:19.491532123Z {ABSL}",
        "[20250417 14:05:19][rank-0/1][INFO]     ",
        "maxtext-1  | ",
        "\x1b[1m[INFO] ",
    ],
)
def test_a_step_is_read_in_every_version_behind_every_prefix(
    tmp_path: Path, before: str, tail: str, nats: float
):
    run = read(tmp_path, before + tail, tokens_per_step=10)
    assert points(run) == {8: pytest.approx(nats)}
    assert run.curves[TRAIN].series.tokens.tolist() == [80]
    assert maxtext.recognizes(tmp_path / "run.log")


@pytest.mark.parametrize("word", ["nan", "inf", "-inf"])
def test_a_loss_that_is_no_number_is_marked_not_dropped(tmp_path: Path, word: str):
    run = read(tmp_path, step(0, 3.0), step(1, word), step(2, 2.0))
    assert points(run) == {1: 3.0, 3: 2.0}
    assert run.nonfinite == ((2, TRAIN),)
    assert run.curves[TRAIN].series.tokens.tolist() == [100, 300]


def test_a_run_whose_every_loss_is_nan_has_no_curve_and_says_so(tmp_path: Path):
    run = read(tmp_path, step(0, "nan"), step(1, "nan"))
    assert TRAIN not in run.curves
    assert run.nonfinite == ((1, TRAIN), (2, TRAIN))


@pytest.mark.parametrize("version", ["current", "no_lm_loss", "no_weights"])
@pytest.mark.parametrize("prefix", ["pods", "absl", "docker", "rank", "none"])
def test_whole_logs_of_every_version(tmp_path: Path, version: str, prefix: str):
    train, holdout = np.linspace(3, 2, 60), np.linspace(3.3, 2.4, 60)
    shape = Shape(version=version, prefix=prefix, profiler=(9, 10), rampup=5)
    write_log(tmp_path / "a.log", train, holdout, shape)
    run = maxtext.read(tmp_path / "a.log")
    loss = run.curves[TRAIN]
    assert loss.series.steps.tolist() == list(range(1, 61))
    assert loss.series.values == pytest.approx(train + 0.001, abs=6e-4)
    assert (loss.sampling, loss.facts["divisor"]) == (Sampling.FULL, "total_weights")
    assert run.curves[C4].series.steps.tolist() == [20, 40, 60]
    off = 0 if version == "current" else 0.001
    assert run.curves[C4].series.values == pytest.approx(holdout[19::20] + off, abs=6e-4)
    assert run.seams == ()


# Evaluations


def test_running_means_are_not_results(tmp_path: Path):
    run = read(
        tmp_path,
        step(18, 2.0),
        "Starting eval after train step 19",
        "Completed eval step: 0, seconds: 0.5, running loss=9.000, running perplexity=1.0, "
        "running total_weights=10",
        "Completed eval step: 1, seconds: 0.5, running loss=8.000, running perplexity=1.0",
        "Completed eval after train step 19, loss=2.701, perplexity=14.9, total_weights=75264.0, "
        "avg_z_loss=0.001",
        step(19, 2.0),
    )
    assert points(run, C4) == {20: pytest.approx(2.700)}
    assert points(run) == {19: 2.0, 20: 2.0}
    assert run.curves[C4].series.tokens.tolist() == [2000]


@pytest.mark.parametrize(
    "line",
    [
        "eval metrics after step: 39, loss=4.733, total_weights=8751",
        "eval metrics after step: 39, eval_loss: 4.733",
        "average loss after step=39: eval_step_count=10, eval_loss=4.733, total_weights=8751.0",
        (
            "average loss after step=39: eval_step_count=9, eval_loss=Array(4.733, dtype=float32), "
            "total_weights=8751.0"
        ),
    ],
)
def test_evaluations_of_older_builds_hold_their_z_loss(tmp_path: Path, line: str):
    run = read(tmp_path, step(39, 2.0), line)
    assert points(run, C4) == {40: 4.733}
    facts = run.curves[C4].facts
    assert (facts["z_loss"], facts["z_loss_nats"]) == ("included", 0.001)


def test_an_evaluation_before_the_line_of_its_step_has_the_steps_tokens(tmp_path: Path):
    lines = [step(0, 3.0), "Completed eval after train step 1, loss=2.5, avg_z_loss=0.001"]
    run = read(tmp_path, *lines, tokens_per_step=7)
    assert run.curves[C4].series.tokens.tolist() == [14]


def test_a_nan_evaluation_is_marked(tmp_path: Path):
    lines = [step(0, 3.0), "Completed eval after train step 0, loss=nan, avg_z_loss=nan"]
    run = read(tmp_path, *lines)
    assert C4 not in run.curves
    assert run.nonfinite == ((1, C4),)


def test_the_texts_name_is_the_callers_and_taken_for_c4_without(tmp_path: Path):
    lines = [step(0, 3.0), "Completed eval after train step 0, loss=2.500, avg_z_loss=0.001"]
    assert "taken for C4" in " ".join(read(tmp_path, *lines).notes)
    named = [*lines, "Config param hf_eval_files: gs://bucket/c4/en/validation*.json"]
    assert "taken for C4" not in " ".join(read(tmp_path, *named).notes)
    other = read(tmp_path, *lines, eval_set="pile")
    assert "eval/lm/pile-validation/ce_nats" in other.curves
    assert "taken for" not in " ".join(other.notes)
    with pytest.raises(ConfigError, match="c4_en"):
        read(tmp_path, *lines, eval_set="c4/en")


# z-loss


@pytest.mark.parametrize(
    ("extra", "facts"),
    [
        ([], {"z_loss": "included", "z_loss_nats": 0.001}),
        (["Completed eval after train step 0, loss=2.5, avg_z_loss=0.002"],
         {"z_loss": "included", "z_loss_nats": 0.002}),
        (["Completed eval after train step 0, loss=2.5, avg_z_loss=0.000"],
         {"z_loss": "excluded"}),
        (["Config param z_loss_multiplier: 0.0"], {"z_loss": "excluded"}),
        (["Config param z_loss_multiplier: 1e-05"], {"z_loss": "included", "z_loss_nats": 0.001}),
    ],
)  # fmt: skip
def test_the_train_loss_says_what_z_loss_is_in_it(
    tmp_path: Path, extra: list[str], facts: dict[str, Any]
):
    run = read(tmp_path, *extra, step(0, 3.0))
    assert run.curves[TRAIN].facts == {"divisor": "total_weights"} | facts
    assert points(run) == {1: 3.0}


def test_a_z_loss_on_the_line_itself_is_taken_off(tmp_path: Path):
    run = read(tmp_path, step(0, 3.0) + ", z_loss: 0.002", step(1, 2.9) + ", z_loss: 0.002")
    assert points(run) == {1: pytest.approx(2.998), 2: pytest.approx(2.898)}
    assert run.curves[TRAIN].facts["z_loss"] == "excluded"
    assert points(run, "train/z_nats") == {1: 0.002, 2: 0.002}


def test_its_facts_are_those_of_the_dictionary(tmp_path: Path):
    tag = tags.look_up("learning/loss", "maxtext")
    assert tag is not None
    assert read(tmp_path, step(0, 3.0)).curves[tag.metric].facts == tag.facts


def test_the_resolution_is_said(tmp_path: Path):
    assert "0.001 nats" in read(tmp_path, step(0, 3.0)).curves[TRAIN].note


# Tokens


def test_tokens_by_the_loader_the_settings_the_weights_and_the_caller(tmp_path: Path):
    lines = [step(0, 3.0, 100), step(1, 2.0, 60)]
    counted = read(tmp_path, *lines)
    assert counted.curves[TRAIN].series.tokens.tolist() == [100, 160]
    assert counted.tokens_per_step is None
    assert "total_weights" in counted.notes[0]
    config = ["Config param global_batch_size_to_train_on: 16", "Config param max_target_length: 8"]
    settled = read(tmp_path, *config, *lines)
    assert (settled.tokens_per_step, settled.curves[TRAIN].series.tokens.tolist()) == (
        128, [128, 256],
    )  # fmt: skip
    loader = read(tmp_path, LOADER.format(host=0, resumed=0), *config, *lines)
    assert loader.tokens_per_step == 1024
    given = read(tmp_path, LOADER.format(host=0, resumed=0), *config, *lines, tokens_per_step=5)
    assert given.curves[TRAIN].series.tokens.tolist() == [5, 10]


def test_steps_without_a_line_have_tokens_too(tmp_path: Path):
    run = read(tmp_path, step(2, 3.0, 100), step(5, 2.0, 60))
    assert run.curves[TRAIN].series.tokens.tolist() == [2 * 80 + 100, 2 * 80 + 100 + 2 * 80 + 60]
    assert "4 steps that print none" in run.notes[0]


def test_a_batch_that_grows_is_counted_as_it_was(tmp_path: Path):
    growing = [step(n, 3.0, 512, "[Rampup Batch Size Phase], ") for n in range(2)]
    run = read(tmp_path, LOADER.format(host=0, resumed=0), *growing, step(2, 2.0, 1000))
    assert run.curves[TRAIN].series.tokens.tolist() == [512, 1024, 2048]
    assert run.tokens_per_step is None


def test_a_restart_with_another_batch_counts_both(tmp_path: Path):
    double = LOADER.format(host=0, resumed=2).replace("batch=4", "batch=8")
    run = read(
        tmp_path, LOADER.format(host=0, resumed=0), step(0, 3.0), step(1, 2.9), step(2, 2.8),
        double, step(2, 2.7), step(3, 2.6),
    )  # fmt: skip
    assert run.curves[TRAIN].series.tokens.tolist() == [1024, 2048, 4096, 6144]
    assert (run.tokens_per_step, run.seams, run.superseded) == (None, (2,), 1)


def test_planned_tokens_only_where_the_settings_are_printed(tmp_path: Path):
    assert read(tmp_path, step(0, 3.0), tokens_per_step=10).planned_tokens is None
    config = [
        "Config param steps: 50",
        "Config param learning_rate_schedule_steps: 40",
        "Config param warmup_steps_fraction: 0.1",
    ]
    run = read(tmp_path, *config, step(0, 3.0), step(1, 3.0), tokens_per_step=10)
    assert (run.planned_tokens, run.warmup_tokens) == (400, 40)


# Torn lines and refusals


@pytest.mark.parametrize(
    ("last", "kept"),
    [
        ("completed step: 2, seconds: 1.000, total_weights: 100, loss: 2.125", True),
        ("completed step: 2, seconds: 1.000, total_weights: 100, loss: nan", False),
        ("completed step: 2, seconds: 1.000, total_weights: 100, loss: 2.1", False),
        ("completed step: 2, seconds: 1.000, total_weights: 100, loss: 2.", False),
        ("completed step: 2, seconds: 1.000, total_weights: 100, loss: ", False),
        ("completed step: 2, seconds: 1.0", False),
        ("completed step: 2", False),
        ("completed st", False),
    ],
)
def test_a_last_line_without_end_is_read_when_its_value_is_whole(
    tmp_path: Path, last: str, kept: bool
):
    run = read(tmp_path, step(0, 3.0), step(1, 2.5), last, end="")
    assert points(run) == {1: 3.0, 2: 2.5} | ({3: 2.125} if kept else {})
    whole = kept or "nan" in last or last == "completed st"
    assert ("lines left out, first line 3" in " ".join(run.notes)) != whole
    assert run.nonfinite == (((3, TRAIN),) if "nan" in last else ())


def test_a_torn_line_is_not_read_as_another_quantity(tmp_path: Path):
    whole = step(0, 2.511) + ", lm_loss: 2.501, perplexity: 12.195"
    torn = step(1, 2.511) + ", lm_loss: 2.5"
    assert points(read(tmp_path, whole, torn, end="")) == {1: 2.501}
    alive = step(1, 2.511) + ", lm_loss: 2.501, perplexity: 12.1"
    assert points(read(tmp_path, whole, alive, end="")) == {1: 2.501, 2: 2.501}


def test_two_lines_run_into_each_other_are_left_out(tmp_path: Path):
    run = read(tmp_path, step(0, 3.0), step(1, 2.9) + step(2, 2.0), step(3, 2.7))
    assert points(run) == {1: 3.0, 4: 2.7}
    assert "first line 2: two results on one line" in " ".join(run.notes)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["number parameters: 7.298 billion"], "no completed step"),
        (["Completed eval after train step 19, loss=2.7"], "no completed step"),
        ([""], "no completed step"),
        ([step(0, 3.0, None), step(1, 2.0, None)], "--tokens-per-step"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, lines: list[str], words: str):
    with pytest.raises(DataError, match=words) as caught:
        read(tmp_path, *lines)
    assert str(tmp_path / "run.log") in str(caught.value)


def test_a_missing_file_and_a_step_of_no_tokens_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match="no such log"):
        maxtext.read(tmp_path / "absent.log")
    with pytest.raises(ConfigError, match="at least one"):
        read(tmp_path, step(0, 3.0), tokens_per_step=0)


def test_a_gzip_file_is_read_also_when_it_is_cut(tmp_path: Path):
    path = tmp_path / "olmo3.log.gz"
    write_log(path, np.linspace(3, 2, 400), None)
    assert maxtext.recognizes(path)
    run = maxtext.read(path)
    assert (run.name, len(run.curves[TRAIN].series)) == ("olmo3", 400)
    path.write_bytes(path.read_bytes()[:-200])
    cut = maxtext.read(path)
    assert 300 < len(cut.curves[TRAIN].series) < 400
    assert "ends within line" in " ".join(cut.notes)
    path.write_bytes(gzip.compress(b"a")[:4] + b"\xff" * 60)
    with pytest.raises(DataError, match="cannot be read"):
        maxtext.read(path)
    assert not maxtext.recognizes(path)


def test_the_name_is_given_printed_or_the_files(tmp_path: Path):
    assert read(tmp_path, step(0, 3.0)).name == "run"
    printed = ["Config param run_name: olmo3-jax", step(0, 3.0)]
    assert read(tmp_path, *printed).name == "olmo3-jax"
    assert read(tmp_path, *printed, run="olmo3-jax").name == "olmo3-jax"
    assert read(tmp_path, step(0, 3.0), run="mine").name == "mine"


def test_a_thinned_log_is_thinned_when_declared_and_sampled_when_not(tmp_path: Path):
    kept = sorted(np.random.default_rng(0).choice(2000, 300, replace=False).tolist())
    lines = [step(n, 3.0) for n in kept]
    assert read(tmp_path, *lines).curves[TRAIN].sampling is Sampling.SAMPLED
    assert read(tmp_path, *lines, thinned=True).curves[TRAIN].sampling is Sampling.THINNED


@pytest.mark.parametrize(
    "text",
    [
        "run,metric,step,tokens,value\na,train/ce_nats,1,10,3.0\n",
        '{"event": "step", "step": 1, "tokens": 10, "train/ce_nats": 3.0}\n',
        '{"message": "completed step: 1, seconds: 1.0, loss: 2.0"}\n',
        '"Step","run - learning/loss"\n1,2.5\n',
        "the loss of step 3 was 2.5; the step is completed\n",
        "[step=10/100,epoch=1]\n    train/CE loss=2.5\n",
        "",
    ],
)
def test_other_files_are_not_recognized(tmp_path: Path, text: str):
    (tmp_path / "file").write_text(text)
    assert not maxtext.recognizes(tmp_path / "file")
    assert not maxtext.recognizes(tmp_path)
    assert not maxtext.recognizes(tmp_path / "absent")


def test_a_log_with_start_up_lines_alone_is_recognized(tmp_path: Path):
    assert maxtext.recognizes(log_of(tmp_path, ABSL + LOADER.format(host=0, resumed=0)))
