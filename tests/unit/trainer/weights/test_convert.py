import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

from evalmon import checkpoints
from evalmon.errors import CheckpointError, ConfigError, EvalmonError, WriteError
from evalmon.types import ModelDescription, weights_fingerprint
from trainer import rundir
from trainer.weights import targets
from trainer.weights.casting import Array
from trainer.weights.convert import Options, convert
from trainer.weights.huggingface import PublishedModel
from trainer.weights.source import ADAPTER, Given
from trainer.weights.sources import open_source

Tensors = dict[str, Array]
Same = Callable[[Mapping[str, Array], Mapping[str, Array]], None]
MakePublished = Callable[..., Path]
Read = Callable[[Path], Tensors]
YARN = {
    "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 8.0,
    "original_max_position_embeddings": 16, "beta_fast": 32.0, "beta_slow": 1.0,
    "attention_factor": 1.2079441541679836,
}  # fmt: skip
DEEP = {
    "num_hidden_layers": 8,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": YARN,
    },
}


def _config(folder: Path) -> PublishedModel:
    return PublishedModel.from_record(json.loads((folder / "config.json").read_text()), "x")


def _only(folder: Path, *kept: Path) -> None:
    """Assert that a folder holds nothing else, hidden leftovers included."""
    assert sorted(folder.iterdir()) == sorted(kept)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_published_to_orbax_and_back_is_bit_equal(
    tmp_path: Path, make_published: MakePublished, read_folder: Read, same: Same, dtype: str
) -> None:
    source = make_published(dtype=dtype, shards=3, fields={**DEEP, "dtype": dtype})
    (source / "tokenizer.json").write_text('{"a": 1}')
    (source / "generation_config.json").write_text('{"b": 2}')
    facts = convert(source, tmp_path / "weights", Options())
    assert facts["dtype"] == f"{dtype}, kept"
    back = convert(tmp_path / "weights", tmp_path / "back", Options(max_shard_size="300B"))
    same(read_folder(tmp_path / "back"), read_folder(source))
    assert _config(tmp_path / "back") == _config(source)
    assert back["params_fingerprint"] == facts["params_fingerprint"]
    for name in ("tokenizer.json", "generation_config.json"):
        assert (tmp_path / "back" / name).read_text() == (source / name).read_text()


@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_through_maxtext_and_back_is_bit_equal(
    tmp_path: Path, make_published: MakePublished, read_folder: Read, same: Same, *, dtype: str,
    scan: bool,
) -> None:  # fmt: skip
    source = make_published(dtype=dtype, fields={**DEEP, "dtype": dtype})
    there = convert(source, tmp_path / "mt", Options(to="maxtext", scan=scan))
    assert there["result"]["scanned"] is scan
    ours = convert(tmp_path / "mt", tmp_path / "weights", Options())
    convert(tmp_path / "weights", tmp_path / "back", Options())
    same(read_folder(tmp_path / "back"), read_folder(source))
    assert _config(tmp_path / "back") == _config(source)
    assert ours["params_fingerprint"] == there["params_fingerprint"]
    assert ours["source"]["left_out"] == ["step"]


def test_maxtext_finds_its_own_tree(
    tmp_path: Path, make_published: MakePublished, read_folder: Read
) -> None:
    """Names, stacking and the step's record are MaxText's, read here with Orbax alone."""
    source = make_published(fields=DEEP)
    convert(source, tmp_path / "mt", Options(to="maxtext"))
    with ocp.CheckpointManager(tmp_path / "mt", item_names=("items",)) as manager:
        assert manager.latest_step() == 0
        assert manager.metadata(0).custom_metadata == {"scan_layers": True}
    with ocp.PyTreeCheckpointer() as reader:
        tree = reader.restore(tmp_path / "mt" / "0" / "items")
    assert set(tree) == {"params", "step", "opt_state"}
    params, tensors = tree["params"]["params"], read_folder(source)
    assert set(params) == {"token_embedder", "decoder"}
    assert set(params["decoder"]) == {"layers", "decoder_norm", "logits_dense"}
    stack = params["decoder"]["layers"]["layers_1"]["attention"]["out"]["kernel"]
    expected = tensors["model.layers.5.self_attn.o_proj.weight"].T.reshape(4, 4, 8)
    np.testing.assert_array_equal(stack[:, 1], expected)


