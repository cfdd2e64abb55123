"""Points of one run made into curves: what every reader of tables shares.

Names become canonical, values that are no number are set aside and counted, tokens are checked
against steps, and each curve is told how its points were chosen.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from evalmon import sampling, tags
from evalmon.errors import ConfigError, DataError
from evalmon.logs.points import NO_TOKENS, Found, Points, Reading, nonfinite_note, settled
from evalmon.types import Curve, RunCurves, Sampling, Series

__all__ = ["curves_of", "unknown_note"]

_TRAIN = "train/ce_nats"
_MIX = "data/mix"
_LOGGED_BY_TRAINER = ("train/", "optim/", "data/")
_CURVES_OF_TRAINER = ("train/", "optim/")
_LARGEST = int(np.iinfo(np.int64).max)
_APART = 0.01
"""Relative difference of two metrics' tokens at one step that is no matter of counting."""


def curves_of(reading: Reading, points: Sequence[Points]) -> RunCurves:
    """Make the curves of one run.

    Args:
        reading: what holds for the whole file.
        points: rows of each metric, each name once.

    Returns:
        One curve a known metric; unknown names and whatever else was left out are in ``notes``.

    Raises:
        DataError: no known metric, two names of one metric, a step twice with other values, a
            step or tokens that cannot be, tokens missing or not rising with the steps.
        ConfigError: ``tokens_per_step`` is not above 0.
    """
    found = Found(list(reading.notes), set(reading.seams), superseded=reading.superseded)
    if reading.tokens_per_step is not None and reading.tokens_per_step <= 0:
        raise ConfigError(f"tokens per step must be above 0, got {reading.tokens_per_step}")
    known = _known(reading, points, found)
    lead = next((n for n in (_TRAIN, *known) if n in known and _by_trainer(n)), "")
    parts = {name: part for name, (_, part) in known.items()}
    curves: dict[str, Curve] = {}
    for name, part in settled(reading, parts, lead, found).items():
        whole = _finite(name, _with_tokens(reading, part), found)
        if len(whole.steps) == 0:
            continue
        _check_tokens(reading, whole)
        assert whole.tokens is not None
        curve = Series(name, whole.steps, whole.tokens, whole.values)
        curves[name] = Curve(curve, known[name][0].facts)
    _check_agreement(reading, curves)
    curves = _with_sampling(reading, curves, found)
    return RunCurves(
        name=reading.name,
        source=reading.source,
        curves=curves,
        tokens_per_step=_tokens_per_step(reading, curves, found),
        seams=tuple(sorted(found.seams)),
        data_changes=_data_changes(curves),
        nonfinite=tuple(sorted(found.nonfinite)),
        superseded=found.superseded,
        notes=tuple(found.notes),
    )


def _known(
    reading: Reading, points: Sequence[Points], found: Found
) -> dict[str, tuple[tags.Tag, Points]]:
    """Map the file's names to canonical ones; note the unknown, refuse what is double."""
    source = _trainer([part.tag for part in points])
    meant: dict[str, list[tuple[tags.Tag, Points]]] = {}
    unknown: list[str] = []
    for part in points:
        try:
            tag = tags.look_up(part.tag, source) or tags.look_up(part.tag)
        except ConfigError as error:
            raise DataError(f"{reading.source}: {error}") from error
        if tag is None:
            unknown.append(part.tag)
        else:
            meant.setdefault(tag.metric, []).append((tag, part))
    known = {metric: _taken(reading, metric, named) for metric, named in meant.items()}
    if not known:
        first = points[0]
        near = ", ".join(tags.nearest(first.tag)) or "train/ce_nats"
        raise DataError(
            f"{reading.source}: {reading.place(int(first.rows[0]))}: metric {first.tag!r} is not "
            f"known, nor is any other of run {reading.name!r}; nearest are {near}: rename it to "
            "a canonical name"
        )
    found.notes += [f"{part.tag} {tag.note}" for tag, part in known.values() if tag.note]
    beside = len(points) - len(unknown) - len(known)
    if beside:
        names = "name" if beside == 1 else "names"
        found.notes.append(f"{beside} {names} left out beside others of the same metrics")
    if unknown:
        found.notes.append(unknown_note(unknown))
    return known


