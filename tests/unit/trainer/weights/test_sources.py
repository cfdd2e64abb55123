import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

from evalmon.errors import CheckpointError, ConfigError
from evalmon.types import RunDescription, weights_fingerprint
from trainer.architecture import Olmo3Config
from trainer.weights.casting import Array
from trainer.weights.source import Given, Source
from trainer.weights.sources import open_source

Tensors = dict[str, Array]
Same = Callable[[Mapping[str, Array], Mapping[str, Array]], None]
MakePublished = Callable[..., Path]
TWELVE = {"num_hidden_layers": 12, "hidden_size": 4, "intermediate_size": 3, "head_dim": 2}


def _tensors(source: Source) -> Tensors:
    return {name: source.read(name) for name in source.dtypes}


def _save(path: Path, tree: Any) -> Path:
    with ocp.PyTreeCheckpointer() as writer:
        writer.save(path, tree)
    return path


@pytest.fixture
def config_file(tmp_path: Path, record: dict[str, Any]) -> Callable[..., Given]:
    """Write a ``config.json`` and give it as --config."""

    def write(**fields: Any) -> Given:
        file = tmp_path / "given.json"
        file.write_text(json.dumps({**record, **fields}))
        return Given(config=file)

    return write


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_published_folders_are_read(
    make_published: MakePublished, read_folder: Any, same: Same, shards: int, dtype: str
) -> None:
    folder = make_published(shards=shards, dtype=dtype, fields={"dtype": dtype})
    (folder / "tokenizer.json").write_text("{}")
    source = open_source(folder)
    same(_tensors(source), read_folder(folder))
    assert source.form == "huggingface"
    assert source.model.config.dtype == ("float32" if dtype == "float16" else dtype)
    assert source.companions == {"tokenizer.json": folder / "tokenizer.json"}
    assert source.model.warnings == ()


def test_a_dtype_in_the_configuration_that_is_not_the_tensors_is_warned_of(
    make_published: MakePublished,
) -> None:
    (warning,) = open_source(make_published(fields={"dtype": "bfloat16"})).model.warnings
    assert "dtype is 'bfloat16', but the tensors are 'float32'" in warning


# Weights that are not in the file must never be left random.


def test_wrongly_prefixed_names_are_all_listed(make_published: MakePublished, draw: Any) -> None:
    folder = make_published()
    drawn = draw(json.loads((folder / "config.json").read_text()))
    shutil.rmtree(folder)
    wrong = {f"transformer.{name}": array for name, array in drawn.items()}
    folder = make_published(tensors=wrong, without=tuple(drawn))
    with pytest.raises(CheckpointError) as error:
        open_source(folder)
    said = str(error.value)
    assert "missing model.embed_tokens.weight, model.layers.{0-3}.self_attn.q_proj.weight" in said
    assert "unknown transformer.model.embed_tokens.weight" in said
    assert "transformer.lm_head.weight" in said


def test_no_head_and_not_tied_is_an_error(make_published: MakePublished) -> None:
    with pytest.raises(CheckpointError, match=r"missing lm_head\.weight; unknown none"):
        open_source(make_published(without=("lm_head.weight",)))


def test_a_different_head_although_tied_is_an_error(make_published: MakePublished) -> None:
    folder = make_published(fields={"tie_word_embeddings": True})
    with pytest.raises(
        CheckpointError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"
    ):
        open_source(folder)


def test_an_equal_head_although_tied_loads_untied(
    make_published: MakePublished, draw: Any, record: dict[str, Any]
) -> None:
    embedding = draw(record)["model.embed_tokens.weight"]
    tied = {"tie_word_embeddings": True}
    for without in ((), ("lm_head.weight",)):
        folder = make_published(
            str(len(without)), fields=tied, tensors={"lm_head.weight": embedding}, without=without
        )
        source = open_source(folder)
        np.testing.assert_array_equal(source.read("lm_head.weight"), embedding)
        assert source.model.to_record(np.dtype("f4"))["tie_word_embeddings"] is False
        assert bool(source.assumed) is bool(without)


