"""Whether the evaluator computes what the model says, asked of each checkpoint's own weights.

The same few short texts are scored in every way that the other evaluators may score them,
and must answer the same: alone, 3 and 16 rows at a time, with shared beginnings computed
once or each time, packed beside others, behind a beginning computed by itself, and as long
as the model reads, which is longer than a sliding window. The standard is the model's plain
forward path, one text at a time; where a golden slice is stored (:mod:`evalmon.golden`), that
path is held against it too.

In float32 two layouts differ by rounding alone: a log-likelihood by at most 5e-5 nats + 5e-6
a token. In bfloat16 a state has 8 bits and rounds differently in another layout, so that near
ties fall either way: 0.25 nats + 0.02 a token are tolerated (0.11 nats was the most measured,
in models of 4 and 8 layers), and the choices that flipped are counted: a move of an accuracy
smaller than that share is no gain.

A breach raises, so that it is stored as a failure, and the other scores of the checkpoint
are suspect.

Source: EleutherAI/lm-evaluation-harness issue 3055 (batch size); marin-community/levanter
issue 860 (packing).
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evalmon import golden, packing
from evalmon.config import EvaluationSettings
from evalmon.errors import EvaluationError
from evalmon.evaluators.header import header
from evalmon.models import LanguageModel
from evalmon.scoring import Accounting, Scorer, fingerprint
from evalmon.types import (
    CheckpointRef,
    Evaluation,
    MetricIdentity,
    RunDescription,
    Score,
    ScoreRequest,
)

__all__ = ["SelfCheck", "build", "tolerance_nats"]

_CODE_VERSION: Final = 1  # raise it when what is checked changes
_SEED: Final = 20
_TEXTS: Final = 3
_LENGTH: Final = 64  # tokens of a text
_CUTS: Final = (1, 2, 3, 5, 8, 21, 32, 44, 50, 58)  # tokens of context
_SCORED: Final = (3, 5, 2, 4)  # tokens of continuation, in turn
_PREFIX: Final = 21  # tokens of the beginning computed by itself, one of the cuts
_LAYOUTS: Final = ((1, False), (3, False), (16, False), (16, True))
_TOLERANCES: Final = {"float64": (5e-5, 5e-6), "float32": (5e-5, 5e-6)}
_COARSE: Final = (0.25, 0.02)  # bfloat16, float16


def tolerance_nats(dtype: str, tokens: int) -> float:
    """Return how far two layouts of one text may differ in log-likelihood.

    Args:
        dtype: compute dtype.
        tokens: tokens of the text.

    Example:
        >>> tolerance_nats("float32", 10)
        0.0001
    """
    base, each = _TOLERANCES.get(dtype, _COARSE)
    return base + each * tokens


@dataclass(frozen=True, slots=True)
class _Texts:
    """Token ids that are scored, of the same shapes at every checkpoint.

    Attributes:
        short: a few texts, each cut at several places into context and continuation.
        long: a text as long as the model reads, empty where the short ones are.
    """

    short: tuple[tuple[int, ...], ...]
    long: tuple[int, ...]

    @classmethod
    def draw(cls, vocab_size: int, max_length: int) -> "_Texts":
        """Draw ids by a fixed seed."""
        rng = np.random.default_rng(_SEED)
        drawn = rng.integers(0, vocab_size, (_TEXTS, min(_LENGTH, max_length))).tolist()
        long = rng.integers(0, vocab_size, max_length).tolist() if max_length > _LENGTH else []
        return cls(tuple(tuple(text) for text in drawn), tuple(long))

    def cuts(self) -> Iterator[tuple[int, int, int]]:
        """Yield (text, tokens of context, tokens of continuation)."""
        for number, text in enumerate(self.short):
            for turn, cut in enumerate(_CUTS):
                size = _SCORED[(turn + number) % len(_SCORED)]
                if cut + size <= len(text):
                    yield number, cut, size


@dataclass(slots=True)
class _Found:
    """What has been compared so far.

    Attributes:
        differences: largest difference by check, in nats.
        compared: log-likelihoods compared.
        choices: contexts with two choices of a next token.
        flipped: contexts whose likelier choice was another in some layout.
    """

    differences: dict[str, float] = field(default_factory=dict[str, float])
    compared: int = 0
    choices: int = 0
    flipped: set[int] = field(default_factory=set[int])


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request, its log-likelihood by the plain forward path, and a check of its own or ""."""

    request: ScoreRequest
    expected: float
    check: str = ""


