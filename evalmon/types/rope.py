"""Rotary frequencies of OLMo 3: plain in sliding layers, YaRN in full ones.

The one place where a published ``config.json`` becomes frequencies, whichever of the three
forms its rotary settings have.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

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
        ConfigError: an explicit list is not OLMo 3's (every fourth and the last layer full).
    """
    layers = int(config["num_hidden_layers"])
    expected = [FULL if (i + 1) % 4 == 0 or i == layers - 1 else SLIDING for i in range(layers)]
    given = config.get("layer_types")
    if given is None:
        return expected
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
    alone, as OLMo 3 was trained.

    Args:
        config: a published ``config.json``.
        place: its file, for messages.

    Returns:
        Settings by ``sliding_attention`` and ``full_attention``.

    Raises:
        ConfigError: no theta, a rotary type other than default and yarn, scaled sliding
            layers, or a setting that has no meaning here.

    Source: OLMo-core ``with_rope_scaling(full_attn_layers_only=True)``;
    huggingface/transformers pull requests 39847 and 46911.
    """
    nested = cast("dict[str, Any]", config.get("rope_parameters") or {})
    legacy = cast("dict[str, Any]", config.get("rope_scaling") or {})
    theta = config.get("rope_theta")
    if SLIDING in nested or FULL in nested:
        missing = [kind for kind in (SLIDING, FULL) if not nested.get(kind)]
        if missing:
            raise ConfigError(f"{place}: rope_parameters lacks {missing[0]!r}; write both types")
        by_type: dict[str, dict[str, Any]] = {SLIDING: nested[SLIDING], FULL: nested[FULL]}
    else:
        flat = {**legacy, **nested}
        by_type = {SLIDING: {"rope_theta": flat.get("rope_theta")}, FULL: flat}
    parsed = {kind: _parse(part, theta, f"{place}: {kind}") for kind, part in by_type.items()}
    if parsed[SLIDING].yarn is not None:
        raise ConfigError(
            f"{place}: rope_parameters scales sliding_attention; OLMo 3 scales full_attention only"
        )
    if parsed[SLIDING].theta != parsed[FULL].theta:
        raise ConfigError(
            f"{place}: rope_theta is {parsed[SLIDING].theta} in sliding and {parsed[FULL].theta} "
            "in full layers; OLMo 3 has one"
        )
    return parsed


def _parse(part: Mapping[str, Any], theta: object, place: str) -> RopeParameters:
    """Read one layer type's rotary settings."""
    base = part.get("rope_theta", theta)
    base = theta if base is None else base
    if not isinstance(base, int | float) or not base > 1:
        raise ConfigError(f"{place}: rope_theta is {base!r}; OLMo 3's is {_THETA:.0f}, write it")
    kind = part.get("rope_type", part.get("type", "default"))
    if kind == "default":
        return RopeParameters(float(base))
    if kind != "yarn":
        raise ConfigError(f"{place}: rope_type {kind!r}; OLMo 3 has 'default' or 'yarn'")
    try:
        factor, length = float(part["factor"]), int(part["original_max_position_embeddings"])
        fast, slow = float(part.get("beta_fast") or 32.0), float(part.get("beta_slow") or 1.0)
        given = part.get("attention_factor")
        scale = math.nan if given is None else float(given)
    except KeyError as error:
        raise ConfigError(f"{place}: yarn without {error.args[0]}; write it") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{place}: a yarn setting is no number ({error})") from None
    if not (factor > 1 and length > 0 and fast > slow > 0):
        raise ConfigError(
            f"{place}: yarn with factor {factor}, original length {length}, beta_fast {fast}, "
            f"beta_slow {slow}; expected factor > 1, length > 0, beta_fast > beta_slow > 0"
        )
    if part.get("truncate") is False:
        raise ConfigError(f"{place}: yarn with truncate false; OLMo 3 rounds to whole pairs")
    return RopeParameters(float(base), Yarn(factor, length, fast, slow, scale))
