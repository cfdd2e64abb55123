"""Published curves: healthy runs, and runs that read the same text again and again."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from evalmon import reference
from evalmon.detectors.curve import CurveInputs
from evalmon.types import Series

__all__ = ["CURVES", "TRAIN", "Published", "healthy", "inputs", "repeated"]

CURVES = Path(__file__).resolve().parents[4] / "shared" / "curves"
"""The tables the project was given, beside its own folder; absent elsewhere."""

TRAIN = "train/ce_nats"
C4 = "eval/lm/c4_en-validation/ce_nats"
_FINEWEB = "eval/lm/fineweb-validation/ce_nats"


@dataclass(frozen=True, slots=True)
class Published:
    """One published run.

    Attributes:
        name: short name.
        train: its train loss, thinned.
        holdout: its holdout loss.
    """

    name: str
    train: Series
    holdout: Series

    @property
    def planned_tokens(self) -> int:
        """The last tokens known of it."""
        return int(max(self.train.tokens[-1], self.holdout.tokens[-1]))


def inputs(run: Published, against: Published | None = None) -> CurveInputs:
    """Return what the rule reads of a published run, alone or against another."""
    return CurveInputs(
        train=run.train,
        holdout=run.holdout,
        planned_tokens=run.planned_tokens,
        reference_train=against.train if against else None,
        reference_holdout=against.holdout if against else None,
        thinned=True,
        reference_thinned=against is not None,
    )


@cache
def healthy() -> dict[str, Published]:
    """Return the healthy runs that have a train loss, by short name.

    Where the project's tables are absent: Olmo 3 and OLMo 2 of the installed reference curves.
    """
    if not CURVES.is_dir():
        return {name: _bundled(name) for name in ("olmo3-7b-stage1", "olmo2-7b-stage1")}
    olmo3 = _read("olmo3_7b_stage1_train_and_evals.csv")
    olmo2 = _read("olmo2_7b_stage1_train.csv") | _read("olmo2_7b_stage1_evals.csv.gz")
    pair = _read("gpt2_124m_one_pass_pair.csv.gz")
    runs = {
        "olmo3-7b-stage1": ("Olmo-3-1025-7B-stage1", C4, olmo3),
        "olmo2-7b-stage1": ("OLMo-2-1124-7B-stage1", C4, olmo2),
        "gpt2-124m-a": ("gpt2-124M-one-pass-a", _FINEWEB, pair),
        "gpt2-124m-b": ("gpt2-124M-one-pass-b", _FINEWEB, pair),
    }
    return {
        name: Published(name, table[run, TRAIN], table[run, holdout])
        for name, (run, holdout, table) in runs.items()
    }


@cache
def repeated() -> tuple[Published, ...]:
    """Return the runs of 12 to 25 epochs on the same 100M tokens, none without the tables."""
    if not CURVES.is_dir():
        return ()
    table = _read("repeated_epochs_train_vs_holdout.csv")
    names = dict.fromkeys(run for run, _ in table)
    return tuple(Published(name, table[name, TRAIN], table[name, _FINEWEB]) for name in names)


def _bundled(name: str) -> Published:
    """Return a run of the installed reference curves."""
    curves = reference.load(name, (TRAIN, C4)).curves
    return Published(name, _trained(curves[TRAIN].series), _trained(curves[C4].series))


def _trained(series: Series) -> Series:
    """Return a series without points of the untrained model."""
    kept = series.tokens > 0
    return Series(series.metric, series.steps[kept], series.tokens[kept], series.values[kept])


def _read(file: str) -> dict[tuple[str, str], Series]:
    """Read a tidy table: (run, metric) -> its points by step, the last of each step."""
    import pandas as pd

    table = pd.read_csv(CURVES / file)
    labels = [table[column].to_numpy(np.str_) for column in ("run", "metric")]
    steps, tokens = (table[column].to_numpy(np.int64) for column in ("step", "tokens"))
    values = table["value"].to_numpy(np.float64)
    found: dict[tuple[str, str], Series] = {}
    for run, metric in dict.fromkeys(zip(*(label.tolist() for label in labels), strict=True)):
        rows = np.flatnonzero((labels[0] == run) & (labels[1] == metric) & (tokens > 0))
        rows = rows[np.argsort(steps[rows], kind="stable")]
        if len(rows):
            rows = rows[np.append(np.diff(steps[rows]) > 0, True)]
            found[run, metric] = Series(metric, steps[rows], tokens[rows], values[rows])
    return found