class SelfCheck:
    """Checks the evaluator with each checkpoint's weights.

    Args:
        run: gives the length and the golden slice.
    """

    name = "self_check"

    def __init__(self, run: RunDescription) -> None:
        self._golden = run.path / golden.GOLDEN_NAME
        self.version = fingerprint(
            code=_CODE_VERSION,
            vocab_size=run.vocab_size,
            sequence_length=run.sequence_length,
            golden=golden.load(self._golden).weights if self._golden.is_file() else None,
        )

    def not_applicable(self, checkpoint: CheckpointRef, run: RunDescription) -> str:
        """Return "": every checkpoint can be checked."""
        del checkpoint, run
        return ""

    def evaluate(
        self, scorer: Scorer, checkpoint: CheckpointRef, run: RunDescription, weights: str
    ) -> Evaluation:
        """Check the evaluator with the weights loaded into the scorer's model.

        The answers are never taken from a cache.

        Raises:
            EvaluationError: two ways to score a text disagree, the model disagrees with its
                golden slice, or a log-probability is not finite.
            DataError: the golden slice cannot be read.
        """
        started = time.monotonic()
        model, found, accounting = scorer.model, _Found(), Accounting()
        texts = _Texts.draw(model.vocab_size, model.max_length)
        checker = _Checker(model, accounting, found, f"step {checkpoint.step}")
        checker.check_layouts(texts)
        checker.check_beginning(texts)
        said = checker.check_golden(checkpoint, self._golden, weights)
        facts: dict[str, Any] = {
            "batch_size": sorted({rows for rows, _ in _LAYOUTS}),
            "share_prefixes": [False, True],
            "max_difference_nats": dict(found.differences),
            "compared": found.compared,
            "choices": found.choices,
            "flipped_choices": len(found.flipped),
            "long_prompt_tokens": len(texts.long),
            "golden": said,
        }
        return Evaluation(
            evaluator=self.name,
            version=self.version,
            checkpoint=checkpoint,
            weights=weights,
            scores=tuple(_scores(found, texts, model)),
            seconds=time.monotonic() - started,
            header=header(Scorer(model, accounting=accounting), run, **facts),
        )


