"""Repeats counted in a sample of the texts: estimates, and when they speak."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evalmon import id_logs
from evalmon.audit import repeats
from evalmon.detectors.repeated_instances import construction
from evalmon.types import ID_LOG_MAGIC, ID_LOG_RECORD, RepeatSummary, RunDescription

HOSTS = 4


def write(path: Path, steps: NDArray[np.int64]) -> RunDescription:
    """Write a run whose step n draws row n - 1."""
    count, batch = steps.shape
    drawn = np.zeros(steps.size, ID_LOG_RECORD)
    drawn["step"] = np.repeat(np.arange(1, count + 1), batch)
    drawn["instance"] = steps.ravel()
    drawn["host"] = np.tile(np.arange(batch) * HOSTS // batch, count)
    drawn["text_hash"] = drawn["instance"] * np.uint64(0x9E3779B97F4A7C15)
    (path / "ids.bin").write_bytes(ID_LOG_MAGIC + drawn.tobytes())
    return RunDescription(
        name="a", path=path, adapter="olmo3", model={}, tokenizer="tokenizer.json", vocab_size=8,
        eos_id=0, sequence_length=4, batch_instances=batch, planned_steps=count, planned_passes=1,
        source_instances=steps.size, hosts=HOSTS, loader="batch_strided", seed=0, warmup_steps=0,
        recipe="r", loss={}, data="data",
    )  # fmt: skip


def summary(run: RunDescription, rate: int = 1) -> RepeatSummary:
    log = id_logs.read(run, rate=rate)
    assert log is not None
    return repeats.summarize(log, run)


def test_a_sample_estimates_what_all_draws_show(tmp_path: Path):
    """A tenth of the draws from step 501 on repeats: 5,000 of 100,000."""
    fresh = np.arange(100_000)
    fresh[50_000::10] = fresh[:50_000:10]
    run = write(tmp_path, fresh.reshape(1000, 100))
    whole, sample = summary(run), summary(run, rate=16)
    assert (whole.repeated, whole.unique, whole.draws) == (5_000, 95_000, 100_000)
    assert (sample.draws, sample.rate) == (100_000, 16)
    assert abs(sample.repeated - 5_000) < 4 * np.sqrt(5_000 * 16)
    assert abs(sample.unique - 95_000) < 4 * np.sqrt(95_000 * 16)
    assert abs(sample.repeated_fraction - 0.05) < 0.01
    assert whole.first_repeat_step == 501
    assert sample.first_repeat_step is not None
    assert 501 <= sample.first_repeat_step <= 520


def test_a_sample_speaks_from_three_repeats_in_a_window_of_a_thousand_steps(tmp_path: Path):
    fresh = np.arange(10_000).reshape(2_500, 4)
    texts = fresh.ravel().astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    early = np.flatnonzero(id_logs.mixed(texts) % np.uint64(4) == 0)[:3].tolist()

    def repeating(at: list[int]) -> RepeatSummary:
        drawn = fresh.copy()
        for step, instance in zip(at, early, strict=True):
            drawn[step - 1, 3] = instance
        return summary(write(tmp_path, drawn), rate=4)

    assert repeating([998, 999, 1001]).first_repeat_step is None  # two and one
    assert repeating([998, 1999, 2001]).first_repeat_step is None
    found = repeating([1001, 1500, 2000])
    assert (found.first_repeat_step, found.repeated) == (1001, 12)


def test_the_first_repeat_of_a_sample_is_the_same_whenever_it_is_asked_for(tmp_path: Path):
    drawn = np.arange(9_600).reshape(1_200, 8)
    drawn[600:] = drawn[:600]
    run = write(tmp_path, drawn)
    log = id_logs.read(run, rate=8)
    assert log is not None
    whole = repeats.summarize(log, run)
    assert whole.first_repeat_step is not None
    for step in range(600, 1_200, 29):
        early = repeats.summarize(log.until(step), run)
        assert early.draws == step * 8
        assert early.first_repeat_step in {None, whole.first_repeat_step}
    assert repeats.summarize(log.until(600), run).repeated == 0


def test_double_sharding_is_told_from_a_sample(tmp_path: Path):
    """Each of 4 hosts re-reads 1/16 of 16,384 instances: every 128 steps of 8 draws a host."""
    each = np.arange(16_384).reshape(-1, HOSTS, HOSTS)
    mine = np.stack([each[:, host, host] for host in range(HOSTS)])  # [hosts, N / S^2]
    turns = np.concatenate([mine, mine], axis=1).reshape(HOSTS, -1, 8)
    run = write(tmp_path, turns.transpose(1, 0, 2).reshape(-1, 32))
    run = replace(run, source_instances=16_384)
    found = summary(run, rate=16)
    assert found.period_draws == 1024
    assert construction(found) == construction(summary(run)) == "double_sharding"
