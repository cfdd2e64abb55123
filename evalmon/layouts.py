"""Trees of parameters as other trainers store them, brought to one form.

What the seam to a model reads is a nested mapping whose leaves are arrays and whose layers
are numbered by text, from ``"0"`` on. Saved trees differ in what stands around the
parameters (optimizer state, the step) and in how layers are numbered: as a list, or as text
that sorts ``"10"`` before ``"2"``. The number decides here, never the order of storage.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from evalmon.errors import CheckpointError

__all__ = ["numbered", "root_of_parameters", "subtree"]

_ROOTS: Final = ("params", "model")
"""Names a saved training state gives its parameters."""

_STATE: Final = frozenset(
    {
        *("ema", "epoch", "nnx_aux", "opt", "opt_state", "optimizer", "optimizer_state"),
        *("rng", "state", "step"),
    }
)
"""Names that stand beside the parameters in a saved training state."""


def root_of_parameters(tree: Any, place: str) -> tuple[str, ...]:
    """Return the names that lead from the top of a saved tree to its parameters.

    Args:
        tree: the saved tree, or only its structure.
        place: where it is from, for messages.

    Returns:
        No name where the tree is the parameters; ``("params",)`` beside ``opt_state`` and
        ``step``; ``("model",)`` beside ``optimizer``; ``("params", "params")`` in MaxText's.

    Raises:
        CheckpointError: a training state in which the parameters are not found, or found twice.

    Example:
        >>> root_of_parameters({"params": {"params": {"w": 0}}, "opt_state": [], "step": 0}, "x")
        ('params', 'params')
        >>> root_of_parameters({"layers": {}, "norm": {}}, "x")
        ()
    """
    if not isinstance(tree, Mapping):
        return ()
    names = {str(key) for key in cast("Mapping[Any, Any]", tree)}
    state, roots = names & _STATE, [name for name in _ROOTS if name in names]
    is_state = bool(roots) and names - {*_ROOTS} <= _STATE and (bool(state) or "params" in names)
    if state and (not is_state or len(roots) > 1):
        raise CheckpointError(
            f"{place}: holds {sorted(names)}, a training state whose parameters are "
            f"{'not under' if len(roots) != 1 else 'among others beside'} one of {list(_ROOTS)}; "
            "save the parameters alone"
        )
    if not is_state:
        return ()
    return (roots[0], *root_of_parameters(tree[roots[0]], f"{place}: {roots[0]}"))


def subtree(tree: Any, names: Sequence[str]) -> Any:
    """Return what stands under these names."""
    for name in names:
        tree = tree[name]
    return tree


def numbered(tree: Any, place: str) -> Any:
    """Return a tree of nested mappings in which sequences and numbers as text are in order.

    Args:
        tree: nested mappings and sequences with arrays as leaves.
        place: where it is from, for messages.

    Returns:
        The same arrays; the children of a sequence are named ``"0"``, ``"1"``, …; children
        that all have numbers for names stand in rising order, without leading zeros.

    Raises:
        CheckpointError: two names mean the same number.

    Example:
        >>> list(numbered({"layers": {"10": 0, "02": 0, "1": 0}}, "x")["layers"])
        ['1', '2', '10']
        >>> numbered({"layers": [7, 8]}, "x")
        {'layers': {'0': 7, '1': 8}}
    """
    if isinstance(tree, list | tuple):
        children = cast("Sequence[Any]", tree)
        return {str(i): numbered(child, f"{place}/{i}") for i, child in enumerate(children)}
    if not isinstance(tree, Mapping):
        return tree
    named = {str(key): value for key, value in cast("Mapping[Any, Any]", tree).items()}
    if named and all(name.isascii() and name.isdigit() for name in named):
        named = _in_order(named, place)
    return {name: numbered(child, f"{place}/{name}") for name, child in named.items()}


def _in_order(children: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return children named by number in rising order."""
    found: dict[int, str] = {}
    for name in children:
        other = found.setdefault(int(name), name)
        if other != name:
            raise CheckpointError(f"{place}: {other!r} and {name!r} both mean number {int(name)}")
    return {str(number): children[found[number]] for number in sorted(found)}