@dataclass(frozen=True, slots=True)
class _Checker:
    """Scores texts in several ways and compares the answers."""

    model: LanguageModel
    accounting: Accounting
    found: _Found
    where: str

    def check_layouts(self, texts: _Texts) -> None:
        """Compare every layout of the texts with the plain forward path."""
        rows = [self._plain(text, len(text)) for text in texts.short]
        asked: list[_Asked] = []
        for number, cut, size in texts.cuts():
            text, after = texts.short[number], rows[number][cut - 1 : cut - 1 + size]
            second, best = np.argsort(after[0])[-2:].tolist()
            for answer in ((best,), (second,), text[cut : cut + size]):
                value = _sum(after[np.arange(len(answer)), answer])
                asked.append(_Asked(ScoreRequest(text[:cut], answer), value))
        self.found.choices = len(asked) // 3
        if texts.long:
            last = self._plain(texts.long, 2)
            tail = (texts.long[-1], texts.short[0][0])
            value = _sum(last[np.arange(2), tail])
            asked.append(_Asked(ScoreRequest(texts.long[:-1], tail), value, "long prompt"))
        for batch_size, share in _LAYOUTS:
            scorer = Scorer(self.model, batch_size, share, accounting=self.accounting)
            answers = [_sum(item.logprobs) for item in scorer.score([a.request for a in asked])]
            check = "sharing" if share else "batch size" if batch_size > 1 else "plain forward"
            how = f"batch_size {batch_size} and share_prefixes {str(share).lower()}"
            self._compare(check, how, asked, answers)
            pairs = zip(answers[:-1:3], answers[1::3], strict=False)
            self.found.flipped |= {n for n, (best, second) in enumerate(pairs) if best < second}

    def check_beginning(self, texts: _Texts) -> None:
        """Compare a text computed behind a beginning that was computed by itself."""
        text = texts.short[0]
        if len(text) <= _PREFIX + 1:
            return
        rows = self._plain(text, len(text))[_PREFIX:-1]
        rest = text[_PREFIX:]
        asked = _Asked(
            ScoreRequest(text[: _PREFIX + 1], rest[1:]),
            _sum(rows[np.arange(len(rest) - 1), rest[1:]]),
        )
        made = packing.plan(
            [ScoreRequest(rest[:1], rest[1:])], batch_rows=1, row_multiple=self.model.row_multiple
        )
        (batch,) = made.batches(made.root)
        positions = batch.forest.positions.copy()
        positions[0, : batch.forest.tokens] += _PREFIX
        forest = replace(batch.forest, positions=positions)
        answers = self.model.score(forest, self.model.extend(text[:_PREFIX]))
        how = "its beginning computed by itself"
        self._compare("common beginning", how, [asked], [_sum(answers.logprobs)])

    def check_golden(self, checkpoint: CheckpointRef, of_run: Path, weights: str) -> str:
        """Compare with the golden slice of these weights, and say whether there is one."""
        own = checkpoint.path / golden.GOLDEN_NAME
        path = own if own.is_file() else of_run
        if not path.is_file():
            return f"not checked: no {golden.GOLDEN_NAME} beside the checkpoint or the run"
        kept = golden.load(path)
        if kept.weights != weights:
            if path == own:
                raise EvaluationError(
                    f"{path}: made for weights {kept.weights}, the checkpoint holds {weights}; "
                    "the checkpoint was replaced, or the file belongs to another: write it again"
                )
            return f"not checked: {path} was made for weights {kept.weights}"
        if int(max(kept.ids.max(), kept.columns.max())) >= self.model.vocab_size:
            raise EvaluationError(
                f"{path}: token ids outside the vocabulary of {self.model.vocab_size}; the file "
                "belongs to another model"
            )
        logprobs = golden.slice_of(self.model, kept.ids.tolist(), kept.columns.tolist())
        differences = np.abs(logprobs - kept.logprobs)
        worst = float(differences.max())
        limit = max(tolerance_nats(name, len(kept.ids)) for name in (kept.dtype, self.model.dtype))
        if not worst <= limit:  # NaN is none either
            place, column = np.unravel_index(int(differences.argmax()), differences.shape)
            raise EvaluationError(
                f"golden slice {path}: log-probability of token {kept.columns[column]} after place "
                f"{place} is {logprobs[place, column]:.6f}, {kept.logprobs[place, column]:.6f} was "
                f"stored, {limit:.2g} nats are tolerated; the model is not computed as its trainer "
                "does: compare adapter and library versions"
            )
        self.found.differences["golden"] = worst
        return f"checked {logprobs.size} log-probabilities of {path}"

    def _plain(self, ids: Sequence[int], last: int) -> NDArray[np.float32]:
        """Return the log-probabilities after the last places, computed one text at a time."""
        kept: list[NDArray[np.float32]] = []
        done = 0
        for part in self.model.log_probabilities(ids):
            wrong = ~np.isfinite(part).all(axis=1)
            if wrong.any():
                raise EvaluationError(
                    f"self-check of {self.where}: log-probabilities after place "
                    f"{done + int(wrong.argmax())} of a text are not finite; the weights are "
                    "likely not finite, so nothing can be scored"
                )
            done += len(part)
            kept = [np.concatenate([*kept, part[-last:]])[-last:]]
        return kept[0]

    def _compare(
        self, check: str, how: str, asked: Sequence[_Asked], values: Sequence[float]
    ) -> None:
        """Keep the largest difference, and raise where one is not rounding."""
        self.found.compared += len(asked)
        for number, (item, value) in enumerate(zip(asked, values, strict=True)):
            request, away = item.request, abs(value - item.expected)
            tokens = len(request.context) + len(request.continuation)
            limit = tolerance_nats(self.model.dtype, tokens)
            name = item.check or check
            if not away <= limit:
                raise EvaluationError(
                    f"self-check of {self.where}, {name}: request {number} ({len(request.context)} "
                    f"tokens of context, {len(request.continuation)} scored) has log-likelihood "
                    f"{value:.6f} with {how}, {item.expected:.6f} by the plain forward path; "
                    f"{limit:.2g} nats are tolerated. Do not use the scores of this checkpoint; "
                    "repair the model's adapter, or set evaluation.batch_size and "
                    "evaluation.share_prefixes to a layout that agrees"
                )
            self.found.differences[name] = max(self.found.differences.get(name, 0.0), away)


def build(settings: EvaluationSettings, run: RunDescription) -> list[SelfCheck]:
    """Return the one evaluator of this family."""
    del settings
    return [SelfCheck(run)]


def _sum(logprobs: NDArray[Any]) -> float:
    """Return a log-likelihood."""
    return float(np.sum(logprobs, dtype=np.float64))


def _scores(found: _Found, texts: _Texts, model: LanguageModel) -> Iterator[Score]:
    """Yield what was measured."""
    numbers = {
        "max_difference_nats": (max(found.differences.values()), found.compared),
        "flipped_choices": (float(len(found.flipped)), found.choices),
    }
    if "golden" in found.differences:
        numbers["golden_difference_nats"] = (found.differences["golden"], 1)
    for metric, (value, items) in numbers.items():
        yield Score(
            metric=f"self_check/{metric}",
            value=value,
            stderr=None,
            items=items,
            identity=MetricIdentity(
                task="self_check",
                metric=metric,
                shots=None,
                prompt_set=f"token ids drawn with seed {_SEED}, version {_CODE_VERSION}",
                split="",
                item_limit=None,
                normalization="none",
                tokenizer="",
                dtype=model.dtype,
                prefix_token=None,
                data=fingerprint(texts=[*texts.short, texts.long]),
                max_length=model.max_length,
            ),
        )