def _taken(
    reading: Reading, metric: str, named: Sequence[tuple[tags.Tag, Points]]
) -> tuple[tags.Tag, Points]:
    """Return the one of a metric's names that counts; refuse where two do, or two trainers' do."""
    first = [item for item in named if item[0].goes_first]
    written = [tags.sources_of(part.tag) for _, part in named]
    if not first or not frozenset[str].intersection(*written):
        first = list(named)
    if len(first) > 1:
        raise DataError(
            f"{reading.source}: {first[0][1].tag!r} and {first[1][1].tag!r} are both {metric}; "
            "keep one of them, or give them canonical names of their own"
        )
    return first[0]


def unknown_note(names: Sequence[str]) -> str:
    """Say which names are left out because they are not known, those close to a holdout's first.

    Args:
        names: at least one.

    Example:
        >>> unknown_note(["perf/mfu", "eval/lm/c4_en/ce_nats"])
        'left out, not known: eval/lm/c4_en/ce_nats (nearest is eval/lm/c4_en-validation/ce_nats), \
perf/mfu'
    """
    shown: list[str] = []
    for name in sorted(names, key=lambda name: (not tags.holdout_meant(name), name))[:10]:
        meant = tags.holdout_meant(name)
        # Any name is closest to some other; of those no holdout's, only a slip is worth saying.
        close = meant or next(iter(tags.slips(name)), "")
        shown.append(f"{name} (nearest is {close})" if close else name)
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"left out, not known: {', '.join(shown)}{more}"


def _trainer(names: Sequence[str]) -> str:
    """Return the trainer most names are of, "" where two come equally close."""
    counts = Counter(source for name in names for source in tags.sources_of(name))
    most = counts.most_common(2)
    return most[0][0] if len(most) == 1 or (most and most[0][1] > most[1][1]) else ""


def _by_trainer(name: str) -> bool:
    """Return whether a metric is logged by the training loop itself."""
    return name.startswith(_LOGGED_BY_TRAINER)


def _with_tokens(reading: Reading, part: Points) -> Points:
    """Fill in tokens the file does not have."""
    empty = np.ones(len(part.steps), np.bool_) if part.tokens is None else part.tokens == NO_TOKENS
    if part.tokens is not None and not bool(empty.any()):
        return part
    if reading.tokens_per_step is None:
        at = int(np.flatnonzero(empty)[0])
        raise DataError(
            f"{reading.source}: {reading.place(int(part.rows[at]))}: step {part.steps[at]} of "
            f"{part.tag} has no tokens, and runs are compared at equal tokens; add them, or give "
            "--tokens-per-step"
        )
    if int(part.steps.max()) > _LARGEST // reading.tokens_per_step:
        at = int(np.argmax(part.steps))
        raise DataError(
            f"{reading.source}: {reading.place(int(part.rows[at]))}: step {part.steps[at]} of "
            f"{part.tag} times {reading.tokens_per_step} tokens per step is above {_LARGEST:,}; "
            "correct the step or --tokens-per-step"
        )
    counted = part.steps * reading.tokens_per_step
    filled = counted if part.tokens is None else np.where(empty, counted, part.tokens)
    return replace(part, tokens=filled)


def _finite(name: str, part: Points, found: Found) -> Points:
    """Set aside values that are no number, and say so."""
    finite = np.isfinite(part.values)
    if bool(finite.all()):
        return part
    steps = part.steps[~finite]
    found.nonfinite.extend((int(step), name) for step in steps)
    found.notes.append(nonfinite_note(name, steps, every=not bool(finite.any())))
    return part.take(np.flatnonzero(finite))


