"""`evalmon audit run` on id logs that the trainer's real loaders and writer left behind."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from evalmon.audit.repeats import passes_of_steps
from evalmon.cli import main
from evalmon.types import RunDescription
from trainer.data.faulty import first_repeat_step
from trainer.data.id_log import IdLogWriter, id_records
from trainer.data.index import InstanceIndex, TokenFile, TokenFolder
from trainer.data.loaders import find_loader
from trainer.data.order import GlobalOrder
from trainer.data.pipeline import ReadPlan, global_batches
from trainer.data.source import InstanceSource

LENGTH, INSTANCES, BATCH, HOSTS = 8, 1024, 16, 8


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> InstanceSource:
    path = tmp_path_factory.mktemp("tokens")
    rng = np.random.default_rng(0)
    rng.integers(1, 1000, INSTANCES * LENGTH, dtype=np.uint32).tofile(path / "a.npy")
    file = TokenFile.of(path / "a.npy", "a.npy", "a")
    return InstanceSource(InstanceIndex.build(TokenFolder(path, (file,), 1000, 0), LENGTH))


def description(path: Path) -> RunDescription:
    return RunDescription(
        name="run", path=path, adapter="none", model={}, tokenizer="", vocab_size=1000, eos_id=0,
        sequence_length=LENGTH, batch_instances=BATCH, planned_steps=1, planned_passes=1,
        source_instances=INSTANCES, hosts=HOSTS, loader="batch_strided", seed=0, warmup_steps=0,
        recipe="", loss={}, data="t",
    )  # fmt: skip


def read(
    source: InstanceSource, loader: str, run: Path, *segments: tuple[int, int, int]
) -> RunDescription:
    """Read as a run does: segments of (step gone on from, steps read, hosts)."""
    run.mkdir(exist_ok=True)
    order = GlobalOrder(0, len(source))
    with IdLogWriter(run / "ids.bin") as log:
        for begun, steps, hosts in segments:
            position = order.after(0, begun, BATCH)
            plan = ReadPlan(source, 0, BATCH, hosts, position=position, batches=steps)
            batches = global_batches(plan, find_loader(loader).build)
            for step, batch in zip(range(begun + 1, begun + steps + 1), batches, strict=False):
                log.append(id_records(step, batch))
    last = max(begun + steps for begun, steps, _ in segments)
    made = replace(
        description(run),
        planned_steps=last,
        planned_passes=-(-last * BATCH // INSTANCES),
        hosts=segments[0][2],
        loader=loader,
    )
    made.save()
    return made


def audited(run: Path) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(main, ["audit", "run", str(run), "--json"])
    assert done.exit_code in {0, 1}, done.output
    return done.exit_code, json.loads(done.stdout.splitlines()[-1])


def test_the_first_repeat_of_double_sharding_is_that_of_an_independent_loop(
    source: InstanceSource, tmp_path: Path
):
    steps = INSTANCES // BATCH
    run = read(source, "double_shard", tmp_path / "run", (0, steps, HOSTS))
    seen: dict[int, int] = {}
    repeats: list[tuple[int, int]] = []
    raw = (run.path / "ids.bin").read_bytes()[16:]
    for place in range(0, len(raw), 24):
        step = int.from_bytes(raw[place : place + 4], "little")
        instance = int.from_bytes(raw[place + 8 : place + 16], "little")
        if instance in seen:
            repeats.append((step, instance))
        seen.setdefault(instance, step)
    code, found = audited(run.path)
    first, instance = repeats[0]
    assert code == 1
    assert found["first_repeat"]["step"] == first
    assert found["first_repeat"]["instance"] == instance
    assert found["first_repeat"]["previous_step"] == seen[instance]
    assert found["first_repeat"]["tokens"] == first * BATCH * LENGTH
    # N / (S x batch) + 1, the batch being that of all hosts.
    assert first == INSTANCES // (HOSTS * BATCH) + 1 == 9
    assert first == first_repeat_step(INSTANCES, BATCH, HOSTS)
    assert (found["repeated"], found["unique"]) == (len(repeats), len(seen))
    assert found["unique"] == INSTANCES // HOSTS
    assert found["coverage"] == 1 / HOSTS
    assert found["multiplicity"] == {str(HOSTS): INSTANCES // HOSTS}
    assert (found["cross_host"], found["same_step_duplicates"]) == (0, 0)
    assert found["construction"] == "double_sharding"
    assert found["period_draws"] == INSTANCES // HOSTS**2


def test_the_resume_fault_is_named_where_the_run_log_tells_of_the_resume(
    source: InstanceSource, tmp_path: Path
):
    run = read(source, "double_shard_resume", tmp_path / "run", (0, 5, HOSTS), (5, 10, HOSTS))
    events = [
        {"event": "start", "time": 0, "segment": 0, "resumed_from_step": None},
        {"event": "step", "time": 0, "step": 5, "tokens": 5 * BATCH * LENGTH},
        {"event": "start", "time": 1, "segment": 1, "resumed_from_step": 5},
        {"event": "step", "time": 1, "step": 15, "tokens": 15 * BATCH * LENGTH},
    ]
    text = "".join(json.dumps(event) + "\n" for event in events)
    (run.path / "log.jsonl").write_text(text)
    code, found = audited(run.path)
    assert code == 1
    # Before it has read its share once, the loader goes back to data step 5 / 8.
    assert found["first_repeat"]["step"] == 6
    assert found["first_repeat"]["previous_step"] == 1
    assert found["construction"] == "double_sharding_with_resume_fault"


@pytest.mark.parametrize(
    "segments",
    [
        [(0, 64, 8)],
        [(0, 40, 8), (24, 40, 2)],
        [(0, 30, 2), (20, 30, 8), (50, 14, 4)],
        [(0, 128, 8), (100, 40, 8)],
    ],
)
def test_sound_runs_are_sound_whatever_was_replayed(
    source: InstanceSource, tmp_path: Path, segments: list[tuple[int, int, int]]
):
    run = read(source, "batch_strided", tmp_path / "run", *segments)
    code, found = audited(run.path)
    last = max(begun + steps for begun, steps, _ in segments)
    written = sum(steps for _, steps, _ in segments)
    assert (code, found["sound"], found["repeated"], found["construction"]) == (0, True, 0, None)
    assert found["draws"] == last * BATCH
    assert found["replayed_draws"] == (written - last) * BATCH
    assert found["planned_repeats"] == max(last - 64, 0) * BATCH
    assert found["log_bytes"] == 16 + written * BATCH * found["bytes_per_instance"]


def test_a_batch_changed_between_segments_is_followed(source: InstanceSource, tmp_path: Path):
    run = read(source, "batch_strided", tmp_path / "run", (0, 20, 4))
    order, position = GlobalOrder(0, len(source)), 20 * BATCH
    plan = ReadPlan(source, 0, 24, 4, position=position, batches=80)
    with IdLogWriter(run.path / "ids.bin") as log:
        batches = global_batches(plan, find_loader("batch_strided").build)
        for step, batch in enumerate(batches, start=21):
            log.append(id_records(step, batch))
    end = order.after(position, 80, 24)
    replace(
        run,
        batch_instances=24,
        earlier_batches=[[20, BATCH]],
        planned_passes=-(-end // INSTANCES),
    ).save()
    code, found = audited(run.path)
    assert (code, found["draws"]) == (0, 20 * BATCH + 80 * 24)
    assert found["planned_repeats"] == found["draws"] - found["unique"] > 0


@settings(max_examples=60)
@given(
    st.integers(8, 60),
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 12)), min_size=1, max_size=4),
)
def test_the_pass_of_a_step_is_that_of_the_trainers_order(
    instances: int, segments: list[tuple[int, int]]
):
    order, position, expected, ends = GlobalOrder(0, instances), 0, [0], list[list[int]]()
    for size, steps in segments:
        for _ in range(steps):
            start = order.batch_start(position, 0, size)
            expected.append(start // instances)
            position = start + size
        ends.append([len(expected) - 1, size])
    run = replace(
        description(Path()),
        source_instances=instances,
        batch_instances=segments[-1][0],
        earlier_batches=ends[:-1],
    )
    assert passes_of_steps(run, len(expected) - 1).tolist() == expected
