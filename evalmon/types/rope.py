"""Rotary frequencies of OLMo 3: plain in sliding layers, YaRN in full ones.

The one place where a published ``config.json`` becomes frequencies, whichever of the three
forms its rotary settings have.
"""

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, cast

import numpy as np
from numpy.typing import NDArray

from evalmon.errors import ConfigError

__all__ = [
    "FULL",
    "SLIDING",
    "RopeParameters",
    "Yarn",
    "inverse_frequencies",
    "layer_types",
    "rope_parameters",
]

SLIDING: Final = "sliding_attention"
FULL: Final = "full_attention"
_THETA: Final = 500_000.0
_MOST_LAYERS: Final = 10_000
_LARGEST: Final = sys.float_info.max

_YARN: Final = {
    "factor": "factor",
    "original_max_position_embeddings": "original_length",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "attention_factor": "attention_factor",
}
"""Published settings of YaRN, and what they are called here."""
_KINDS: Final = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "truncate")
"""Other settings that may be written."""


@dataclass(frozen=True, slots=True)
class Yarn:
    """How full-attention layers stretch their rotary frequencies for long contexts.

    Attributes:
        factor: how many times longer the context becomes, above 1.
        original_length: tokens of the context before, L0.
        beta_fast: turns over L0 above which a frequency stays as it is.
        beta_slow: turns over L0 below which a frequency is divided by ``factor``.
        attention_factor: multiplies cosine and sine.

    Source: Peng et al. 2023, arXiv:2309.00071.
    """

    factor: float
    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = math.nan

    def __post_init__(self) -> None:
        """Fill in the paper's attention factor, 0.1 ln(factor) + 1, where none is given."""
        if math.isnan(self.attention_factor):
            object.__setattr__(self, "attention_factor", 0.1 * math.log(self.factor) + 1.0)

    @classmethod
    def from_record(
        cls, record: object, place: str, names: Mapping[str, str] | None = None
    ) -> Self:
        """Build it from a record; what is null or left out has its default.

        Args:
            record: setting to value.
            place: where it is from, for messages.
            names: what the record calls each attribute, by its own name; None for as here.

        Raises:
            ConfigError: no object; a setting that is unknown, missing, no number, or has no
                meaning.
        """
        names = {name: name for name in _YARN.values()} if names is None else names
        found = _object(record, place)
        _refuse_unknown(found, names, place)
        values: dict[str, Any] = {}
        for theirs, ours in names.items():
            value = found.get(theirs)
            whole = ours == "original_length"
            if value is None and (whole or ours == "factor"):
                raise ConfigError(f"{place}: yarn without {theirs}; write it")
            if value is None:
                continue
            if not _is_number(value) or (whole and value != int(value)):
                kind = "whole number" if whole else "number"
                raise ConfigError(f"{place}: {theirs} is {value!r}; expected a {kind} above 0")
            values[ours] = int(value) if whole else float(value)
        if not values["factor"] > 1:
            raise ConfigError(f"{place}: yarn with factor {values['factor']}; expected above 1")
        yarn = cls(**values)
        if not yarn.beta_fast > yarn.beta_slow:
            raise ConfigError(
                f"{place}: yarn with beta_fast {yarn.beta_fast} and beta_slow {yarn.beta_slow}; "
                "expected beta_fast > beta_slow"
            )
        return yarn


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """Rotary settings of one layer type.

    Attributes:
        theta: base of the frequencies.
        yarn: how they are stretched, None where they are not.
    """

    theta: float
    yarn: Yarn | None = None