@pytest.mark.parametrize("given", ["", "0", "0/items"])
def test_a_maxtext_checkpoint_is_found_from_each_of_its_folders(
    tmp_path: Path, make_published: MakePublished, given: str
) -> None:
    convert(make_published(), tmp_path / "mt", Options(to="maxtext"))
    assert open_source(tmp_path / "mt" / given).form == "maxtext"


def test_a_maxtext_checkpoint_without_configuration_says_what_was_assumed(
    tmp_path: Path, make_published: MakePublished, read_folder: Read, same: Same
) -> None:
    source = make_published()
    convert(source, tmp_path / "mt", Options(to="maxtext"))
    (tmp_path / "mt" / "provenance.json").unlink()
    facts = convert(tmp_path / "mt", tmp_path / "ours", Options())
    (assumed,) = facts["assumed"]
    assert "window 4096, rope_theta 500000, norm_eps 1e-06" in assumed
    assert facts["model"]["window"] == 4096
    given = Options(given=Given(config=source / "config.json"), to="hf")
    facts = convert(tmp_path / "mt", tmp_path / "back", given)
    assert facts["assumed"] == []
    same(read_folder(tmp_path / "back"), read_folder(source))
    assert _config(tmp_path / "back") == _config(source)
    with pytest.raises(CheckpointError, match="width is 128 in the configuration, but the tensors"):
        convert(tmp_path / "mt", tmp_path / "no", Options(given=Given(preset="tiny")))


def test_a_weights_folder_is_what_the_monitor_reads(
    tmp_path: Path, make_published: MakePublished, read_folder: Read, published_tree: Any
) -> None:
    source = make_published()
    facts = convert(source, tmp_path / "weights", Options())
    described, parameters = checkpoints.open_weights(tmp_path / "weights")
    assert described == ModelDescription(
        path=tmp_path / "weights" / "model.json",
        adapter=ADAPTER,
        model=facts["model"],
        vocab_size=12,
        max_length=64,
        eos_id=5,
    )
    expected = weights_fingerprint(published_tree(read_folder(source)))
    assert parameters.fingerprint == facts["params_fingerprint"] == expected


def test_the_adapter_is_the_one_that_runs_name() -> None:
    assert ADAPTER == rundir.ADAPTER


def test_a_cast_is_said_in_the_result(
    tmp_path: Path, make_published: MakePublished, read_folder: Read, bfloat16: np.dtype[Any]
) -> None:
    near_one = {"model.norm.weight": np.full(8, 1.001, np.float32)}
    source = make_published(tensors=near_one)
    facts = convert(source, tmp_path / "weights", Options(dtype="bfloat16"))
    assert facts["dtype"] == "float32 -> bfloat16"
    assert (facts["dtype_before"], facts["dtype_after"]) == ({"float32": 47}, {"bfloat16": 47})
    assert facts["model"]["dtype"] == "bfloat16"
    convert(tmp_path / "weights", tmp_path / "back", Options())
    back = read_folder(tmp_path / "back")
    for name, array in read_folder(source).items():
        assert back[name].tobytes() == array.astype(bfloat16).tobytes()
    assert back["model.norm.weight"].tolist() == [1.0] * 8
    assert json.loads((tmp_path / "back" / "config.json").read_text())["dtype"] == "bfloat16"


def test_values_that_overflow_are_counted_and_nothing_is_written(
    tmp_path: Path, make_published: MakePublished
) -> None:
    large = {"model.norm.weight": np.array([7e4, -7e4, 1, 1, 1, 1, 1, np.inf], np.float32)}
    source = make_published(tensors=large)
    for to in ("orbax", "hf", "maxtext"):
        with pytest.raises(
            ConfigError, match=r"--dtype float16: 2 values .* in model\.norm\.weight \(2\)"
        ):
            convert(source, tmp_path / "out", Options(to=to, dtype="float16"))
        _only(tmp_path, source)


