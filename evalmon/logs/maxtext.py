"""MaxText's standard output, read into curves.

MaxText prints one line a completed step, its loss to three decimals. It counts steps from 0, its
loss is divided by the tokens counted in it (``total_weights``), and the loss of a step and of an
evaluation both hold the z-loss: about 0.001 nats that another trainer's curve has not.
"""

import difflib
import re
import zlib
from pathlib import Path

import numpy as np

from evalmon.errors import ConfigError, DataError
from evalmon.logs.maxtext_hosts import History, history
from evalmon.logs.maxtext_lines import HEAD, LogLines, open_text, read_lines
from evalmon.logs.maxtext_tokens import TokenAxis, token_axis
from evalmon.logs.maxtext_values import MOST_TOKENS_A_STEP, plain
from evalmon.logs.points import nonfinite_note
from evalmon.sampling import recognize
from evalmon.types import Curve, FloatArray, IntArray, Json, RunCurves, Sampling, Series

__all__ = ["read", "recognizes", "runs"]

_TRAIN = "train/ce_nats"
_DIVISOR: dict[str, Json] = {"divisor": "total_weights"}
_USUAL_Z_NATS = 0.001
"""1e-5 times the square of a log-normalizer near 10."""
_RESOLUTION = "printed to three decimals: values are whole multiples of 0.001 nats"
_DECLARED = "declared thinned by a rule that does not look at the values"
_PROBE_CHARACTERS = 2_000_000
_DEFAULT_SET = "c4_en"


def recognizes(path: Path) -> bool:
    """Whether a file is the standard output of MaxText, told by its first 2 MB.

    Args:
        path: any path; a folder, a table or another trainer's log is not recognized.
    """
    read, blank = 0, True
    try:
        with open_text(path) as file:
            while read < _PROBE_CHARACTERS and (line := file.readline(_PROBE_CHARACTERS)):
                if blank and line.lstrip().startswith("{"):
                    return False
                if HEAD.search(plain(line)):
                    return True
                read, blank = read + len(line), blank and not line.strip()
    except (OSError, EOFError, zlib.error):  # a gzip file that is still being written ends early
        return False
    return False


def runs(path: Path) -> tuple[str, ...]:
    """Return the ``run_name`` of each run whose lines a log holds; none where it prints no name.

    Raises:
        DataError: it cannot be read.
    """
    return tuple(name for name in read_lines(path).settings_of if name)


def read(
    path: Path,
    run: str | None = None,
    *,
    thinned: bool = False,
    tokens_per_step: int | None = None,
    eval_set: str = _DEFAULT_SET,
) -> RunCurves:
    """Read the curves of a run from MaxText's standard output.

    Args:
        path: the log, plain or gzipped, of one host or several, also while it is being written.
        run: the ``run_name`` that is read where the log prints some, else a name to give the run;
            None for the only one it prints, else the file's name.
        thinned: whether lines were thinned by a rule that does not look at the values.
        tokens_per_step: tokens of one step, None for what the log says: its loader's line, its
            settings, else the tokens counted in the loss, added up.
        eval_set: the evaluation's text, which MaxText does not name.

    Returns:
        Train loss, the evaluations' loss, tokens counted in each step's loss (``data/loss_tokens``)
        and, where the lines give it, z-loss. Step n is the state after n updates.

    Raises:
        DataError: it cannot be read, holds no completed step, another run or several and none is
            named, steps of two processes that nothing tells apart, a batch that cannot be, or
            nothing tells its tokens.
        ConfigError: a name of a text or a number of tokens that is none.
    """
    _check(eval_set, tokens_per_step)
    log = read_lines(path)
    _choose(path, log, run)
    if not any(stream.rows for stream in log.streams.values()):
        raise _no_steps(path, log)
    if tokens_per_step is None:
        _check_batches(path, log)
    past = history(path, log)
    axis = token_axis(path, past.rows, past.token_rules, log.settings, tokens_per_step)
    curves, nonfinite, lost = _curves(past, log, axis, eval_set)
    loss = curves.get(_TRAIN)
    if loss:
        sampling, why = (Sampling.THINNED, _DECLARED) if thinned else recognize(axis.steps)
        note = "; ".join(filter(None, (why, _RESOLUTION)))
        curves[_TRAIN] = Curve(loss.series, loss.facts, sampling, note)
    return RunCurves(
        name=run or _name(path, log.settings),
        source=str(path),
        curves=curves,
        tokens_per_step=axis.tokens_per_step,
        planned_tokens=axis.planned_tokens,
        warmup_tokens=axis.warmup_tokens,
        seams=past.seams,
        nonfinite=nonfinite,
        superseded=past.superseded,
        notes=tuple(filter(None, (axis.note, *lost, *_notes(past, log, eval_set)))),
    )