def inverse_frequencies(head_dim: int, rope: RopeParameters) -> tuple[NDArray[np.float64], float]:
    """Return radians a position of each component pair, and the factor of cosine and sine.

    Pair i turns by theta^(-2i/D) a position. YaRN divides slow pairs by ``factor``, leaves
    fast ones, and blends linearly between the pairs that make ``beta_fast`` and ``beta_slow``
    turns over the original context (rounded outwards to whole pairs).

    Args:
        head_dim: D, even.
        rope: settings of the layer's type.

    Returns:
        [D/2] float64, and 1.0 without YaRN.

    Source: arXiv:2309.00071, section 3.2; rounding as in OLMo-core and transformers.

    Example:
        >>> inverse_frequencies(4, RopeParameters(10_000.0))[0].tolist()
        [1.0, 0.01]
        >>> round(Yarn(8.0, 8192).attention_factor, 7)
        1.2079442
    """
    half = head_dim // 2
    plain = rope.theta ** (-np.arange(half, dtype=np.float64) / half)
    yarn = rope.yarn
    if yarn is None:
        return plain, 1.0

    def pair_with(turns: float) -> float:
        wavelength = yarn.original_length / (turns * 2.0 * math.pi)
        return head_dim * math.log(wavelength) / (2.0 * math.log(rope.theta))

    low = max(math.floor(pair_with(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_with(yarn.beta_slow)), head_dim - 1)
    slow = np.clip((np.arange(half) - low) / (high - low or 0.001), 0.0, 1.0)
    return plain * (slow / yarn.factor + 1.0 - slow), yarn.attention_factor


def layer_types(config: Mapping[str, Any], place: str) -> list[str]:
    """Return the attention type of each layer: OLMo 3's, whether it is written out or not.

    Args:
        config: a published ``config.json``.
        place: its file, for messages.

    Raises:
        ConfigError: no number of layers; a list that is none, or not OLMo 3's (every fourth
            and the last layer full).
    """
    layers = config.get("num_hidden_layers")
    if type(layers) is not int or not 1 <= layers <= _MOST_LAYERS:
        raise ConfigError(
            f"{place}: num_hidden_layers is {layers!r}, expected a whole number from 1 to "
            f"{_MOST_LAYERS}"
        )
    expected = [FULL if (i + 1) % 4 == 0 or i == layers - 1 else SLIDING for i in range(layers)]
    given = config.get("layer_types")
    if given is None:
        return expected
    if not isinstance(given, list):
        raise ConfigError(f"{place}: layer_types is {given!r}, expected a JSON array")
    given = cast("list[Any]", given)
    if len(given) != layers:
        raise ConfigError(f"{place}: layer_types has {len(given)} entries for {layers} layers")
    for i, (found, wanted) in enumerate(zip(given, expected, strict=True)):
        if found != wanted:
            raise ConfigError(
                f"{place}: layer_types[{i}] is {found!r}; in OLMo 3 layer {i} of {layers} is "
                f"{wanted!r} (every fourth and the last see all tokens)"
            )
    return expected


def rope_parameters(config: Mapping[str, Any], place: str) -> dict[str, RopeParameters]:
    """Return the rotary settings of both layer types.

    Three forms are read: ``rope_theta`` beside ``rope_scaling``; a flat ``rope_parameters``;
    ``rope_parameters`` by layer type. In the first two, scaling belongs to the full layers
    alone, as OLMo 3 was trained. Settings written twice must agree.

    Args:
        config: a published ``config.json``.
        place: its file, for messages.

    Returns:
        Settings by ``sliding_attention`` and ``full_attention``.

    Raises:
        ConfigError: no theta, a rotary type other than default and yarn, scaled sliding
            layers, settings that contradict each other, or one that has no meaning here.

    Source: OLMo-core ``with_rope_scaling(full_attn_layers_only=True)``;
    huggingface/transformers pull requests 39847 and 46911.
    """
    theta = config.get("rope_theta")
    forms = [n for n in ("rope_parameters", "rope_scaling") if config.get(n) is not None]
    found = [_by_type(config[name], theta, place, name) for name in forms]
    if not found:
        return _by_type({}, theta, place, "rope_parameters")
    if found[0] != found[-1]:
        raise ConfigError(
            f"{place}: rope_parameters says {found[0][FULL]}, but rope_scaling {found[-1][FULL]}; "
            "remove the one that is wrong"
        )
    if theta is not None and theta != found[0][FULL].theta:
        raise ConfigError(
            f"{place}: rope_theta is {theta!r}, but {found[0][FULL].theta} in {forms[0]}; remove "
            "the one that is wrong"
        )
    return found[0]


def _by_type(given: object, theta: object, place: str, name: str) -> dict[str, RopeParameters]:
    """Read the settings of both layer types in one of the forms."""
    flat = _object(given, f"{place}: {name}")
    if SLIDING in flat or FULL in flat:
        _refuse_unknown(flat, (SLIDING, FULL), f"{place}: {name}")
        missing = [kind for kind in (SLIDING, FULL) if not flat.get(kind)]
        if missing:
            raise ConfigError(f"{place}: {name} lacks {missing[0]!r}; write both types")
        by_type: dict[str, object] = {kind: flat[kind] for kind in (SLIDING, FULL)}
    else:
        by_type = {SLIDING: {"rope_theta": flat.get("rope_theta")}, FULL: flat}
    parsed = {kind: _parse(part, theta, f"{place}: {kind}") for kind, part in by_type.items()}
    if parsed[SLIDING].yarn is not None:
        raise ConfigError(
            f"{place}: {name} scales sliding_attention; OLMo 3 scales full_attention only"
        )
    if parsed[SLIDING].theta != parsed[FULL].theta:
        raise ConfigError(
            f"{place}: rope_theta is {parsed[SLIDING].theta} in sliding and {parsed[FULL].theta} "
            "in full layers; OLMo 3 has one"
        )
    return parsed


def _parse(given: object, theta: object, place: str) -> RopeParameters:
    """Read one layer type's rotary settings."""
    part = {k: v for k, v in _object(given, place).items() if v is not None}
    base = part.get("rope_theta", theta)
    if not _is_number(base) or not base > 1:
        raise ConfigError(f"{place}: rope_theta is {base!r}; OLMo 3's is {_THETA:.0f}, write it")
    kind = part.get("rope_type", part.get("type", "default"))
    if kind not in ("default", "yarn"):
        raise ConfigError(f"{place}: rope_type {kind!r}; OLMo 3 has 'default' or 'yarn'")
    if part.get("type", kind) != kind:
        raise ConfigError(f"{place}: rope_type {kind!r}, but type {part['type']!r}; keep one")
    if part.get("truncate", True) is not True:
        raise ConfigError(f"{place}: yarn with truncate false; OLMo 3 rounds to whole pairs")
    if part.get("partial_rotary_factor", 1) != 1:
        raise ConfigError(
            f"{place}: partial_rotary_factor is {part['partial_rotary_factor']!r}; OLMo 3 turns "
            "whole heads"
        )
    if kind == "default":
        _refuse_unknown(part, _KINDS, f"{place}: rope_type 'default'")
        return RopeParameters(float(base))
    scaling = {name: value for name, value in part.items() if name not in _KINDS}
    return RopeParameters(float(base), Yarn.from_record(scaling, place, _YARN))


def _is_number(value: Any) -> bool:
    """Tell whether a value is a number above 0 that a float can hold."""
    return type(value) in (int, float) and 0 < value <= _LARGEST


def _object(value: object, place: str) -> dict[str, Any]:
    """Return a value that must be a JSON object."""
    if not isinstance(value, dict):
        raise ConfigError(f"{place} is {value!r}, expected a JSON object")
    return cast("dict[str, Any]", value)


def _refuse_unknown(record: Mapping[str, Any], known: Iterable[str], place: str) -> None:
    """Raise when a record has a setting beside the known ones that is not null."""
    unknown = [name for name in record if name not in known and record[name] is not None]
    if unknown:
        raise ConfigError(
            f"{place}: {unknown[0]} {record[unknown[0]]!r} has no meaning here; expected "
            f"{', '.join(known)}"
        )
