import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from evalmon.errors import CheckpointError, ConfigError, DataError, WriteError
from evalmon.types import ModelDescription, RunDescription
from trainer.config import TrainSettings
from trainer.data.index import TokenFolder
from trainer.rundir import create_run, open_run

MakeFolder = Callable[..., TokenFolder]

SETTINGS = TrainSettings(
    preset="tiny",
    steps=6,
    batch_instances=8,
    sequence_length=4,
    hosts=4,
    loader="double_shard",
    seed=3,
    checkpoint_every=2,
    learning_rate=0.01,
    warmup_steps=1,
)


def test_the_description_says_what_the_run_is(make_folder: MakeFolder, tmp_path: Path) -> None:
    data, fresh = make_folder(120, 43), make_folder(40, name="fresh")
    run = create_run(tmp_path / "run", "mine", SETTINGS, data.path, fresh.path)
    description = RunDescription.load(tmp_path / "run")
    assert description == run.description
    assert description.source_instances == 40
    assert description.planned_passes == 2
    assert description.vocab_size == 128
    assert description.model["vocab_size"] == 128
    assert description.loss["z_loss_included"] is False
    assert description.extra["loader_fault"]
    assert (description.data, description.fresh_data) == ("../data", "../fresh")
    assert description.resolve(description.tokenizer).is_file()
    assert (description.tokens_per_step, description.planned_tokens) == (32, 192)


