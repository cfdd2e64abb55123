"""What a published ``config.json`` says an OLMo 3 is, and the one form transformers reads right.

Class defaults of transformers are not OLMo 3's, a flat or legacy rotary setting is misread by
some versions, and the default list of layer types forgets that the last layer is full. So
nothing is left to defaults here: what is missing is an error, and every setting is written out.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from evalmon.errors import CheckpointError
from evalmon.types import FULL, SLIDING, RopeParameters, layer_types, rope_parameters

__all__ = ["PublishedConfig"]

_ARCHITECTURE: Final = "Olmo3ForCausalLM"

_SIZES: Final = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "intermediate_size": "ffn",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "sliding_window": "window",
}
"""Settings that must be there, and what they are called here."""


_ALWAYS: Final = {
    "hidden_act": "silu",
    "attention_bias": False,
    "partial_rotary_factor": 1,
    "quantization_config": None,
}
_LARGEST: Final = 2**31 - 1
"""Of whole numbers: ids and positions are int32."""


@dataclass(frozen=True, slots=True)
class PublishedConfig:
    """Shapes and constants of a published OLMo 3.

    Attributes:
        vocab_size: rows of embedding and head.
        width: model width.
        ffn: inner width of the feed-forward part.
        layers: number of layers.
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: width of a head.
        window: tokens a sliding layer sees, the current one included.
        norm_eps: added to the mean square in every norm.
        layer_types: attention type of each layer.
        rope: rotary settings by attention type.
        tied: whether the file says that embedding and head are one tensor.
    """

    vocab_size: int
    width: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int
    norm_eps: float
    layer_types: tuple[str, ...]
    rope: Mapping[str, RopeParameters]
    tied: bool = False

    @classmethod
    def load(cls, folder: Path) -> "PublishedConfig":
        """Read ``config.json`` of a folder.

        Raises:
            CheckpointError: no such folder or file; not an OLMo 3; a setting that is missing
                or of another type.
            ConfigError: layer types or rotary settings that are not OLMo 3's.
        """
        file = folder / "config.json"
        try:
            loaded = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CheckpointError(
                f"{folder}: no config.json in it; give a folder of published weights"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{file}: cannot be read as JSON ({error})") from error
        record = cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}
        _require_olmo3(record, file)
        sizes = {ours: _size(record, name, file) for name, ours in _SIZES.items()}
        eps = record.get("rms_norm_eps")
        if not isinstance(eps, float) or not 0 < eps < math.inf:
            raise CheckpointError(
                f"{file}: 'rms_norm_eps' is {eps!r}; write it (OLMo 3's is 1e-06, "
                "the class default of transformers is not)"
            )
        heads, optional = sizes["heads"], {"num_key_value_heads": sizes["heads"]}
        if record.get("head_dim") is None and sizes["width"] % heads:
            raise CheckpointError(f"{file}: 'head_dim' is missing, and heads do not divide width")
        optional["head_dim"] = sizes["width"] // heads
        found = {
            name: _size(record, name, file) if record.get(name) is not None else default
            for name, default in optional.items()
        }
        if heads % found["num_key_value_heads"]:
            raise CheckpointError(
                f"{file}: 'num_key_value_heads' {found['num_key_value_heads']} does not divide "
                f"'num_attention_heads' {heads}"
            )
        if found["head_dim"] % 2:
            raise CheckpointError(f"{file}: 'head_dim' {found['head_dim']} must be even to rotate")
        tied = record.get("tie_word_embeddings")
        if not isinstance(tied, bool | None):
            raise CheckpointError(
                f"{file}: 'tie_word_embeddings' is {tied!r}, expected true or false"
            )
        return cls(
            **sizes,
            kv_heads=found["num_key_value_heads"],
            head_dim=found["head_dim"],
            norm_eps=eps,
            layer_types=tuple(layer_types(record, str(file))),
            rope=rope_parameters(record, str(file)),
            tied=bool(tied),
        )

    def record(self) -> dict[str, Any]:
        """Return the settings as transformers' config class takes them, all written out."""
        return {
            "vocab_size": self.vocab_size,
            "hidden_size": self.width,
            "intermediate_size": self.ffn,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "sliding_window": self.window,
            "rms_norm_eps": self.norm_eps,
            "layer_types": list(self.layer_types),
            "rope_parameters": {kind: _rope(self.rope[kind]) for kind in (SLIDING, FULL)},
            "tie_word_embeddings": self.tied,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "use_cache": False,
            "pad_token_id": None,
            "bos_token_id": None,
            "eos_token_id": None,
        }


def _require_olmo3(record: Mapping[str, Any], file: Path) -> None:
    """Refuse another architecture, and settings no OLMo 3 has."""
    kind, names = record.get("model_type"), record.get("architectures")
    if kind != "olmo3" or names not in (None, [_ARCHITECTURE]):
        raise CheckpointError(
            f"{file}: architecture {names!r} of model type {kind!r}; parity is for "
            f"[{_ARCHITECTURE!r}] of 'olmo3'"
        )
    for name, right in _ALWAYS.items():
        if record.get(name, right) != right:
            raise CheckpointError(f"{file}: {name!r} is {record[name]!r}; OLMo 3's is {right!r}")


def _size(record: Mapping[str, Any], name: str, file: Path) -> int:
    """Return a whole number above 0."""
    value = record.get(name)
    if type(value) is not int or not 1 <= value <= _LARGEST:
        raise CheckpointError(
            f"{file}: {name!r} is {value!r}; write a whole number from 1 to {_LARGEST}"
        )
    return value


def _rope(rope: RopeParameters) -> dict[str, Any]:
    """Return the rotary settings of one layer type."""
    if rope.yarn is None:
        return {"rope_type": "default", "rope_theta": rope.theta}
    return {
        "rope_type": "yarn",
        "rope_theta": rope.theta,
        "factor": rope.yarn.factor,
        "original_max_position_embeddings": rope.yarn.original_length,
        "beta_fast": rope.yarn.beta_fast,
        "beta_slow": rope.yarn.beta_slow,
        "attention_factor": rope.yarn.attention_factor,
    }
