"""A run that goes on with another batch, or on request with other data."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from evalmon.errors import CheckpointError, DataError
from evalmon.types import RunDescription
from tests.unit.trainer import loop_runs
from trainer.continuation import progress_at
from trainer.data.index import TokenFolder
from trainer.progress import Progress, last_committed
from trainer.rundir import Run, create_run, open_run

MakeFolder = Callable[..., TokenFolder]

SETTINGS = replace(loop_runs.SETTINGS, steps=12)


@pytest.fixture
def run(make_folder: MakeFolder, tmp_path: Path) -> Run:
    return create_run(tmp_path / "run", "run", SETTINGS, make_folder(8 * 26).path)


def committed(run: Run, step: int, position: int) -> None:
    """Leave behind the record of a checkpoint."""
    progress: Progress = {"step": step, "tokens": 32 * step, "position": position}
    place = run.description.path / "checkpoints" / str(step) / "progress"
    place.mkdir(parents=True)
    (place / "metadata").write_text(json.dumps(progress))


def stored(run: Run) -> RunDescription:
    return RunDescription.load(run.description.path)


def test_another_batch_is_noted_with_the_last_step_of_the_one_before(run: Run) -> None:
    committed(run, 3, 12)
    opened = open_run(run.description.path, batch_instances=8)
    assert (opened.settings.batch_instances, opened.description) == (8, stored(run))
    assert opened.description.batch_instances == 8
    assert opened.description.earlier_batches == [[3, 4]]
    assert [opened.description.draws_at(step) for step in (1, 3, 4, 12)] == [4, 12, 20, 84]
    # 12 of 26 are read, then one batch of 8; 6 are passed over, and 8 batches take 2.67 epochs.
    assert opened.description.planned_passes == 4


def test_a_batch_may_change_again_and_back_from_an_earlier_checkpoint(run: Run) -> None:
    committed(run, 3, 12)
    open_run(run.description.path, batch_instances=8)
    committed(run, 5, 34)
    again = open_run(run.description.path, batch_instances=2)
    assert again.description.earlier_batches == [[3, 4], [5, 8]]
    (again.description.path / "checkpoints" / "5" / "progress" / "metadata").unlink()
    fallen = open_run(run.description.path)
    assert fallen.description.earlier_batches == [[3, 4]]
    assert [fallen.description.draws_at(step) for step in (3, 5)] == [12, 16]
    back = open_run(run.description.path, batch_instances=4)
    assert back.description.earlier_batches == []
    assert [back.description.draws_at(step) for step in (3, 5)] == [12, 20]


def test_a_batch_that_changes_before_the_first_checkpoint_is_the_only_one(run: Run) -> None:
    opened = open_run(run.description.path, batch_instances=8)
    assert opened.description.earlier_batches == []
    assert opened.description.draws_at(2) == 16


def test_other_data_is_refused_by_what_differs(run: Run, make_folder: MakeFolder) -> None:
    tokens = run.source.index.folder.path / "s0-00000.npy"
    other = np.fromfile(tokens, "<u4")
    other[5] = (other[5] + 1) % 64
    folder = make_folder(8 * 26, name="other")
    other.tofile(tokens)
    with pytest.raises(DataError, match=r"its content is not what index.json was written for"):
        open_run(run.description.path)
    with pytest.raises(DataError, match=r"instances is 40, was 26.*--accept-changed-data"):
        open_run(run.description.path, data=make_folder(8 * 40, name="more").path)
    # The same content in another folder is the same data.
    same = open_run(run.description.path, data=folder.path)
    assert same.description.data_changes == []


def test_data_that_was_changed_on_request_marks_the_run(run: Run, make_folder: MakeFolder) -> None:
    committed(run, 3, 12)
    more = make_folder(8 * 40, name="more").path
    opened = open_run(run.description.path, data=more, accept_changed_data=True)
    assert opened.description == stored(run)
    assert opened.description.data_changes == [3]
    assert opened.description.source_instances == len(opened.source) == 40
    assert opened.description.resolve(opened.description.data).resolve() == more.resolve()
    again = open_run(run.description.path)
    assert again.description.data_changes == [3]
    # Without the checkpoint of the change it is made at the one before.
    committed(run, 5, 20)
    replace(again.description, data_changes=[5]).save()
    (run.description.path / "checkpoints" / "5" / "progress" / "metadata").unlink()
    fallen = open_run(run.description.path)
    assert fallen.description.data_changes == [3]


def test_other_data_is_planned_from_its_beginning(run: Run, make_folder: MakeFolder) -> None:
    """And the passes over what came before it stay planned."""
    committed(run, 3, 12)
    replace(run.description, planned_passes=3).save()
    path = run.description.path
    more = make_folder(8 * 40, name="more").path
    opened = open_run(path, data=more, accept_changed_data=True)
    assert opened.description.planned_passes == 3
    replace(opened.description, planned_passes=1).save()
    # 9 batches of 8 from position 0; from 12 on they would take 3 passes of 40.
    assert open_run(path, batch_instances=8).description.planned_passes == 2


def test_nothing_changes_where_nothing_is_changed(run: Run) -> None:
    before = (run.description.path / "run.json").read_bytes()
    assert open_run(run.description.path, accept_changed_data=True).settings == SETTINGS
    assert (run.description.path / "run.json").read_bytes() == before


def test_the_last_checkpoint_is_the_one_with_the_highest_step(run: Run) -> None:
    place = run.description.path / "checkpoints"
    assert last_committed(place) is None
    for step in (9, 10, 2):
        committed(run, step, 4 * step)
    (place / "11.orbax-checkpoint-tmp" / "progress").mkdir(parents=True)
    assert last_committed(place) == place / "10"
    assert progress_at(run.description) == {"step": 10, "tokens": 320, "position": 40}


def test_a_record_without_its_position_is_named(run: Run) -> None:
    committed(run, 3, 12)
    record = run.description.path / "checkpoints/3/progress/metadata"
    record.write_text(json.dumps({"step": 3, "tokens": 96, "instances": 12}))
    with pytest.raises(CheckpointError, match="'position' is None, expected a whole number"):
        progress_at(run.description)
    record.write_text("[]")
    with pytest.raises(CheckpointError, match="no JSON object"):
        progress_at(run.description)


def test_shares_of_sources_are_noted_as_planned(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder(8 * 6, 8 * 30)
    settings = replace(SETTINGS, ratios="s0=0.5,s1=0.5", instances=24, max_repeats=2)
    run = create_run(tmp_path / "run", "run", settings, folder.path)
    assert run.description.source_instances == 24
    assert run.description.upsampled == [[0, 6, 2]]
    assert asdict(stored(run)) == asdict(run.description)