def _check(eval_set: str, tokens_per_step: int | None) -> None:
    """Refuse arguments that mean nothing."""
    if not re.fullmatch(r"[\w.-]+", eval_set):
        raise ConfigError(
            f"evaluation text {eval_set!r}: expected a name of letters, digits, '-', '_' and '.', "
            "such as c4_en"
        )
    if tokens_per_step is not None and tokens_per_step < 1:
        raise ConfigError(f"{tokens_per_step} tokens per step; a step has at least one")
    if tokens_per_step is not None and tokens_per_step > MOST_TOKENS_A_STEP:
        raise ConfigError(
            f"{tokens_per_step} tokens per step; no batch has more than {MOST_TOKENS_A_STEP:,}"
        )


def _no_steps(path: Path, log: LogLines) -> DataError:
    """Return the refusal of a log without a step, with the first line that looks like one."""
    lost = ""
    if log.first_lost:
        line, what = log.left_out[0]
        lost = f" ({len(log.left_out)} lines left out, first line {line}: {what})"
        lost += f"; the first that looks like one is {log.first_lost!r}"
    return DataError(
        f"{path}: no completed step with a loss{lost}; expected lines such as 'completed step: 0, "
        "seconds: 1.234, loss: 10.123', give MaxText's standard output from its beginning"
    )


def _check_batches(path: Path, log: LogLines) -> None:
    """Refuse a loader's line with a batch that cannot be."""
    for stream in log.streams.values():
        for start in stream.starts:
            if (start.tokens_per_step or 0) > MOST_TOKENS_A_STEP:
                raise DataError(
                    f"{path}: line {start.line}: the loader's per_host_batch, shards and seq make "
                    f"{start.tokens_per_step:,} tokens a step, and no batch has more than "
                    f"{MOST_TOKENS_A_STEP:,}; correct the line, or give --tokens-per-step"
                )


def _choose(path: Path, log: LogLines, run: str | None) -> None:
    """Keep the run that is meant; refuse another than the log names, or several and none asked."""
    named = [name for name in log.settings_of if name]
    listed = ", ".join(named)
    if run is None and len(named) > 1:
        raise DataError(
            f"{path}: lines of {len(named)} runs, by their run_name: {listed}; give --run with "
            "one of them"
        )
    if named and run is not None and run not in named:
        near = difflib.get_close_matches(run, named, n=1)
        hint = f"; nearest is {near[0]!r}" if near and len(named) > 1 else ""
        raise DataError(
            f"{path}: no run {run!r}; the log is of run_name {listed}{hint}: give --run with that"
        )
    if len(named) > 1 and run is not None:
        log.choose(run)


def _name(path: Path, settings: dict[str, str]) -> str:
    """Return the run's name as printed, else the file's without its endings."""
    return settings.get("run_name") or path.name.removesuffix(".gz").rpartition(".")[0] or path.name


def _curves(
    past: History, log: LogLines, axis: TokenAxis, eval_set: str
) -> tuple[dict[str, Curve], tuple[tuple[int, str], ...], list[str]]:
    """Return the curves, (step, metric) of values that are not finite, and notes of these."""
    rows, evaluations = past.rows, past.evaluations
    nats: FloatArray = np.array([row.nats for row in rows], np.float64)
    z_nats: FloatArray = np.array([row.z_nats for row in rows], np.float64)
    weights: FloatArray = np.array([row.weight for row in rows], np.float64)
    eval_nats: FloatArray = np.array([found.nats for found in evaluations], np.float64)
    eval_z: FloatArray = np.array([found.z_nats for found in evaluations], np.float64)
    usual = _usual_z(eval_z, log.settings)
    facts, off = _z_loss(z_nats, usual)
    eval_facts, eval_off = _z_loss(eval_z, usual)
    at: IntArray = np.array([found.step for found in evaluations], np.int64)
    eval_name = f"eval/lm/{eval_set}-validation/ce_nats"
    curves: dict[str, Curve] = {}
    nonfinite: list[tuple[int, str]] = []
    notes: list[str] = []
    for name, steps, tokens, values, known in (
        (_TRAIN, axis.steps, axis.tokens, nats - off, facts),
        (eval_name, at, axis.at(at), eval_nats - eval_off, eval_facts),
    ):
        finite = np.isfinite(values)
        if not finite.all():
            nonfinite += [(int(step), name) for step in steps[~finite]]
            notes.append(nonfinite_note(name, steps[~finite], every=not finite.any()))
        if finite.any():
            curves[name] = Curve(_series(name, steps, tokens, values), known, note=_RESOLUTION)
    for name, values in (("train/z_nats", z_nats), ("data/loss_tokens", weights)):
        if np.isfinite(values).any():
            curves[name] = Curve(_series(name, axis.steps, axis.tokens, values))
    return curves, tuple(sorted(nonfinite)), notes


