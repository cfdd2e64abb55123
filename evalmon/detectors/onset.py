"""Where a change began: least-squares change point of a broken line or a step."""

import numpy as np

from evalmon.types import FloatArray, IntArray

__all__ = ["onset_tokens"]


def onset_tokens(
    tokens: IntArray, values: FloatArray, *, start: float | None, before: int | None = None
) -> int:
    """Return the change point of a rise.

    Two forms are fitted by least squares, value = a + b max(0, tokens - c) with b >= 0
    and value = a + b [tokens > c], for every evaluation c; the better fit tells c. Each
    value is first replaced by the median of it and its two neighbors, so that one bad
    evaluation moves nothing.

    Args:
        tokens: [n] rising positions, n >= 1.
        values: [n] the series that rises.
        start: a where it is known (0 for equal recipes), None to fit it.
        before: c lies before these tokens (the alarm), None for anywhere.

    Returns:
        c, one of ``tokens``.

    Example:
        >>> import numpy as np
        >>> rise = np.array([0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0])
        >>> onset_tokens(np.arange(7), rise, start=None)
        2
    """
    values = values.copy()
    if len(values) > 2:
        values[1:-1] = np.median(np.stack([values[:-2], values[1:-1], values[2:]]), axis=0)
    allowed = int(np.searchsorted(tokens, before, side="left")) if before is not None else None
    candidates = tokens[: max(allowed, 1) if allowed is not None else None]
    after = np.maximum(0, tokens[None, :] - candidates[:, None]).astype(np.float64)
    forms = np.stack([after / max(1.0, float(after.max(initial=0.0))), after > 0])
    if start is None:
        target = values - values.mean()
        forms = forms - forms.mean(axis=-1, keepdims=True)
    else:
        target = values - start
    power = (forms**2).sum(axis=-1)
    match = np.maximum((forms * target).sum(axis=-1), 0.0)
    explained = np.divide(match**2, power, out=np.zeros_like(power), where=power > 0)
    return int(candidates[int(np.argmax(explained.max(axis=0)))])