def test_values_that_are_not_finite_are_reported_and_kept(
    tmp_path: Path, make_published: MakePublished, read_folder: Read, same: Same
) -> None:
    bad = {"model.norm.weight": np.array([np.nan, -np.inf, 1, 1, 1, 1, 1, 1], np.float32)}
    source = make_published(tensors=bad)
    facts = convert(source, tmp_path / "weights", Options())
    assert facts["non_finite_values"] == {"model.norm.weight": 2}
    convert(tmp_path / "weights", tmp_path / "back", Options())
    same(read_folder(tmp_path / "back"), read_folder(source))


def test_rows_of_the_vocabulary_change_only_when_asked_and_are_recorded(
    tmp_path: Path, make_published: MakePublished, read_folder: Read, same: Same
) -> None:
    source = make_published()
    before = read_folder(source)
    facts = convert(source, tmp_path / "wide", Options(vocab_size=16))
    assert (facts["vocab_rows_before"], facts["vocab_rows_after"]) == (12, 16)
    convert(tmp_path / "wide", tmp_path / "hf-wide", Options())
    wide = read_folder(tmp_path / "hf-wide")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert wide[name].shape == (16, 8)
        np.testing.assert_array_equal(wide[name][:12], before[name])
        assert not wide[name][12:].any()
    assert _config(tmp_path / "hf-wide").config.vocab_size == 16
    facts = convert(tmp_path / "wide", tmp_path / "cut", Options(vocab_size=12))
    assert (facts["vocab_rows_before"], facts["vocab_rows_after"]) == (16, 12)
    same(read_folder(tmp_path / "cut"), before)
    assert _config(tmp_path / "cut") == _config(source)


def test_an_id_that_is_cut_off_becomes_null_with_a_warning(
    tmp_path: Path, make_published: MakePublished
) -> None:
    facts = convert(make_published(), tmp_path / "cut", Options(to="hf", vocab_size=6))
    assert (facts["config"]["eos_token_id"], facts["config"]["pad_token_id"]) == (5, None)
    assert facts["warnings"] == ["id 7 is outside the 6 rows kept; written as null"]


def test_provenance_says_where_weights_are_from(
    tmp_path: Path, make_published: MakePublished
) -> None:
    import hashlib

    snapshots = tmp_path / "models--allenai--Olmo-3" / "snapshots"
    snapshots.mkdir(parents=True)
    source = make_published().rename(snapshots / "a1b2c3")
    facts = convert(source, tmp_path / "weights", Options(dtype="bfloat16"))
    assert json.loads((tmp_path / "weights" / "provenance.json").read_text()) == facts
    assert facts["source"]["revision"] == "a1b2c3"
    assert facts["source"]["path"] == str(source)
    files = {file["file"]: file for file in facts["source"]["files"]}
    assert set(files) == {"config.json", "model.safetensors"}
    data = (source / "model.safetensors").read_bytes()
    assert files["model.safetensors"]["sha256"] == hashlib.sha256(data).hexdigest()
    assert files["model.safetensors"]["bytes"] == len(data)
    assert facts["versions"]["orbax-checkpoint"]
    assert (facts["tensors"], facts["earlier"]) == (47, [])
    later = convert(tmp_path / "weights", tmp_path / "back", Options())
    (earlier,) = later["earlier"]
    assert earlier["source"] == facts["source"]
    assert earlier["dtype"] == "float32 -> bfloat16"


@pytest.mark.parametrize("place", ["download", "field"])
def test_a_revision_is_found_outside_the_hubs_cache_too(
    tmp_path: Path, make_published: MakePublished, place: str
) -> None:
    source = make_published(fields={"_commit_hash": "beef"} if place == "field" else {})
    if place == "download":
        record = source / ".cache/huggingface/download/config.json.metadata"
        record.parent.mkdir(parents=True)
        record.write_text("beef\netag\n1.0\n")
    assert convert(source, tmp_path / "w", Options())["source"]["revision"] == "beef"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "int8"}, "--dtype 'int8': expected one of float32, bfloat16, float16"),
        ({"to": "torch"}, "--to 'torch': expected one of hf, orbax, maxtext"),
        ({"vocab_size": 0}, "--vocab-size 0"),
        ({"scan": True}, "--scan: only for --to maxtext, the result is orbax"),
        ({"scan": False, "to": "hf"}, "--no-scan: only for --to maxtext, the result is hf"),
        ({"max_shard_size": "1GB"}, "--max-shard-size: only for --to hf"),
        ({"max_shard_size": "big", "to": "hf"}, "--max-shard-size 'big'"),
        ({"given": Given(preset="tiny")}, "--preset tiny"),
    ],
)
def test_options_that_do_not_fit_are_one_clear_error(
    tmp_path: Path, make_published: MakePublished, options: dict[str, Any], said: str
) -> None:
    source = make_published()
    with pytest.raises(ConfigError) as error:
        convert(source, tmp_path / "out", Options(**options))
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    _only(tmp_path, source)


