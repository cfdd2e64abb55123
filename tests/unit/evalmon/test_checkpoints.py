"""Checkpoints: committed ones only, the newest by number, whole and in their stored dtype."""

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

from evalmon import checkpoints
from evalmon.errors import CheckpointError
from evalmon.types import (
    CheckpointRef,
    ModelDescription,
    RunDescription,
    weights_fingerprint,
)

TREE = {
    "embed": {"embedding": np.arange(12, dtype=np.float32).reshape(3, 4) + 1.001},
    "layers": {"0": {"scale": np.ones(4, np.float32)}, "10": {"scale": np.zeros(4, np.float32)}},
}


def description(path: Path) -> RunDescription:
    return RunDescription(
        name="run", path=path, adapter="none", model={}, tokenizer="t", vocab_size=3, eos_id=0,
        sequence_length=8, batch_instances=2, planned_steps=10, planned_passes=1,
        source_instances=20, hosts=1, loader="batch_strided", seed=0, warmup_steps=1, recipe="r",
        loss={}, data="d",
    )  # fmt: skip


def save(run: Path, *steps: int, tree: Mapping[str, Any] = TREE, **record: Any) -> None:
    with ocp.CheckpointManager(run / "checkpoints") as manager:
        for step in steps:
            manager.save(
                step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardSave(tree),
                    optimizer=ocp.args.StandardSave({"count": np.int32(step)}),
                    progress=ocp.args.JsonSave({"step": step, "tokens": 16 * step, **record}),
                ),
            )
        manager.wait_until_finished()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with committed checkpoints at steps 0 and 20."""
    path = tmp_path_factory.mktemp("saved") / "run"
    path.mkdir()
    save(path, 0, 20)
    return path


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> RunDescription:
    shutil.copytree(saved, tmp_path / "run")
    return description(tmp_path / "run")


def steps(run: RunDescription) -> list[int]:
    return [ref.step for ref in checkpoints.find(run).committed]


def test_a_run_before_its_first_save_has_no_checkpoints(tmp_path: Path):
    assert checkpoints.find(description(tmp_path)).committed == ()


def test_tokens_come_from_the_checkpoints_own_record(run: RunDescription):
    found = checkpoints.find(run)
    folder = run.path / "checkpoints"
    assert found.committed == (
        CheckpointRef("run", 0, 0, folder / "0"),
        CheckpointRef("run", 20, 320, folder / "20"),
    )
    assert found.unfinished == ()
    assert found.ignored == ()


def test_an_unfinished_newest_step_is_listed_and_counted_once_it_completes(run: RunDescription):
    folder = run.path / "checkpoints"
    marker = folder / "20" / "commit_success.txt"
    content = marker.read_bytes()
    marker.unlink()
    (folder / "30.orbax-checkpoint-tmp").mkdir()
    (folder / "40.orbax-checkpoint-tmp-123").mkdir()
    (folder / "50").mkdir()  # made, but never written
    (folder / "latest").symlink_to("50")
    found = checkpoints.find(run)
    assert [ref.step for ref in found.committed] == [0]
    assert [path.name for path in found.unfinished] == [
        "20", "30.orbax-checkpoint-tmp", "40.orbax-checkpoint-tmp-123", "50",
    ]  # fmt: skip
    assert [path.name for path in found.ignored] == ["latest"]
    marker.write_bytes(content)
    assert steps(run) == [0, 20]


@pytest.mark.parametrize("item", ["params", "progress", "_CHECKPOINT_METADATA"])
def test_a_step_that_lacks_a_part_is_unfinished(run: RunDescription, item: str):
    place = run.path / "checkpoints/20" / item
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    found = checkpoints.find(run)
    assert [ref.step for ref in found.committed] == [0]
    assert [path.name for path in found.unfinished] == ["20"]


def rename(run: RunDescription, step: int, name: str, new_step: int) -> None:
    folder = run.path / "checkpoints"
    (folder / str(step)).rename(folder / name)
    record = next((folder / name / "progress").rglob("metadata"))
    record.write_text(json.dumps({"step": new_step, "tokens": 1, "instances": 1}))


@pytest.mark.parametrize(
    ("first", "second", "newest"),
    [
        ("ppo_run_100", "ppo_run_200", 200),
        ("100000", "0900000", 900000),
        ("step_500", "step_2500", 2500),
    ],
)
def test_the_newest_is_the_highest_number_not_the_last_name(
    run: RunDescription, first: str, second: str, newest: int
):
    rename(run, 0, first, int(first.rsplit("_", maxsplit=1)[-1]))
    rename(run, 20, second, newest)
    shutil.copytree(
        run.path / "checkpoints" / second, run.path / "checkpoints" / f"{second}_backup"
    )
    (run.path / "checkpoints/handpicked").mkdir()
    found = checkpoints.find(run)
    assert found.committed[-1].step == newest
    assert [path.name for path in found.ignored] == sorted([f"{second}_backup", "handpicked"])


def test_two_folders_of_one_step_are_an_error_that_names_both(run: RunDescription):
    folder = run.path / "checkpoints"
    shutil.copytree(folder / "20", folder / "0020")
    with pytest.raises(CheckpointError, match="both mean step 20") as caught:
        checkpoints.find(run)
    assert str(folder / "0020") in str(caught.value)
    assert str(folder / "20") in str(caught.value)


def test_a_folder_renamed_to_another_step_is_refused(run: RunDescription):
    (run.path / "checkpoints/20").rename(run.path / "checkpoints/30")
    with pytest.raises(CheckpointError, match="expected step 30"):
        checkpoints.find(run)


def test_a_progress_record_without_tokens_is_refused(run: RunDescription):
    record = next((run.path / "checkpoints/20/progress").rglob("metadata"))
    record.write_text(json.dumps({"step": 20, "instances": 1}))
    with pytest.raises(CheckpointError, match="expected step 20 and its tokens"):
        checkpoints.find(run)


def test_parameters_come_back_bit_equal_without_the_optimizer(run: RunDescription):
    shutil.rmtree(run.path / "checkpoints/20/optimizer")
    found = checkpoints.restore(checkpoints.find(run).committed[-1])
    np.testing.assert_array_equal(found.tree["embed"]["embedding"], TREE["embed"]["embedding"])
    assert set(found.tree["layers"]) == {"0", "10"}
    assert isinstance(found.tree["layers"]["0"]["scale"], np.ndarray)
    assert found.fingerprint == weights_fingerprint(TREE)


def test_equal_weights_have_equal_fingerprints_at_any_step(run: RunDescription):
    first, last = checkpoints.find(run).committed
    assert checkpoints.restore(first).fingerprint == checkpoints.restore(last).fingerprint


def test_a_fingerprint_follows_names_shapes_dtypes_and_bytes():
    base = np.arange(6, dtype=np.float32)
    trees = [
        {"a": base},
        {"b": base},
        {"a": base.reshape(2, 3)},
        {"a": base.astype(np.float64)},
        {"a": np.nextafter(base, 9)},
        {"a": {"a": base}},
        {"a": base, "b": base},
    ]
    prints = [weights_fingerprint(tree) for tree in trees]
    assert len(set(prints)) == len(trees)
    assert weights_fingerprint({"b": base, "a": base}) == prints[-1]
    strided = np.arange(12, dtype=np.float32)[::2] / 2
    assert weights_fingerprint({"a": strided}) == prints[0]


def test_a_vanished_checkpoint_is_one_clear_error(run: RunDescription):
    ref = checkpoints.find(run).committed[-1]
    shutil.rmtree(ref.path)
    with pytest.raises(CheckpointError, match="step 20 of run run is gone") as caught:
        checkpoints.restore(ref)
    assert str(ref.path) in str(caught.value)
    assert steps(run) == [0]


@pytest.fixture(scope="module")
def one_array(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one array.

    After one array fails, Orbax closes its event loop while TensorStore still reads the
    others, whose answers then raise where nobody listens, in whatever test runs next.
    """
    path = tmp_path_factory.mktemp("one") / "run"
    path.mkdir()
    save(path, 20, tree={"table": np.random.default_rng(0).normal(size=(64, 64))})
    return path


