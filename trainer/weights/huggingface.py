"""``config.json`` of published weights <-> ``Olmo3Config``.

Nothing is left to the class defaults of transformers, because some are not OLMo 3's
(epsilon 1e-5, 50,304 rows, end of text 50,279, padding 1, 2,048 positions).

Source: transformers ``models/olmo3/configuration_olmo3.py``.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self, cast

import numpy as np

from evalmon.errors import ConfigError
from evalmon.types import FULL, SLIDING, layer_types, rope_parameters
from trainer.architecture import Olmo3Config

__all__ = ["FIELDS", "PublishedModel"]

FIELDS: Final = {
    "layers": "num_hidden_layers",
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "queries": "num_attention_heads x head_dim",
    "keys": "num_key_value_heads x head_dim",
    "ffn": "intermediate_size",
}
"""What ``config.json`` calls the lengths of the axes."""

_ARCHITECTURE: Final = "Olmo3ForCausalLM"
_MODEL_TYPE: Final = "olmo3"
_DEFAULTS: Final = {
    "rms_norm_eps": ("1e-05", "1e-06"),
    "vocab_size": ("50304", "100278"),
    "max_position_embeddings": ("2048", "8192 (65536 after long-context training)"),
    "hidden_size": ("4096", None),
    "intermediate_size": ("11008", None),
    "num_hidden_layers": ("32", None),
    "num_attention_heads": ("32", None),
}
"""What transformers takes for a missing field, and what OLMo 3 has."""

_LARGEST: Final = 2**31 - 1
"""Of whole numbers: ids and positions are int32."""

_KEPT: Final = ("attention_dropout", "bos_token_id", "use_cache")
"""Fields that no weight and no result depends on, carried through."""


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """What a ``config.json`` says.

    Attributes:
        config: shapes and constants.
        max_length: ``max_position_embeddings``.
        eos_ids: ids that end a text, none where that is unknown.
        pad_id: id of padding, None where that is unknown.
        tied: whether the head is the embedding.
        kept: fields that are carried through as they are.
        warnings: what is odd but does no harm.
    """

    config: Olmo3Config
    max_length: int
    eos_ids: tuple[int, ...] = ()
    pad_id: int | None = None
    tied: bool = False
    kept: Mapping[str, Any] = field(default_factory=dict[str, Any])
    warnings: tuple[str, ...] = ()

    @property
    def eos_id(self) -> int | None:
        """The first id that ends a text."""
        return self.eos_ids[0] if self.eos_ids else None

    @classmethod
    def from_record(cls, record: Mapping[str, Any], place: str) -> Self:
        """Read a ``config.json``.

        Args:
            record: its content.
            place: the file, for messages.

        Raises:
            ConfigError: another architecture; a field that is missing, of another type, or
                no OLMo 3's.
        """
        _require_olmo3(record, place)
        heads, width = (
            _whole(record, "num_attention_heads", place),
            _whole(record, "hidden_size", place),
        )
        eps = _eps(record, place)
        layers = _whole(record, "num_hidden_layers", place)
        layer_types(record, place)
        rope = rope_parameters(record, place)
        head_dim = _optional(record, "head_dim", place)
        if head_dim is None and width % heads:
            raise ConfigError(
                f"{place}: num_attention_heads {heads} does not divide hidden_size {width}; write "
                "head_dim"
            )
        if "sliding_window" in record and record["sliding_window"] is None:
            raise ConfigError(f"{place}: sliding_window is null; OLMo 3's is 4096, write it")
        config = Olmo3Config(
            vocab_size=_whole(record, "vocab_size", place),
            width=width,
            layers=layers,
            heads=heads,
            kv_heads=_optional(record, "num_key_value_heads", place) or heads,
            head_dim=head_dim or width // heads,
            ffn=_whole(record, "intermediate_size", place),
            window=_optional(record, "sliding_window", place) or 4096,
            rope_theta=rope[FULL].theta,
            yarn=rope[FULL].yarn,
            norm_eps=eps,
            init_std=_number(record, "initializer_range", place, 0.02),
        )
        config.require_valid(place)
        eos, pad, warnings = _ids(record, config.vocab_size, place)
        return cls(
            config=config,
            max_length=_whole(record, "max_position_embeddings", place),
            eos_ids=eos,
            pad_id=pad,
            tied=record.get("tie_word_embeddings", False) is True,
            kept={name: record[name] for name in _KEPT if name in record},
            warnings=warnings,
        )

    def to_record(self, dtype: np.dtype[Any]) -> dict[str, Any]:
        """Return the content of ``config.json``, with every field that has a wrong default.

        Args:
            dtype: dtype of most weights.
        """
        config = self.config
        kinds = [FULL if config.sees_all(i) else SLIDING for i in range(config.layers)]
        plain = {"rope_type": "default", "rope_theta": config.rope_theta}
        scaled: dict[str, Any] = plain
        if config.yarn is not None:
            yarn = config.yarn
            scaled = {
                "rope_type": "yarn",
                "rope_theta": config.rope_theta,
                "factor": yarn.factor,
                "original_max_position_embeddings": yarn.original_length,
                "beta_fast": yarn.beta_fast,
                "beta_slow": yarn.beta_slow,
                "attention_factor": yarn.attention_factor,
            }
        head_dim = {"head_dim": config.head_dim}
        return {
            "architectures": [_ARCHITECTURE],
            "model_type": _MODEL_TYPE,
            "vocab_size": config.vocab_size,
            "hidden_size": config.width,
            "intermediate_size": config.ffn,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "num_key_value_heads": config.kv_heads,
            **(head_dim if config.head_dim * config.heads != config.width else {}),
            "hidden_act": "silu",
            "max_position_embeddings": self.max_length,
            "rms_norm_eps": config.norm_eps,
            "rope_parameters": {SLIDING: plain, FULL: scaled},
            "sliding_window": config.window,
            "layer_types": kinds,
            "attention_bias": False,
            "tie_word_embeddings": False,
            "initializer_range": config.init_std,
            "dtype": str(dtype),
            "eos_token_id": list(self.eos_ids) if len(self.eos_ids) > 1 else self.eos_id,
            "pad_token_id": self.pad_id,
            "attention_dropout": 0.0,
            "bos_token_id": None,
            "use_cache": True,
            **self.kept,
        }


def _require_olmo3(record: Mapping[str, Any], place: str) -> None:
    """Refuse another architecture, and settings that OLMo 3 does not have."""
    kind, names = record.get("model_type"), record.get("architectures")
    if kind != _MODEL_TYPE:
        raise ConfigError(f"{place}: model_type is {kind!r}, expected {_MODEL_TYPE!r}")
    if names is not None and names != [_ARCHITECTURE]:
        raise ConfigError(f"{place}: architectures is {names!r}, expected {[_ARCHITECTURE]!r}")
    for name, form in (("rope_parameters", dict), ("rope_scaling", dict), ("layer_types", list)):
        if not isinstance(record.get(name), form | None):
            raise ConfigError(
                f"{place}: {name} is {record[name]!r}, expected a JSON "
                f"{'object' if form is dict else 'array'}"
            )
    tied = record.get("tie_word_embeddings")
    if not isinstance(tied, bool | None):
        raise ConfigError(f"{place}: tie_word_embeddings is {tied!r}, expected true or false")
    turned = record.get("partial_rotary_factor")
    if turned not in (None, 1):
        raise ConfigError(f"{place}: partial_rotary_factor is {turned!r}; OLMo 3 turns whole heads")
    for name, expected in (
        ("hidden_act", "silu"),
        ("attention_bias", False),
        ("quantization_config", None),
    ):
        if name in record and record[name] != expected:
            raise ConfigError(
                f"{place}: {name} is {record[name]!r}; OLMo 3 has {expected!r}, and no weights "
                "for anything else"
            )


def _eps(record: Mapping[str, Any], place: str) -> float:
    """Return the norms' epsilon; the class default is a mistake more often than a choice."""
    eps = _number(record, "rms_norm_eps", place, None)
    if eps == 1e-5:
        raise ConfigError(
            f"{place}: rms_norm_eps is 1e-05, the class default of transformers; OLMo 3's is "
            "1e-06, write it"
        )
    return eps