def test_a_misshaped_tensor_and_a_contradicting_field_are_named(
    make_published: MakePublished,
) -> None:
    norm = {"model.norm.weight": np.ones(9, np.float32)}
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is \[9\], expected \[8\]"):
        open_source(make_published("a", tensors=norm))
    drawn = {"model.norm.weight": np.ones(8, np.float32)}  # tensors of the record, not the fields
    for number, (field, value, found) in enumerate((
        ("hidden_size", 16, 8), ("vocab_size", 100, 12), ("intermediate_size", 7, 6),
        ("num_hidden_layers", 8, 4),
    )):  # fmt: skip
        folder = make_published(str(number), fields={field: value}, tensors=drawn)
        with pytest.raises(
            CheckpointError, match=f"{field} is {value}, but the tensors have {found}"
        ):
            open_source(folder)


# Trees of other trainers.


@pytest.mark.parametrize("layers", ["text", "list"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda tree: {"params": tree, "opt_state": [{"mu": tree}], "step": 3},
        lambda tree: {"model": tree, "optimizer": {"nu": tree}},
        lambda tree: {"params": {"params": tree}, "opt_state": {}, "step": 3},
        lambda tree: {"model": {"params": tree}, "optimizer": {"m": np.zeros(2)}},
        lambda tree: tree,
    ],
    ids=["params", "model", "params-params", "model-params", "bare"],
)
def test_other_trees_load_with_layers_in_order_of_number(
    tmp_path: Path,
    record: dict[str, Any],
    draw: Any,
    published_tree: Any,
    config_file: Any,
    same: Same,
    *,
    wrap: Callable[[Any], Any],
    layers: str,
) -> None:
    tensors = draw({**record, **TWELVE})
    tree = published_tree(tensors)
    if layers == "list":
        tree["layers"] = [tree["layers"][str(i)] for i in range(12)]
    source = open_source(_save(tmp_path / "item", wrap(tree)), config_file(**TWELVE))
    same(_tensors(source), tensors)
    assert {"mu", "nu", "opt_state", "optimizer", "m"}.isdisjoint(source.dtypes)
    expected = set(wrap(tree)) - {"params", "model", *tree}
    assert {name.split("/")[0] for name in source.left_out} <= expected


def test_nnx_states_load_too(
    tmp_path: Path, record: dict[str, Any], draw: Any, published_tree: Any, config_file: Any,
    same: Same,
) -> None:  # fmt: skip
    tensors = draw(record)

    def boxed(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: boxed(value) for key, value in node.items()}
        return {"value": node}

    item = _save(tmp_path / "item", {"params": boxed(published_tree(tensors))})
    same(_tensors(open_source(item, config_file())), tensors)


def test_a_tree_that_is_not_ours_fails_by_name(
    tmp_path: Path, record: dict[str, Any], draw: Any, published_tree: Any, config_file: Any
) -> None:
    tree = published_tree(draw(record))
    tree["layers"]["04"] = tree["layers"].pop("3")
    with pytest.raises(CheckpointError, match=r"missing layers\.3\.self_attn.*unknown layers\.4"):
        open_source(_save(tmp_path / "zero", tree), config_file())
    other = _save(tmp_path / "other", {"net": {"w": np.zeros(2)}, "step": 1})
    with pytest.raises(CheckpointError, match="the tree has net, step, expected embed_tokens"):
        open_source(other)


def test_a_tree_without_configuration_asks_for_one(
    tmp_path: Path, record: dict[str, Any], draw: Any, published_tree: Any
) -> None:
    item = _save(tmp_path / "item", published_tree(draw(record)))
    with pytest.raises(ConfigError, match="give --config or --preset"):
        open_source(item)
    with pytest.raises(ConfigError, match="give one of them"):
        open_source(item, Given(tmp_path / "x.json", "tiny"))
    with pytest.raises(CheckpointError, match="width is 12, but the tensors have 8"):
        open_source(item, Given(preset="olmo3-1m"))


