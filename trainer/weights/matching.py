"""Found tensors against expected ones: every difference is named, in one line."""

import re
from collections.abc import Iterable, Mapping

from evalmon.errors import CheckpointError
from trainer.weights.names import Axes

__all__ = ["grouped", "require_tensors"]

_NUMBER = re.compile(r"\d+")
_LAYER = re.compile(r"layers[._/](\d+)")
_LISTED = 24


def require_tensors(
    found: Mapping[str, tuple[int, ...]],
    expected: Mapping[str, Axes],
    sizes: Mapping[str, int],
    place: str,
    fields: Mapping[str, str],
) -> None:
    """Refuse tensors that are not exactly those of the model.

    Args:
        found: shapes by the names the source has for them.
        expected: axes by the same names.
        sizes: length of each axis, as the configuration says.
        place: the source, for messages.
        fields: what the configuration calls each axis, and its number of layers
            (``layers``).

    Raises:
        CheckpointError: tensors missing, unknown or misshaped; or all tensors agree on
            another value of a field than the configuration has.
    """
    missing = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected]
    if missing or extra:
        _refuse_other_depth(found, expected, place, fields["layers"])
        raise CheckpointError(
            f"{place}: missing {grouped(missing)}; unknown {grouped(extra)}; expected are the "
            f"{len(expected)} tensors of an OLMo 3, under exactly these names"
        )
    for axis, size in sizes.items():
        lengths = {
            found[name][axes.index(axis)]
            for name, axes in expected.items()
            if axis in axes and len(found[name]) == len(axes)
        }
        if len(lengths) == 1 and lengths != {size}:
            name = next(name for name, axes in expected.items() if axis in axes)
            raise CheckpointError(
                f"{place}: {fields[axis]} is {size}, but the tensors have {lengths.pop()} "
                f"({name} is {list(found[name])}); correct the configuration"
            )
    wrong = [
        f"{name} is {list(found[name])}, expected {shape}"
        for name, axes in expected.items()
        if list(found[name]) != (shape := [sizes[axis] for axis in axes])
    ]
    if wrong:
        more = f"; and {len(wrong) - _LISTED} more" if len(wrong) > _LISTED else ""
        raise CheckpointError(f"{place}: misshaped tensors: {'; '.join(wrong[:_LISTED])}{more}")


def grouped(names: Iterable[str]) -> str:
    """Return names in few words: those that differ in one number alone stand together.

    Example:
        >>> grouped(["layers.0.a", "layers.1.a", "layers.3.a", "b"])
        'layers.{0-1,3}.a, b'
        >>> grouped([])
        'none'
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for name in names:
        number = _NUMBER.search(name)
        if number is None:
            groups[name, ""] = []
        else:
            parts = name[: number.start()], name[number.end() :]
            groups.setdefault(parts, []).append(int(number[0]))
    listed = [
        head
        if not numbers
        else f"{head}{numbers[0]}{tail}"
        if len(numbers) == 1
        else f"{head}{{{_ranges(numbers)}}}{tail}"
        for (head, tail), numbers in groups.items()
    ]
    if len(listed) > _LISTED:
        listed = [*listed[:_LISTED], f"and {len(listed) - _LISTED} more"]
    return ", ".join(listed) or "none"


def _ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers as ranges, ``0-3,7``."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in ranges)


def _refuse_other_depth(
    found: Iterable[str], expected: Iterable[str], place: str, field: str
) -> None:
    """Raise when names differ only because there are more or fewer whole layers."""
    names, wanted = list(found), list(expected)
    present, depth = _layers(names), len(_layers(wanted))
    if present != set(range(len(present))) or len(present) == depth:
        return
    shared = min(len(present), depth)
    patterns = {_LAYER.sub("layers", n, count=1) for n in wanted}
    per_layer = len([n for n in wanted if (m := _LAYER.search(n)) and m[1] == "0"])
    beside = len(wanted) - depth * per_layer
    complete = len(names) == beside + len(present) * per_layer
    if shared and complete and {_LAYER.sub("layers", n, count=1) for n in names} == patterns:
        raise CheckpointError(
            f"{place}: {field} is {depth}, but the tensors have {len(present)} layers; correct the "
            "configuration"
        )


def _layers(names: Iterable[str]) -> set[int]:
    """Return the layer numbers in names."""
    return {int(match[1]) for name in names if (match := _LAYER.search(name))}
