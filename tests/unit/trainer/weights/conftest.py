"""Published folders small enough for unit tests, written without the code under test."""

import copy
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from trainer.weights.casting import Array

Tensors = dict[str, Array]
WriteFile = Callable[[Path, Mapping[str, Array]], None]
MakePublished = Callable[..., Path]

CODES = {"float64": "F64", "float32": "F32", "bfloat16": "BF16", "float16": "F16", "int8": "I8"}
RECORD: dict[str, Any] = {
    "architectures": ["Olmo3ForCausalLM"],
    "model_type": "olmo3",
    "vocab_size": 12,
    "hidden_size": 8,
    "intermediate_size": 6,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
    "sliding_window": 3,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "use_cache": True,
    "tie_word_embeddings": False,
    "eos_token_id": 5,
    "pad_token_id": 7,
    "bos_token_id": None,
    "dtype": "float32",
}


@pytest.fixture
def record() -> dict[str, Any]:
    """A ``config.json`` in which every length is another number."""
    return copy.deepcopy(RECORD)


@pytest.fixture
def shapes_of() -> Callable[[Mapping[str, Any]], dict[str, tuple[int, ...]]]:
    """Give the shapes that section ``Tensors`` of the published format lists."""

    def shapes(record: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        d, f, v = record["hidden_size"], record["intermediate_size"], record["vocab_size"]
        h = record["num_attention_heads"] * record["head_dim"]
        k = record["num_key_value_heads"] * record["head_dim"]
        names: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (v, d)}
        for i in range(record["num_hidden_layers"]):
            layer = f"model.layers.{i}"
            names |= {
                f"{layer}.self_attn.q_proj.weight": (h, d),
                f"{layer}.self_attn.k_proj.weight": (k, d),
                f"{layer}.self_attn.v_proj.weight": (k, d),
                f"{layer}.self_attn.o_proj.weight": (d, h),
                f"{layer}.self_attn.q_norm.weight": (h,),
                f"{layer}.self_attn.k_norm.weight": (k,),
                f"{layer}.post_attention_layernorm.weight": (d,),
                f"{layer}.post_feedforward_layernorm.weight": (d,),
                f"{layer}.mlp.gate_proj.weight": (f, d),
                f"{layer}.mlp.up_proj.weight": (f, d),
                f"{layer}.mlp.down_proj.weight": (d, f),
            }
        return names | {"model.norm.weight": (d,), "lm_head.weight": (v, d)}

    return shapes


@pytest.fixture
def draw(
    shapes_of: Callable[[Mapping[str, Any]], dict[str, tuple[int, ...]]],
) -> Callable[..., Tensors]:
    """Draw every tensor of a model."""

    def tensors(record: Mapping[str, Any], dtype: str = "float32") -> Tensors:
        rng = np.random.default_rng(0)
        return {
            name: rng.standard_normal(shape).astype(np.dtype(dtype))
            for name, shape in shapes_of(record).items()
        }

    return tensors


@pytest.fixture
def write_file() -> WriteFile:
    """Write one safetensors file."""

    def write(path: Path, tensors: Mapping[str, Array]) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        body = b""
        for name, array in tensors.items():
            data = np.ascontiguousarray(array).tobytes()
            header[name] = {
                "dtype": CODES[str(array.dtype)],
                "shape": list(array.shape),
                "data_offsets": [len(body), len(body) + len(data)],
            }
            body += data
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + body)

    return write


@pytest.fixture
def make_published(
    tmp_path: Path, record: dict[str, Any], draw: Callable[..., Tensors], write_file: WriteFile
) -> MakePublished:
    """Write a published folder: changed fields, dropped or changed tensors, shards."""

    def make(
        name: str = "hf",
        *,
        fields: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Array] | None = None,
        dtype: str = "float32",
        shards: int = 1,
        without: tuple[str, ...] = (),
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        written = {**record, **(fields or {})}
        drawn = draw(written if tensors is None else record, dtype) | dict(tensors or {})
        for field in without:
            written.pop(field, None)
            drawn.pop(field, None)
        (folder / "config.json").write_text(json.dumps(written))
        names = list(drawn)
        if shards == 1:
            write_file(folder / "model.safetensors", drawn)
            return folder
        weight_map: dict[str, str] = {}
        for number in range(shards):
            file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
            part = names[number::shards]
            write_file(folder / file, {n: drawn[n] for n in part})
            weight_map |= dict.fromkeys(part, file)
        index = {
            "metadata": {"total_size": sum(a.nbytes for a in drawn.values())},
            "weight_map": weight_map,
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder

    return make


@pytest.fixture
def read_folder() -> Callable[[Path], Tensors]:
    """Read all tensors of a folder of safetensors files, without the code under test."""
    dtypes = {code: np.dtype(name) for name, code in CODES.items()}

    def read(folder: Path) -> Tensors:
        found: Tensors = {}
        for file in sorted(folder.glob("*.safetensors")):
            data = file.read_bytes()
            start = 8 + int.from_bytes(data[:8], "little")
            for name, entry in json.loads(data[8:start]).items():
                if name != "__metadata__":
                    begin, end = entry["data_offsets"]
                    array = np.frombuffer(data[start + begin : start + end], dtypes[entry["dtype"]])
                    assert name not in found
                    found[name] = array.reshape(entry["shape"])
        return found

    return read


@pytest.fixture
def same() -> Callable[[Mapping[str, Array], Mapping[str, Array]], None]:
    """Assert that two sets of tensors are equal in names, shapes, dtypes and bits."""

    def check(one: Mapping[str, Array], other: Mapping[str, Array]) -> None:
        assert sorted(one) == sorted(other)
        for name, array in one.items():
            assert (array.dtype, array.shape) == (other[name].dtype, other[name].shape), name
            assert array.tobytes() == other[name].tobytes(), name

    return check


@pytest.fixture
def published_tree() -> Callable[[Mapping[str, Array]], dict[str, Any]]:
    """Turn published tensors into our tree: matrices transposed, layers as text."""

    def tree(tensors: Mapping[str, Array]) -> dict[str, Any]:
        root: dict[str, Any] = {}
        for name, array in tensors.items():
            *parents, _ = name.removeprefix("model.").split(".")
            node = root
            for parent in parents:
                node = node.setdefault(parent, {})
            if "embed" in name:
                node["embedding"] = array
            elif array.ndim == 2:
                node["kernel"] = np.ascontiguousarray(array.T)
            else:
                node["scale"] = array
        return root

    return tree


@pytest.fixture
def bfloat16() -> np.dtype[Any]:
    """The dtype that numpy itself lacks."""
    return np.dtype(ml_dtypes.bfloat16)


@pytest.fixture
def one_line() -> Callable[[BaseException], str]:
    """Give an error's text, which must be one clear line."""

    def text(error: BaseException) -> str:
        found = str(error)
        assert "\n" not in found
        assert not re.search(r"<.* object at 0x", found)
        return found

    return text