@pytest.mark.parametrize("preset", [None, "tiny"])
def test_a_tree_of_other_numbers_or_without_embedding_fails_by_name(
    tmp_path: Path, record: dict[str, Any], draw: Any, published_tree: Any, config_file: Any,
    preset: str | None,
) -> None:  # fmt: skip
    given = config_file() if preset is None else Given(preset=preset)
    tree = published_tree(draw(record))
    tree["norm"]["scale"] = np.ones(8, np.int8)
    tree["embed_tokens"] = {"kernel": tree["embed_tokens"]["embedding"]}
    with pytest.raises(CheckpointError, match=r"embed_tokens\.embedding is missing"):
        open_source(_save(tmp_path / "unnamed", tree), given)
    if preset is None:
        tree["embed_tokens"] = {"embedding": tree["embed_tokens"]["kernel"]}
        with pytest.raises(CheckpointError, match="norm/scale has dtype int8; expected one of"):
            open_source(_save(tmp_path / "int8", tree), given)


# Checkpoints of our runs.


@pytest.fixture
def run(
    tmp_path: Path, record: dict[str, Any], draw: Any, published_tree: Any
) -> tuple[Path, Tensors]:
    """A run directory with steps 90 and 100 of one model."""
    tensors = draw(record)
    path = tmp_path / "run"
    path.mkdir()
    (path / "tok.json").write_text("{}")
    config = Olmo3Config(12, 8, 4, 4, 2, 4, 6, window=3, rope_theta=10_000.0)
    RunDescription(
        name="r", path=path, adapter="olmo3",
        model={name: getattr(config, name) for name in Olmo3Config.__dataclass_fields__},
        tokenizer="tok.json", vocab_size=12, eos_id=5, sequence_length=64, batch_instances=1,
        planned_steps=100, planned_passes=1, source_instances=9, hosts=1, loader="batch_strided",
        seed=0, warmup_steps=1, recipe="r", loss={}, data="d",
    ).save()  # fmt: skip
    tree = published_tree(tensors)
    with ocp.CheckpointManager(path / "checkpoints") as manager:
        for step in (90, 100):
            progress = {
                "step": step, "tokens": 64 * step, "instances": step,
                "params_fingerprint": weights_fingerprint(tree),
            }  # fmt: skip
            manager.save(step, args=ocp.args.Composite(
                params=ocp.args.StandardSave(tree),
                optimizer=ocp.args.StandardSave({"mu": tree}),
                progress=ocp.args.JsonSave(progress),
            ))  # fmt: skip
    return path, tensors


def test_a_checkpoint_of_a_run_is_read_without_its_optimizer(
    run: tuple[Path, Tensors], same: Same
) -> None:
    path, tensors = run
    for given in (path / "checkpoints" / "100", path / "checkpoints" / "100" / "params"):
        source = open_source(given)
        same(_tensors(source), tensors)
        assert source.form == "checkpoint"
        assert source.left_out == ("optimizer", "progress")
        assert source.model.max_length == 64
        assert source.model.eos_id == 5
        assert source.model.config.window == 3
        assert source.companions == {"tokenizer.json": path / "tok.json"}
        assert dict(source.origin) == {"run": "r", "step": 100, "tokens": 6400}
        assert source.fingerprint is not None


def test_of_several_steps_none_is_picked(run: tuple[Path, Tensors]) -> None:
    path, _ = run
    for given in (path, path / "checkpoints"):
        with pytest.raises(CheckpointError, match="checkpoints holds 90, 100; give one of them"):
            open_source(given)


def test_an_unfinished_step_is_refused(run: tuple[Path, Tensors]) -> None:
    step = run[0] / "checkpoints" / "100"
    (step / "_CHECKPOINT_METADATA").unlink()
    with pytest.raises(CheckpointError, match="never ended"):
        open_source(step)


def test_a_configuration_that_is_not_asked_for_is_refused(
    run: tuple[Path, Tensors], make_published: MakePublished
) -> None:
    for path in (run[0] / "checkpoints" / "100", make_published()):
        with pytest.raises(ConfigError, match=r"--preset tiny: .* says what the model is"):
            open_source(path, Given(preset="tiny"))


def test_what_is_nothing_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        open_source(tmp_path / "gone")
    with pytest.raises(CheckpointError, match=r"not recognized as weights; expected config\.json"):
        open_source(tmp_path)
