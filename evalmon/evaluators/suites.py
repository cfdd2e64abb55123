"""Suites: which tasks a name in ``evaluation.tasks`` stands for, and what each is called.

Three kinds of names, never two tasks for one:

- a suite: ``olmo-core8-0shot`` (eight tasks as AI2's trainers score them in loop) or
  ``olmes-core8-5shot`` (ready requests with worked examples in the prompt);
- a label of AI2's, which ends in its shots: ``arc_easy_0shot``, ``arc_easy_rc_5shot``,
  ``boolq_val_rc_5shot``; it is also the stem of the task's metric names;
- a task of lm-eval's, as lm-eval calls it: plain ``arc_easy`` is lm-eval's own, with
  lm-eval's prompt and the shots of the settings. Its metrics' stem is ``arc_easy_0shot``
  at 0 shots, so it and AI2's cannot stand in one configuration.

Source: the labels and primary metrics of OLMo-in-loop-evals 0.9.0.
"""

import difflib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from evalmon.errors import ConfigError
from evalmon.package_data import REQUEST_FILES, TASK_FILES

__all__ = ["LABELS", "SUITES", "TaskChoice", "expand", "primary_metric"]

SUITES: Final[dict[str, tuple[str, ...]]] = {
    "olmo-core8-0shot": tuple(f"{task}_0shot" for task in TASK_FILES),
    "olmes-core8-5shot": (
        "arc_easy_rc_5shot",
        "arc_challenge_rc_5shot",
        "boolq_rc_5shot",
        "hellaswag_rc_5shot",
        "openbookqa_rc_5shot",
        "piqa_rc_5shot",
        "sciq_rc_0shot",
        "winogrande_rc_5shot",
    ),
}
"""Suite to the labels of its tasks."""

LABELS: Final = frozenset((*SUITES["olmo-core8-0shot"], *REQUEST_FILES))
"""Every label; those of validation and test sets stand alone, for curves that use them."""

_LENGTH_NORMALIZED: Final = frozenset({
    "arc_challenge_0shot", "hellaswag_0shot", "openbookqa_0shot", "piqa_0shot",
    "arc_challenge_rc_5shot", "hellaswag_rc_5shot", "openbookqa_rc_5shot", "piqa_rc_5shot",
    "arc_easy_val_rc_5shot", "arc_easy_test_rc_5shot", "arc_challenge_val_rc_5shot",
    "arc_challenge_test_rc_5shot", "hellaswag_val_rc_5shot", "openbookqa_val_rc_5shot",
    "openbookqa_test_rc_5shot", "piqa_val_rc_5shot", "winogrande_val_rc_5shot",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class TaskChoice:
    """One task to score.

    Attributes:
        name: what lm-eval calls it, and evalmon its evaluator and files.
        task: its name without the shots.
        shots: worked examples a prompt.
        suite: the suite it was asked for in, "" alone.
        packaged: whether it is AI2's, of the package; else lm-eval's own.
    """

    name: str
    task: str
    shots: int
    suite: str
    packaged: bool

    @property
    def stem(self) -> str:
        """Return what stands between ``eval/downstream/`` and the metric."""
        return f"{self.task}_{self.shots}shot"


def expand(
    names: Iterable[str],
    shots: int,
    known: Callable[[], Collection[str]],
    only: Collection[str] | None = None,
) -> tuple[TaskChoice, ...]:
    """Return the tasks that names stand for, in order; a task named twice is scored once.

    Args:
        names: suites, labels and lm-eval's own names.
        shots: worked examples a prompt of lm-eval's own tasks.
        known: lists lm-eval's own names; asked only for a name found nowhere else.
        only: lm-eval's own tasks there are rows for, None for all.

    Raises:
        ConfigError: an unknown name (the nearest are given), or two tasks whose metrics
            would have one name.
    """
    found: dict[str, TaskChoice] = {}
    for name in names:
        for choice in _meant(name, shots, known, only):
            other = found.setdefault(choice.stem, choice)
            if other.name != choice.name:
                ours, theirs = (other, choice) if other.packaged else (choice, other)
                raise ConfigError(
                    f"evaluation.tasks: {ours.name!r} (AI2's) and {theirs.name!r} with {shots} "
                    f"shots (lm-eval's own) would both write eval/downstream/{choice.stem}/…; "
                    "take one of them out or change evaluation.shots"
                )
    return tuple(found.values())


def primary_metric(name: str) -> str:
    """Return the metric a task is judged by: ``acc`` or ``len_norm``.

    Args:
        name: a label, or a task of lm-eval's own (judged by ``acc``).

    Example:
        >>> primary_metric("hellaswag_0shot"), primary_metric("sciq_rc_0shot")
        ('len_norm', 'acc')
    """
    return "len_norm" if name in _LENGTH_NORMALIZED else "acc"


def _meant(
    name: str, shots: int, known: Callable[[], Collection[str]], only: Collection[str] | None
) -> list[TaskChoice]:
    """Return the tasks of one name."""
    if name in SUITES:
        return [_packaged(label, name) for label in SUITES[name]]
    if name in LABELS:
        return [_packaged(name, "")]
    own = only if only is not None else TASK_FILES
    if name not in own:
        ours = (*SUITES, *sorted(LABELS))
        like_ours = name.startswith("olm") or name.endswith(("shot", "shots"))
        if like_ours and difflib.get_close_matches(name, ours, n=1, cutoff=0.9):
            raise ConfigError(_unknown(name, ours))  # listing lm-eval's tasks takes half a minute
        every = own if only is not None else known()
        if name not in every:
            hint = "" if only is None else "; task_data holds rows of these only"
            raise ConfigError(_unknown(name, (*ours, *sorted(every))) + hint)
    return [TaskChoice(name, name, shots, "", packaged=False)]


def _packaged(label: str, suite: str) -> TaskChoice:
    """Return a task of AI2's: its shots are the last part of its label."""
    task, _, shots = label.rpartition("_")
    return TaskChoice(label, task, int(shots.removesuffix("shot")), suite, packaged=True)


def _unknown(name: str, every: Collection[str]) -> str:
    """Say that a name is unknown, and which may have been meant."""
    near = difflib.get_close_matches(name, every, n=3)
    meant = " or ".join(repr(item) for item in near)
    shown = ", ".join(list(every)[-30:]) + (" and more" if len(every) > 30 else "")
    hint = f"did you mean {meant}?" if near else f"known are {shown}"
    return f"evaluation.tasks: unknown task or suite {name!r}; {hint}"