def _check_tokens(reading: Reading, part: Points) -> None:
    """Refuse tokens that are negative or do not rise with the steps."""
    assert part.tokens is not None
    tokens = part.tokens
    if tokens[0] >= 0 and bool((tokens[1:] > tokens[:-1]).all()):
        return
    at = int(np.flatnonzero(np.diff(tokens, prepend=-1) <= 0)[0])
    before = f", after {part.tokens[at - 1]} at step {part.steps[at - 1]}" if at else ""
    raise DataError(
        f"{reading.source}: {reading.place(int(part.rows[at]))}: {part.tokens[at]} tokens at step "
        f"{part.steps[at]} of {part.tag}{before}: tokens must be >= 0 and rise with the steps; "
        "give the tokens trained on since the beginning of the run"
    )


def _check_agreement(reading: Reading, curves: Mapping[str, Curve]) -> None:
    """Refuse two metrics that put one step at quite different tokens."""
    if len(curves) < 2:
        return
    longest = max((curve.series for curve in curves.values()), key=len)
    for curve in curves.values():
        mine = curve.series
        if mine is longest:
            continue
        at = np.minimum(np.searchsorted(longest.steps, mine.steps), len(longest.steps) - 1)
        apart = np.abs(longest.tokens[at] - mine.tokens)
        step_tokens = longest.tokens[-1] / max(int(longest.steps[-1]), 1)
        far = apart > np.maximum(_APART * mine.tokens, 2 * step_tokens)
        wrong = np.flatnonzero((longest.steps[at] == mine.steps) & far)
        if len(wrong):
            i = int(wrong[0])
            raise DataError(
                f"{reading.source}: step {mine.steps[i]} is at {mine.tokens[i]} tokens for "
                f"{mine.metric} and at {longest.tokens[at[i]]} for {longest.metric}; give both "
                "in tokens trained on since the beginning"
            )


def _with_sampling(reading: Reading, curves: Mapping[str, Curve], found: Found) -> dict[str, Curve]:
    """Say of each curve how its points were chosen."""
    others = [c.series.steps for name, c in curves.items() if not _by_trainer(name)]
    evaluations = np.unique(np.concatenate(others)) if others else None
    result: dict[str, Curve] = {}
    for name, curve in curves.items():
        how, note = Sampling.FULL, ""
        if reading.partial:
            how, note = Sampling.SAMPLED, reading.partial
        elif reading.thinned and name == _TRAIN:
            how, note = Sampling.THINNED, "declared thinned by a rule that does not see the values"
        elif name.startswith(_CURVES_OF_TRAINER):  # of data/ every change may be logged alone
            how, note = sampling.recognize(
                curve.series.steps, evaluations=evaluations, both_keys=reading.both_keys
            )
        if how is Sampling.SAMPLED:
            found.notes.append(f"{name} is sampled: {note}")
        result[name] = replace(curve, sampling=how, note=note)
    if any(c.sampling is Sampling.SAMPLED for name, c in result.items() if _by_trainer(name)):
        for name, curve in result.items():
            if not _by_trainer(name) and curve.sampling is Sampling.FULL:
                how, note = sampling.recognize(curve.series.steps)
                result[name] = replace(curve, sampling=how, note=note)
    return result


def _data_changes(curves: Mapping[str, Curve]) -> tuple[int, ...]:
    """Return the steps after which the run went on with another mix, of the mix's numbers."""
    if _MIX not in curves:
        return ()
    mix = curves[_MIX].series
    changed = np.flatnonzero(np.diff(mix.values)) + 1
    return tuple((mix.steps[changed] - 1).tolist())


def _tokens_per_step(reading: Reading, curves: Mapping[str, Curve], found: Found) -> int | None:
    """Return the tokens of one step where every curve says the same, else None."""
    each: set[int] = set()
    for curve in curves.values():
        steps, tokens = curve.series.steps, curve.series.tokens
        if len(steps) < 2:
            continue
        size, rest = divmod(int(tokens[-1] - tokens[0]), int(steps[-1] - steps[0]))
        if rest or not bool((tokens - tokens[0] == size * (steps - steps[0])).all()):
            size = 0
        each.add(size)
    if each and reading.tokens_per_step and each != {reading.tokens_per_step}:
        found.notes.append(
            f"tokens are the file's own, not {reading.tokens_per_step} a step as given"
        )
    return (next(iter(each)) or None) if len(each) == 1 else None