def test_six_layers_cannot_be_stacked_but_stand_apart(
    tmp_path: Path, make_published: MakePublished
) -> None:
    source = make_published(fields={"num_hidden_layers": 6})
    with pytest.raises(ConfigError, match=r"6 layers cannot be stacked .* give --no-scan"):
        convert(source, tmp_path / "mt", Options(to="maxtext"))
    _only(tmp_path, source)
    facts = convert(source, tmp_path / "mt", Options(to="maxtext", scan=False))
    assert facts["warnings"] == ["MaxText's last of 6 layers slides; in OLMo 3 it sees all tokens"]


def test_what_exists_is_left_alone(tmp_path: Path, make_published: MakePublished) -> None:
    source = make_published()
    taken = tmp_path / "taken"
    taken.mkdir()
    for dst in (taken, source, source / "below"):
        with pytest.raises(ConfigError, match=r"exists already|lies in the source"):
            convert(source, dst, Options())
    _only(taken)
    _only(source, source / "config.json", source / "model.safetensors")


@pytest.mark.parametrize("to", ["hf", "orbax", "maxtext"])
def test_a_failure_on_the_way_leaves_nothing(
    tmp_path: Path, make_published: MakePublished, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    source = make_published()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(targets.shutil, "copyfile", full)
    (source / "tokenizer.json").write_text("{}")
    with pytest.raises(WriteError, match="No space left on device"):
        convert(source, tmp_path / "new" / "deep" / "out", Options(to=to))
    _only(tmp_path, source)


def test_a_result_that_reads_back_wrongly_is_an_error(
    tmp_path: Path, make_published: MakePublished, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_published()
    write = targets.ShardWriter.write

    def damaged(self: Any, name: str, array: Array) -> None:
        write(self, name, array + 1 if name == "model.norm.weight" else array)

    monkeypatch.setattr(targets.ShardWriter, "write", damaged)
    with pytest.raises(WriteError, match=r"model\.norm\.weight reads back other than"):
        convert(source, tmp_path / "out", Options(to="hf"))
    _only(tmp_path, source)


@pytest.mark.parametrize("options", [Options(), Options(dtype="bfloat16")])
def test_a_source_that_is_not_what_was_recorded_is_refused(
    tmp_path: Path, make_published: MakePublished, options: Options
) -> None:
    source = make_published()
    convert(source, tmp_path / "weights", Options())
    file = tmp_path / "weights" / "provenance.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "params_fingerprint": "0" * 32}))
    with pytest.raises(CheckpointError, match=r"0{32} was recorded; its parameters are damaged"):
        convert(tmp_path / "weights", tmp_path / "out", options)
    _only(tmp_path, source, tmp_path / "weights")


def test_a_truncated_shard_leaves_nothing(tmp_path: Path, make_published: MakePublished) -> None:
    source = make_published(shards=2)
    shard = source / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-4])
    with pytest.raises(EvalmonError, match="cut off"):
        convert(source, tmp_path / "out", Options())
    _only(tmp_path, source)


def test_published_weights_can_be_written_again(
    tmp_path: Path, make_published: MakePublished, read_folder: Read, same: Same
) -> None:
    """Legacy settings become the form that every transformers version reads rightly."""
    legacy = {k: v for k, v in YARN.items() if k != "rope_theta"}
    source = make_published(
        fields={"rope_theta": 10_000.0, "rope_scaling": legacy}, without=("rope_parameters",)
    )
    convert(source, tmp_path / "out", Options(to="hf", max_shard_size="500B"))
    same(read_folder(tmp_path / "out"), read_folder(source))
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["rope_parameters"]["full_attention"] == YARN
    assert written["rope_parameters"]["sliding_attention"]["rope_type"] == "default"
    assert _config(tmp_path / "out").config == _config(source).config
