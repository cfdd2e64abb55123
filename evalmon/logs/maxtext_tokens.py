"""The tokens a MaxText run had trained on at each step, from whatever its log says of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evalmon.errors import DataError
from evalmon.logs.maxtext_lines import Row
from evalmon.logs.maxtext_values import MOST_STEPS, MOST_TOKENS_A_STEP, whole
from evalmon.types import FloatArray, IntArray

__all__ = ["TokenAxis", "token_axis"]


@dataclass(frozen=True, slots=True)
class TokenAxis:
    """Steps and their tokens.

    Attributes:
        steps: [n] updates completed, rising.
        tokens: [n] tokens trained on by then.
        per_step: [n] tokens of each of these steps.
        tokens_per_step: of every step, None where they differ or only those in the loss are known.
        planned_tokens: of the whole schedule, None where the log does not print its settings.
        warmup_tokens: of learning-rate warm-up, 0 likewise.
        note: how they are known; when they were given, what the log says against it, else "".
    """

    steps: IntArray
    tokens: IntArray
    per_step: FloatArray
    tokens_per_step: int | None
    planned_tokens: int | None
    warmup_tokens: int
    note: str

    def at(self, steps: IntArray) -> IntArray:
        """Return the tokens at other steps, also beyond the last one: lines come late."""
        inside = np.interp(steps, np.append(0, self.steps), np.append(0, self.tokens))
        beyond = np.maximum(steps - self.steps[-1], 0) * self.per_step[-1]
        return np.rint(inside + beyond).astype(np.int64)


def token_axis(
    path: Path,
    rows: Sequence[Row],
    rules: Sequence[tuple[int, int]],
    settings: Mapping[str, str],
    given: int | None,
) -> TokenAxis:
    """Return the tokens of each step.

    Args:
        path: the log, for messages.
        rows: at least one, one a step, by rising step.
        rules: (first step, tokens of one step) by the loader's lines.
        settings: name -> value as printed at start-up.
        given: tokens of one step by the caller, None for what the log says.

    Returns:
        Tokens by the first of: the caller, the loader's line, the printed settings, the tokens
        counted in the loss. Where a batch still grows, the latter tell its size.

    Raises:
        DataError: nothing tells tokens, or printed settings tell a batch that cannot be.
    """
    steps: IntArray = np.array([row.step for row in rows], np.int64)
    weights: FloatArray = np.array([row.weight for row in rows], np.float64)
    weighed = weights > 0
    stated = _stated(settings)
    note, trained = "", True
    if given is not None:
        per_step = np.full(len(rows), float(given))
        note = _contradiction(given, rules, stated)
    elif rules:
        sizes: FloatArray = np.array([rule[1] for rule in rules], np.float64)
        place = np.searchsorted(np.array([rule[0] for rule in rules]), steps, side="right")
        per_step = sizes[np.maximum(place - 1, 0)]
        note = "tokens per step are from the loader's line: batch of a host, hosts and length"
    elif stated:
        if stated > MOST_TOKENS_A_STEP:
            raise DataError(
                f"{path}: global_batch_size_to_train_on times max_target_length is {stated:,} "
                f"tokens a step as printed, and no batch has more than {MOST_TOKENS_A_STEP:,}; "
                "give --tokens-per-step"
            )
        per_step = np.full(len(rows), float(stated))
        note = "tokens per step are from the printed settings: global batch and length"
    elif weighed.any():
        per_step, note = _counted(steps, weights)
        trained = False
    else:
        raise DataError(
            f"{path}: {len(rows)} steps and nothing that tells their tokens: no loader's line, no "
            "global_batch_size_to_train_on, no total_weights; give --tokens-per-step"
        )
    if given is None:
        growing = weighed & np.array([row.rampup for row in rows])
        per_step = np.where(growing, weights, per_step)
    tokens = np.rint(np.cumsum(per_step * np.diff(steps, prepend=0))).astype(np.int64)
    constant = trained and bool((per_step == per_step[0]).all())
    planned = _planned_steps(settings)
    total = int(tokens[-1]) + round((planned - int(steps[-1])) * float(per_step[-1]))
    known = planned > 0 and total > 0
    return TokenAxis(
        steps=steps,
        tokens=tokens,
        per_step=per_step,
        tokens_per_step=int(per_step[0]) if constant else None,
        planned_tokens=total if known else None,
        warmup_tokens=round(_warmup_fraction(settings) * total) if known else 0,
        note=note,
    )


def _contradiction(given: int, rules: Sequence[tuple[int, int]], stated: int | None) -> str:
    """Return what to say where the log has other tokens per step than were given, else ""."""
    logged = sorted({size for _, size in rules}) or ([stated] if stated else [])
    if not logged or logged == [given]:
        return ""
    line = "the loader's line says" if rules else "the printed settings say"
    return (
        f"tokens per step are {given:,} as given; {line} {', '.join(f'{n:,}' for n in logged)}, "
        "which is not used"
    )


def _counted(steps: IntArray, weights: FloatArray) -> tuple[FloatArray, str]:
    """Return tokens a step by those counted in the loss; steps without a line get the median."""
    known = weights > 0
    usual = float(np.median(weights[known]))
    gaps = np.diff(steps, prepend=0)
    per_step = (np.where(known, weights, usual) + (gaps - 1) * usual) / gaps
    note = (
        "tokens are those counted in the loss (total_weights), added up, for want of a loader's "
        "line; --tokens-per-step gives those trained on"
    )
    lost = int(gaps.sum()) - int(np.count_nonzero(known))
    if lost:
        note += f"; {lost} steps that print none are taken to have {usual:.0f} each"
    return per_step, note


def _stated(settings: Mapping[str, str]) -> int | None:
    """Return the tokens of a step by the printed settings, None without."""
    batch = whole(settings.get("global_batch_size_to_train_on", ""))
    length = whole(settings.get("max_target_length", ""))
    return batch * length or None if batch is not None and length is not None else None


def _planned_steps(settings: Mapping[str, str]) -> int:
    """Return the steps of the schedule by the printed settings, 0 without.

    -1 means unset, and more steps than any run has mean until somebody stops it.
    """
    for name in ("learning_rate_schedule_steps", "steps"):
        steps = whole(settings.get(name, ""))
        if steps and steps <= MOST_STEPS:
            return steps
    return 0


def _warmup_fraction(settings: Mapping[str, str]) -> float:
    """Return the share of the schedule that is warm-up by the printed settings, 0 without."""
    try:
        fraction = float(settings.get("warmup_steps_fraction", "0"))
    except ValueError:
        return 0.0
    return fraction if 0 <= fraction <= 1 else 0.0