@pytest.mark.parametrize("damage", ["cut", "emptied", "metadata", "chunk missing"])
def test_a_damaged_checkpoint_is_one_clear_error(one_array: Path, tmp_path: Path, damage: str):
    shutil.copytree(one_array, tmp_path / "run")
    (ref,) = checkpoints.find(description(tmp_path / "run")).committed
    place = ref.path / "params"
    data = max((path for path in place.rglob("d/*")), key=lambda path: path.stat().st_size)
    match damage:
        case "cut":
            data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
        case "emptied":
            data.write_bytes(b"")
        case "metadata":
            (place / "_METADATA").write_text('{"tree_metadata": ')
        case _:
            data.unlink()
    with pytest.raises(CheckpointError, match="cut off or damaged") as caught:
        checkpoints.restore(ref)
    assert str(place) in str(caught.value)


def test_a_flipped_bit_is_found_by_the_fingerprint_that_was_saved(tmp_path: Path):
    tree = {"table": np.random.default_rng(0).normal(size=(64, 64))}
    run = description(tmp_path)
    save(tmp_path, 20, tree=tree, params_fingerprint=weights_fingerprint(tree))
    (ref,) = checkpoints.find(run).committed
    assert checkpoints.restore(ref).fingerprint == weights_fingerprint(tree)
    data = max((ref.path / "params").rglob("d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match=r"fingerprint .* was saved|cut off or damaged"):
        checkpoints.restore(ref)


def test_tokens_that_are_no_number_are_refused(run: RunDescription):
    record = next((run.path / "checkpoints/20/progress").glob("metadata"))
    record.write_text('{"step": 20, "tokens": "many"}')
    with pytest.raises(CheckpointError, match=r"its progress record is .*'many'"):
        checkpoints.find(run)


def test_what_is_left_of_a_failed_restore_prints_nothing(monkeypatch: pytest.MonkeyPatch):
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda late: reported.append(late.exc_value))
    checkpoints._ignore_late_readers.__wrapped__()  # pyright: ignore[reportPrivateUsage] - cached
    other = RuntimeError("something else")
    for error in (RuntimeError("Event loop is closed"), other):
        sys.unraisablehook(SimpleNamespace(exc_value=error))  # pyright: ignore[reportArgumentType] - what the interpreter passes
    assert reported == [other]


def weights_folder(path: Path, tree: Any = TREE, provenance: str = "") -> Path:
    """Write a folder of weights outside a run."""
    path.mkdir()
    with ocp.PyTreeCheckpointer() as writer:
        writer.save((path / "params").absolute(), tree)
    ModelDescription(path / "model.json", "other", {"layers": 2}, 3, 8).save()
    if provenance:
        (path / "provenance.json").write_text(provenance)
    return path


def test_a_checkpoint_of_a_run_is_opened_with_what_its_model_is(run: RunDescription):
    run.save()
    described, found = checkpoints.open_weights(run.path / "checkpoints/20")
    assert described == run.model_description
    assert found.fingerprint == weights_fingerprint(TREE)


def test_a_weights_folder_is_opened_with_what_its_model_is(tmp_path: Path):
    expected = weights_fingerprint(TREE)
    record = json.dumps({"params_fingerprint": expected, "source": "x"})
    path = weights_folder(tmp_path / "w", provenance=record)
    described, found = checkpoints.open_weights(path)
    assert described == ModelDescription(path / "model.json", "other", {"layers": 2}, 3, 8)
    assert found.fingerprint == expected
    assert checkpoints.open_weights(weights_folder(tmp_path / "v"))[1].fingerprint == expected


def test_weights_other_than_their_provenance_says_are_refused(tmp_path: Path):
    path = weights_folder(tmp_path / "w", provenance='{"params_fingerprint": "0123"}')
    with pytest.raises(CheckpointError, match=r"fingerprint \w+, but 0123 was saved"):
        checkpoints.open_weights(path)
    (path / "provenance.json").write_text("[1]")
    with pytest.raises(CheckpointError, match=r"provenance.json is no JSON object"):
        checkpoints.open_weights(path)


def test_what_is_neither_is_refused_with_what_to_give(run: RunDescription, tmp_path: Path):
    run.save()
    step = run.path / "checkpoints/20"
    published = tmp_path / "published"
    published.mkdir()
    (published / "config.json").write_text("{}")
    bare = tmp_path / "bare"
    bare.mkdir()
    ModelDescription(bare / "model.json", "other", {}, 3, 8).save()
    for path, says in {
        tmp_path / "absent": "no such folder; give RUN/checkpoints/STEP or a weights folder",
        run.path: "a run; give one checkpoint of it",
        published: "published weights; make a weights folder of them first: python -m trainer",
        tmp_path: r"no weights folder \(no model.json\)",
        bare: "bare/params: no such folder; convert",
    }.items():
        with pytest.raises(CheckpointError, match=says) as caught:
            checkpoints.open_weights(path)
        assert str(path) in str(caught.value)
    (step / "commit_success.txt").unlink()
    with pytest.raises(CheckpointError, match="checkpoints/20: unfinished or damaged"):
        checkpoints.open_weights(step)


MOMENTS = {"mu": np.zeros((64, 4), np.float32), "nu": np.zeros((64, 4), np.float32)}
LAYERS = [{"scale": np.full(4, i, np.float32)} for i in range(12)]


@pytest.mark.parametrize(
    "tree",
    [
        {"layers": LAYERS},
        {"layers": {str(i): layer for i, layer in enumerate(LAYERS)}},
        {"params": {"layers": LAYERS}, "opt_state": (MOMENTS, None), "step": np.int32(7)},
        {"model": {"layers": LAYERS}, "optimizer": MOMENTS},
        {"params": {"params": {"layers": LAYERS}}, "opt_state": MOMENTS, "step": np.int32(7)},
    ],
    ids=["list", "text", "params", "model", "params/params"],
)
def test_trees_of_other_layouts_are_read_in_order(tmp_path: Path, tree: Any):
    _, found = checkpoints.open_weights(weights_folder(tmp_path / "w", tree))
    assert set(found.tree) == {"layers"}
    assert list(found.tree["layers"]) == [str(i) for i in range(12)]
    for number, layer in found.tree["layers"].items():
        np.testing.assert_array_equal(layer["scale"], np.full(4, number, np.float32))
    assert found.fingerprint == weights_fingerprint({"layers": dict(found.tree["layers"])})


def test_what_stands_beside_the_parameters_is_not_read(tmp_path: Path):
    tree = {"params": TREE, "opt_state": {"mu": np.random.default_rng(0).normal(size=(512, 512))}}
    path = weights_folder(tmp_path / "w", tree)
    (data,) = [f for f in (path / "params").rglob("d/*") if f.stat().st_size > 512 * 512]
    data.write_bytes(data.read_bytes()[:4096])
    assert checkpoints.open_weights(path)[1].fingerprint == weights_fingerprint(TREE)


def test_a_state_without_parameters_is_refused_by_its_names(tmp_path: Path):
    path = weights_folder(tmp_path / "w", {"weights": TREE, "opt_state": MOMENTS})
    with pytest.raises(CheckpointError, match=r"holds \['opt_state', 'weights'\]") as caught:
        checkpoints.open_weights(path)
    assert str(path / "params") in str(caught.value)