def _series(name: str, steps: IntArray, tokens: IntArray, values: FloatArray) -> Series:
    """Return the finite points of a metric."""
    finite = np.isfinite(values)
    return Series(name, steps[finite], tokens[finite], values[finite])


def _usual_z(eval_z: FloatArray, settings: dict[str, str]) -> float:
    """Return the z-loss of this run: as its evaluations print it, else as is usual; 0 without."""
    known = eval_z[np.isfinite(eval_z)]
    if len(known):
        return float(np.median(known))
    try:
        off = float(settings.get("z_loss_multiplier", "1")) == 0
    except ValueError:
        off = False
    return 0.0 if off else _USUAL_Z_NATS


def _z_loss(z_nats: FloatArray, usual: float) -> tuple[dict[str, Json], FloatArray]:
    """Return what a loss's facts are, and the z-loss to take off it."""
    if len(z_nats) and np.isfinite(z_nats).all():
        return {**_DIVISOR, "z_loss": "excluded"}, z_nats
    nothing = np.zeros(len(z_nats))
    if usual == 0:
        return {**_DIVISOR, "z_loss": "excluded"}, nothing
    return {**_DIVISOR, "z_loss": "included", "z_loss_nats": usual}, nothing


def _again(past: History) -> str:
    """Return what a note says of the steps that restarts logged again."""
    said = f"{past.superseded:,} steps logged again" if past.superseded else "no step logged again"
    # A resume from a checkpoint may give the same values again, one from the beginning hardly.
    if past.seams[0] < past.rows[0].step and 2 * past.alike > past.superseded:
        said += f", {past.alike:,} of them alike: the log may hold the same output twice"
    return said


def _notes(past: History, log: LogLines, eval_set: str) -> list[str]:
    """Return what a reader must know of how the log was read."""
    notes: list[str] = []
    if past.evaluations and eval_set == _DEFAULT_SET:
        named = [k for k, v in log.settings.items() if "eval" in k and "c4" in v.lower()]
        if not named and "c4" not in log.settings.get("dataset_name", "").lower():
            notes.append(
                "the log does not name the text of its evaluations: taken for C4 (c4_en); "
                "where it is another, say so before trusting a comparison"
            )
    notes += [f"losses are {_RESOLUTION}"]
    if past.seams:
        steps = ", ".join(f"{seam:,}" for seam in past.seams)
        notes.append(f"restart: went on from step {steps}; {_again(past)}")
    if past.hosts > 1:
        notes.append(
            f"{past.hosts} hosts printed the same steps: one copy is kept, the first host's, "
            f"{past.filled} steps filled from another"
        )
    if past.disagreeing:
        notes.append(
            f"hosts disagree on {len(past.disagreeing)} steps, first on step "
            f"{past.disagreeing[0]}; the first host's value is kept"
        )
    if past.apart:
        notes.append(f"{past.apart} hosts went through other restarts than the first: not used")
    if log.auxiliary:
        names = ", ".join(sorted(log.auxiliary))
        notes.append(f"{names} taken out of loss, which holds them where there is no lm_loss")
    if log.evaluation_terms:
        names = ", ".join(sorted(log.evaluation_terms))
        notes.append(f"the evaluations' loss may hold {names}")
    if log.left_out:
        line, what = log.left_out[0]
        notes.append(f"{len(log.left_out)} lines left out, first line {line}: {what}")
    if log.cut:
        notes.append(log.cut)
    return notes
