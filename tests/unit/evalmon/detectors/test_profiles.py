"""Which profile a run is judged by."""

import numpy as np
import pytest

from evalmon.detectors.profiles import choose
from evalmon.errors import DataError


@pytest.mark.parametrize("evaluations", [0, 1])
def test_too_few_evaluations_tell_no_spacing(evaluations: int) -> None:
    assert choose("", np.arange(evaluations), 1000).name == "full"


def test_evaluations_at_the_same_tokens_are_refused() -> None:
    with pytest.raises(DataError, match="evaluations at 20 and then at 20 tokens: they must rise"):
        choose("", np.array([10, 20, 20, 20]), 1000)
    assert choose("short", np.array([20, 20, 20]), 1000).name == "short"
