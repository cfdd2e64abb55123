"""What an OLMo 3 is: shapes and constants, and how its layers are run."""

import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from evalmon.errors import ConfigError
from evalmon.types import RopeParameters, Yarn
from trainer.names import require_known

__all__ = ["BLOCK", "REMAT_POLICIES", "Execution", "Olmo3Config"]

BLOCK: Final = 4
"""Layers of one repetition: three sliding, one full."""

REMAT_POLICIES: Final = ("none", "projections", "dots", "full")
"""What is kept for the backward pass: everything; what the named projections put out; every
matrix product of weights; only what enters each layer."""

_DTYPES: Final = ("float32", "bfloat16", "float64")

_LARGEST: Final = 2**31 - 1
"""Of lengths: ids and positions are int32."""
_MOST: Final = {"layers": 10_000}


@dataclass(frozen=True, slots=True)
class Olmo3Config:
    """Shapes and constants of one OLMo 3.

    Attributes:
        vocab_size: rows of embedding and head, padded.
        width: model width d.
        layers: number of layers.
        heads: query heads.
        kv_heads: key and value heads, a divisor of ``heads``.
        head_dim: width of a head, even.
        ffn: inner width of the feed-forward part.
        window: tokens a sliding layer sees, the current one included.
        rope_theta: base of the rotary frequencies.
        yarn: how full-attention layers stretch them, None for contexts as trained.
        norm_eps: added to the mean square in every norm.
        init_std: standard deviation of the truncated normal (cut at 3 of them).
        dtype: compute dtype; norms, rotation, softmax and logits are at least float32, and
            so are the parameters that are trained.
    """

    vocab_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    window: int = 4096
    rope_theta: float = 500_000.0
    yarn: Yarn | None = None
    norm_eps: float = 1e-6
    init_std: float = 0.02
    dtype: str = "float32"

    @property
    def master_dtype(self) -> str:
        """Dtype of the parameters that are trained: at least float32."""
        return "float64" if self.dtype == "float64" else "float32"

    def sees_all(self, layer: int) -> bool:
        """Return whether ``layer`` (0-based) has full attention.

        Example:
            >>> config = Olmo3Config(8, 4, 6, 1, 1, 4, 8)
            >>> [config.sees_all(i) for i in range(6)]
            [False, False, False, True, False, True]
        """
        return (layer + 1) % BLOCK == 0 or layer == self.layers - 1

    def rope(self, layer: int) -> RopeParameters:
        """Return the rotary settings of ``layer`` (0-based): YaRN in full layers only."""
        return RopeParameters(self.rope_theta, self.yarn if self.sees_all(layer) else None)

    def require_valid(self, place: str) -> None:
        """Refuse shapes that no OLMo 3 can have.

        Args:
            place: where the shapes are from, for messages.

        Raises:
            ConfigError: a value of another type or out of range; it is named.
        """
        whole = ("vocab_size", "width", "layers", "heads", "kv_heads", "head_dim", "ffn", "window")
        for name in (*whole, "rope_theta", "norm_eps", "init_std"):
            value, kind = getattr(self, name), int if name in whole else float
            least = 1 if name == "rope_theta" else 0
            most = _MOST.get(name, _LARGEST if kind is int else sys.float_info.max)
            if type(value) is not kind or not least < value <= most:
                limit = f", at most {most}" if kind is int else " and finite"
                raise ConfigError(
                    f"{place}: {name!r} is {value!r}, expected {kind.__name__} > {least}{limit}"
                )
        if self.dtype not in _DTYPES:
            raise ConfigError(f"{place}: 'dtype' is {self.dtype!r}, expected one of {_DTYPES}")
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"{place}: 'kv_heads' {self.kv_heads} does not divide 'heads' {self.heads}"
            )
        if self.head_dim % 2:
            raise ConfigError(f"{place}: 'head_dim' is {self.head_dim}, must be even to rotate")

    @classmethod
    def from_record(cls, record: Mapping[str, Any], place: str) -> Self:
        """Build the config that ``dataclasses.asdict`` was made of.

        Args:
            record: field to value, as stored in ``run.json`` or ``model.json``.
            place: file and field it is from, for messages.

        Raises:
            ConfigError: a field is missing, unknown (the nearest is suggested) or no value a
                model can have.
        """
        names = [item.name for item in fields(cls)]
        for name in record:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
                raise ConfigError(f"{place}: unknown field {name!r}; nearest is {near!r}")
        missing = [name for name in names if name not in record and name != "yarn"]
        if missing:
            raise ConfigError(f"{place}: missing {missing}; use the trainer that wrote it")
        values = dict(record)
        if values.get("yarn") is not None:
            values["yarn"] = Yarn.from_record(values["yarn"], f"{place}: 'yarn'")
        config = cls(**values)
        config.require_valid(place)
        return config


@dataclass(frozen=True, slots=True)
class Execution:
    """How layers are run; it changes speed and memory, never a result beyond rounding.

    Attributes:
        scan_layers: compile one block of four layers and loop over the blocks; parameters are
            then stacked (``trainer.layout``).
        remat: what the backward pass computes again, one of ``REMAT_POLICIES``.
        query_block: queries whose scores are in memory at a time.

    Raises:
        ConfigError: no such policy, or a block without queries.
    """

    scan_layers: bool = False
    remat: str = "none"
    query_block: int = 512

    def __post_init__(self) -> None:
        require_known("--remat", "policy", self.remat, REMAT_POLICIES)
        if self.query_block < 1:
            raise ConfigError(f"query_block {self.query_block}: at least 1")