def _missing(name: str, place: str) -> ConfigError:
    """Describe a field that must be written out."""
    theirs, ours = _DEFAULTS[name]
    then = f"; OLMo 3's is {ours}" if ours else ""
    return ConfigError(
        f"{place}: no {name}, for which transformers would take {theirs}{then}; write it"
    )


def _number(record: Mapping[str, Any], name: str, place: str, default: float | None) -> float:
    """Return a field as a float."""
    value = default if record.get(name) is None else record[name]
    if value is None:
        raise _missing(name, place)
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise ConfigError(f"{place}: {name} is {value!r}, expected a number")
    return float(value)


def _optional(record: Mapping[str, Any], name: str, place: str) -> int | None:
    """Return a whole number, or None where it is not given."""
    value = record.get(name)
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= _LARGEST:
        raise ConfigError(
            f"{place}: {name} is {value!r}, expected a whole number from 1 to {_LARGEST}"
        )
    return value


def _whole(record: Mapping[str, Any], name: str, place: str) -> int:
    """Return a whole number that must be given."""
    value = _optional(record, name, place)
    if value is None:
        raise _missing(name, place)
    return value


def _ids(
    record: Mapping[str, Any], rows: int, place: str
) -> tuple[tuple[int, ...], int | None, tuple[str, ...]]:
    """Return the ids of end and padding; those outside the vocabulary become warnings."""
    warnings: list[str] = []

    def known(name: str) -> tuple[int, ...]:
        given = record.get(name)
        values = cast("Sequence[Any]", given if isinstance(given, list) else [given])
        if name not in record:
            warnings.append(f"{place}: no {name}; the class default is not OLMo 3's, left unknown")
        inside: list[int] = []
        for value in values:
            if type(value) is int and 0 <= value < rows:
                inside.append(value)
            elif value is not None:
                warnings.append(
                    f"{place}: {name} {value!r} is outside the vocabulary of {rows}; written as "
                    "null"
                )
        return tuple(inside)

    eos, pad = known("eos_token_id"), known("pad_token_id")
    return eos, pad[0] if pad else None, tuple(warnings)
