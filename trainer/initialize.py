"""Fresh parameters."""

from typing import Final

import jax
import numpy as np
from numpy.typing import NDArray

from trainer.architecture import Olmo3Config
from trainer.model import ParameterTree, parameter_shapes

__all__ = ["initialize"]

_CUT: Final = 3.0
"""Deviations at which the initial normal is cut off."""


def initialize(config: Olmo3Config, seed: int) -> ParameterTree:
    """Return fresh parameters, the same for the same seed on every kind of device.

    Args:
        config: shapes.
        seed: at least 0.

    Returns:
        Canonical tree of numpy arrays in the master dtype.

    Source: OLMo-core ``InitMethod.normal``: every matrix from a normal of mean 0,
    deviation 0.02, cut at 3 deviations, whatever its depth; norms 1.
    """
    # NumPy draws without compiling a kernel for each shape, which JAX needs seconds for.
    rng = np.random.Generator(np.random.PCG64(seed))

    def draw(leaf: jax.ShapeDtypeStruct) -> NDArray[np.floating]:
        if len(leaf.shape) == 1:
            return np.ones(leaf.shape, leaf.dtype)
        values = rng.standard_normal(leaf.shape, np.float32)
        while (outside := np.abs(values) > _CUT).any():
            values[outside] = rng.standard_normal(int(outside.sum()), np.float32)
        return (values * np.float32(config.init_std)).astype(leaf.dtype, copy=False)

    return jax.tree.map(draw, parameter_shapes(config))