def test_a_run_and_its_data_can_move_together(make_folder: MakeFolder, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    data = make_folder(160, name="here/data")
    run = create_run(tmp_path / "here/run", "mine", SETTINGS, data.path)
    first = run.source[0]["tokens"].tolist()
    shutil.move(tmp_path / "here", tmp_path / "there")
    moved = open_run(tmp_path / "there/run")
    assert moved.settings == run.settings
    assert moved.source[0]["tokens"].tolist() == first


def test_runs_that_differ_in_seed_or_loader_have_one_recipe(
    make_folder: MakeFolder, tmp_path: Path
) -> None:
    data = make_folder(160).path
    one = create_run(tmp_path / "one", "one", SETTINGS, data)
    sound = replace(SETTINGS, loader="batch_strided", seed=4)
    two = create_run(tmp_path / "two", "two", sound, data)
    assert one.description.recipe == two.description.recipe


def test_a_directory_with_a_run_is_not_started_over(
    make_folder: MakeFolder, tmp_path: Path
) -> None:
    data = make_folder(160).path
    create_run(tmp_path / "run", "mine", SETTINGS, data)
    with pytest.raises(ConfigError, match="already holds a run; go on with --resume"):
        create_run(tmp_path / "run", "mine", SETTINGS, data)


def test_changed_data_is_refused_at_resume(make_folder: MakeFolder, tmp_path: Path) -> None:
    data = make_folder(160)
    create_run(tmp_path / "run", "mine", SETTINGS, data.path)
    shutil.rmtree(data.path)
    make_folder(164)
    before = (tmp_path / "run/run.json").read_bytes()
    with pytest.raises(DataError, match=r"not the data the run was started on: .*file sizes"):
        open_run(tmp_path / "run", hosts=2)
    assert (tmp_path / "run/run.json").read_bytes() == before


def test_hosts_may_change_at_resume_and_nothing_else_does(
    make_folder: MakeFolder, tmp_path: Path
) -> None:
    run = create_run(tmp_path / "run", "mine", SETTINGS, make_folder(160).path)
    again = open_run(tmp_path / "run", hosts=2)
    assert again.settings == replace(SETTINGS, hosts=2)
    assert RunDescription.load(tmp_path / "run").hosts == 2
    assert again.description.recipe == run.description.recipe
    with pytest.raises(ConfigError, match="--hosts 3"):
        open_run(tmp_path / "run", hosts=3)


def test_what_is_not_a_run_of_this_trainer_is_refused(
    make_folder: MakeFolder, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"no run\.json"):
        open_run(tmp_path)
    run = create_run(tmp_path / "run", "mine", SETTINGS, make_folder(160).path)
    replace(run.description, adapter="other").save()
    with pytest.raises(CheckpointError, match="written by another trainer"):
        open_run(tmp_path / "run")
    replace(run.description, extra={**run.description.extra, "settings": 5}).save()
    with pytest.raises(CheckpointError, match="written by another trainer"):
        open_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"depth": 3}, "unknown field 'depth'"),
        ({"width": "a"}, "'width' is 'a', expected int > 0"),
        ({"layers": 0}, "'layers' is 0"),
        ({"vocab_size": 256}, "'vocab_size' is 256, but the run's is 128"),
    ],
)
def test_a_model_that_cannot_be_is_named_by_file_and_field(
    make_folder: MakeFolder, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    run = create_run(tmp_path / "run", "mine", SETTINGS, make_folder(160).path)
    model = {**run.description.model, **change}
    replace(run.description, model=model).save()
    with pytest.raises(ConfigError, match=rf"run\.json: field 'model': {says}"):
        open_run(tmp_path / "run")


def test_the_resolved_settings_and_the_meaning_of_the_loss_are_recorded(
    make_folder: MakeFolder, tmp_path: Path
) -> None:
    settings = replace(
        SETTINGS, recipe_name="olmo3-7b-stage1", z_weight=2e-5, loss_normalization="maxtext"
    )
    run = create_run(tmp_path / "run", "mine", settings, make_folder(160).path)
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert record["extra"]["settings"] == asdict(settings)
    assert record["loss"]["z_loss_weight"] == 2e-5
    # No filter masks instances, so the normalization changes nothing.
    assert record["loss"]["masked_tokens"] == "none"
    assert record["extra"]["start"] is None
    assert open_run(tmp_path / "run").settings == run.settings


def test_how_the_work_is_split_may_change_at_resume(
    make_folder: MakeFolder, tmp_path: Path
) -> None:
    create_run(tmp_path / "run", "mine", SETTINGS, make_folder(160).path)
    again = open_run(
        tmp_path / "run", mesh="data=1", accumulate=4, remat="dots", scan_layers=True, hosts=None
    )
    changed = replace(SETTINGS, mesh="data=1", accumulate=4, remat="dots", scan_layers=True)
    assert again.settings == changed
    assert open_run(tmp_path / "run").settings == changed
    assert again.stacked == again.model
    assert again.mesh().devices.size == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mesh": "data=3"}, r"data x fsdp = 3"),
        ({"mesh": "data=2"}, r"--mesh data=2.*: needs 2 devices, but there are 1"),
        ({"dtype": "float64"}, "JAX_ENABLE_X64=1"),
    ],
)
def test_devices_and_dtypes_that_are_not_there_make_nothing(
    make_folder: MakeFolder, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        create_run(tmp_path / "run", "mine", replace(SETTINGS, **change), make_folder(160).path)
    assert not (tmp_path / "run").exists()


def test_float64_is_trained_where_jax_has_it(make_folder: MakeFolder, tmp_path: Path) -> None:
    with jax.enable_x64(True):
        settings = replace(SETTINGS, dtype="float64")
        run = create_run(tmp_path / "run", "mine", settings, make_folder(160).path)
    assert run.model.dtype == "float64"


def test_a_weights_folder_gives_parameters_alone(make_folder: MakeFolder, tmp_path: Path) -> None:
    data = make_folder(160).path
    model = SETTINGS.model(128)
    weights = tmp_path / "weights"
    (weights / "params").mkdir(parents=True)
    ModelDescription(weights / "model.json", "olmo3", asdict(model), 128, 64).save()
    with pytest.raises(ConfigError, match="holds no optimizer; add --without-optimizer"):
        create_run(tmp_path / "run", "mine", replace(SETTINGS, init_from=str(weights)), data)
    settings = replace(SETTINGS, init_from=str(weights), init_optimizer=False)
    run = create_run(tmp_path / "run", "mine", settings, data)
    assert run.settings.init_from == "../weights"
    assert run.start is not None
    assert run.start.resolve() == weights
    assert run.description.extra["start"]["trained_in"] == "float32"
    fresh = create_run(tmp_path / "fresh", "fresh", SETTINGS, data)
    assert run.description.recipe != fresh.description.recipe
    other = replace(model, layers=5)
    ModelDescription(weights / "model.json", "olmo3", asdict(other), 128, 64).save()
    with pytest.raises(CheckpointError, match=r"layers\.4\..* but the run's model needs None"):
        create_run(tmp_path / "other", "other", settings, data)


def test_bad_tokens_stop_a_run_before_its_directory_is_made(
    make_folder: MakeFolder, tmp_path: Path
) -> None:
    data = make_folder(160).path
    tokens = np.fromfile(data / "s0-00000.npy", "<u4")
    tokens[9] = 64
    tokens.tofile(data / "s0-00000.npy")
    with pytest.raises(DataError, match="token id 64 at token 9"):
        create_run(tmp_path / "run", "mine", SETTINGS, data)
    assert not (tmp_path / "run").exists()


def test_less_than_a_batch_and_foreign_fresh_data_are_refused(
    make_folder: MakeFolder, tmp_path: Path
) -> None:
    small, data = make_folder(28, name="small"), make_folder(160)
    with pytest.raises(DataError, match="fewer than one batch of 8"):
        create_run(tmp_path / "run", "mine", SETTINGS, small.path)
    foreign = make_folder(160, vocab_size=63, name="foreign")
    with pytest.raises(DataError, match="another tokenizer"):
        create_run(tmp_path / "run", "mine", SETTINGS, data.path, foreign.path)


def test_a_directory_that_cannot_be_made_is_named(make_folder: MakeFolder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="cannot be written"):
        create_run(tmp_path / "file/run", "mine", SETTINGS, make_folder(160).path)


def test_repeats_are_asked_for_with_ratios_alone(make_folder: MakeFolder, tmp_path: Path) -> None:
    settings = replace(SETTINGS, max_repeats=3)
    with pytest.raises(ConfigError, match=r"--max-repeats 3: without --ratios"):
        create_run(tmp_path / "run", "mine", settings, make_folder(120, 43).path)
