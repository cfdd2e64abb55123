"""The seen-against-fresh probe: does the model know text it read better than text it did not?

Pairs of sequences of one source, one drawn from the instances the run has consumed (as
its id log says), one from token files of the same mix that it never reads, are scored
by the same checkpoint. Their mean difference, fresh minus seen, is near 0 for a run that
reads each text once and grows when texts come again. Seen instances are drawn in equal
numbers from strata of age, so that neither the last step nor the far past decides alone.

Source: docs/detection.md, which says what the interval has to exceed.
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evalmon import id_logs, metrics
from evalmon.config import EvaluationSettings
from evalmon.errors import DataError, EvaluationError
from evalmon.evaluators.header import header
from evalmon.id_logs import IdLog
from evalmon.models import LanguageModel
from evalmon.scoring import Scorer, fingerprint
from evalmon.token_folders import Instances
from evalmon.types import (
    CheckpointRef,
    Evaluation,
    MetricIdentity,
    ProbeResult,
    RunDescription,
    Score,
    ScoreRequest,
)

__all__ = ["STRATA", "MemorizationProbe", "build", "draws", "strata_of"]

_CODE_VERSION: Final = 1  # raise it when the numbers of an unchanged checkpoint change

STRATA: Final = (0.01, 0.1, 0.5, 1.0)
"""Upper edges of the strata of age: the last 1 % of the steps so far, 1 to 10 %, …"""

_LEAST_PAIRS: Final = 8


@dataclass(frozen=True, slots=True)
class _Pair:
    """A seen and a fresh instance of one source."""

    label: str
    seen: int
    fresh: int
    text_hash: int


class MemorizationProbe:
    """Scores paired seen and fresh instances at a checkpoint.

    Args:
        settings: ``probe_pairs`` at most.
        run: names the token folders.
    """

    name = "memorization_probe"

    def __init__(self, settings: EvaluationSettings, run: RunDescription) -> None:
        self._pairs = settings.probe_pairs
        self._run = run
        self.version = fingerprint(
            code=_CODE_VERSION,
            pairs=self._pairs,
            data=_index_hash(run, run.data),
            fresh=_index_hash(run, run.fresh_data),
            sequence_length=run.sequence_length,
        )

    def not_applicable(self, checkpoint: CheckpointRef, run: RunDescription) -> str:
        """Return why there is nothing to probe, or ""."""
        if self._pairs == 0:
            return "probe_pairs is 0"
        if run.fresh_data is None:
            return "the run names no fresh data"
        if not (run.path / id_logs.ID_LOG_NAME).is_file():
            return f"the run has no id log ({id_logs.ID_LOG_NAME})"
        if checkpoint.step == 0:
            return "nothing has been read at step 0"
        if checkpoint.step == _changed(run, checkpoint.step):
            return f"nothing of the present data has been read at step {checkpoint.step}"
        return ""

    def evaluate(
        self, scorer: Scorer, checkpoint: CheckpointRef, run: RunDescription, weights: str
    ) -> Evaluation:
        """Probe the weights loaded into the scorer's model.

        Raises:
            EvaluationError: the id log ends before the checkpoint or belongs to other
                data, too few pairs can be made, or the model's answers are not finite.
            DataError: the id log or a token folder cannot be read.
        """
        started = time.monotonic()
        log = draws(run, checkpoint.step)
        # What was read before other data came can no longer be looked up.
        present = log.records["step"] > _changed(run, checkpoint.step)
        pairs = self._sample(log.records[present], checkpoint.step)
        requests = [self._request(pair.seen, pair.text_hash) for pair in pairs]
        requests += [_request(self._fresh.tokens(pair.fresh)) for pair in pairs]
        answers = scorer.score(requests)
        losses = [-float(np.mean(answer.logprobs, dtype=np.float64)) for answer in answers]
        seen, fresh = np.array(losses[: len(pairs)]), np.array(losses[len(pairs) :])
        interval = metrics.paired_difference(fresh, seen)
        estimate = metrics.mean(fresh - seen)
        probe = ProbeResult(
            mean_nats=interval.value,
            low_nats=interval.low,
            high_nats=interval.high,
            pairs=len(pairs),
            ids_fingerprint=log.fingerprint,
        )
        score = Score(
            metric="probe/memorization/mean_nats",
            value=estimate.value,
            stderr=estimate.stderr,
            items=len(pairs),
            identity=self._identity(scorer.model),
            item_ids=tuple(f"{pair.label}/{pair.seen}-{pair.fresh}" for pair in pairs),
            item_values=tuple((fresh - seen).tolist()),
        )
        return Evaluation(
            evaluator=self.name,
            version=self.version,
            checkpoint=checkpoint,
            weights=weights,
            scores=(score,),
            seconds=time.monotonic() - started,
            probe=probe,
            header=header(scorer, run, prefix_token=None, pairs=len(pairs)),
        )

    @cached_property
    def _seen(self) -> Instances:
        """The instances the run reads from."""
        return Instances(self._run.resolve(self._run.data), self._run.sequence_length)

    @cached_property
    def _fresh(self) -> Instances:
        """The instances it never reads."""
        return Instances(self._run.resolve(self._run.fresh_data or ""), self._run.sequence_length)

    def _sample(self, records: NDArray[np.void], step: int) -> list[_Pair]:
        """Draw the pairs: the same ones whenever this checkpoint is probed.

        Every stratum gives an equal share; what a small one lacks, the others give.
        """
        random = np.random.default_rng(step)
        unused = {
            label: random.permutation(np.array(instances)).tolist()
            for label, instances in sorted(self._fresh.by_label().items())
        }
        strata = [random.permutation(found) for found in strata_of(records, step)]
        pairs: list[_Pair] = []
        places = [0] * len(strata)
        while len(pairs) < self._pairs and any(
            place < len(found) for place, found in zip(places, strata, strict=True)
        ):
            for number, found in enumerate(strata):
                if places[number] == len(found) or len(pairs) == self._pairs:
                    continue
                record = found[places[number]]
                places[number] += 1
                seen = int(record["instance"])
                label = self._source_of(seen)
                if unused.get(label):
                    pairs.append(_Pair(label, seen, unused[label].pop(), int(record["text_hash"])))
        if len(pairs) < _LEAST_PAIRS:
            raise EvaluationError(
                f"only {len(pairs)} pairs can be made at step {step}, at least {_LEAST_PAIRS} are "
                f"needed; {self._fresh.folder} holds sources {sorted(unused)} and must hold those "
                "of the training data"
            )
        return pairs

    def _source_of(self, instance: int) -> str:
        """Return the source of a seen instance."""
        try:
            return self._seen.label(instance)
        except IndexError:
            raise EvaluationError(
                f"instance {instance} is not among the {len(self._seen)} of {self._seen.folder}; "
                "the id log belongs to other data"
            ) from None

    def _request(self, instance: int, text_hash: int) -> ScoreRequest:
        """Ask for a seen instance, checked to be the text that was trained on."""
        tokens = self._seen.tokens(instance)
        content = np.array(tokens, dtype="<u4").tobytes()
        digest = hashlib.blake2b(content, digest_size=8).digest()
        if int.from_bytes(digest, "little") != text_hash:
            raise EvaluationError(
                f"instance {instance} of {self._seen.folder} is not the text that the id log "
                "recorded; the token files changed since, so nothing is known to be seen"
            )
        return _request(tokens)

    def _identity(self, model: LanguageModel) -> MetricIdentity:
        """Say what the difference means."""
        return MetricIdentity(
            task="memorization_probe",
            metric="mean_nats",
            shots=None,
            prompt_set="fresh minus seen instances, paired by source",
            split="train",
            item_limit=self._pairs,
            normalization="tokens, mean over pairs",
            tokenizer="",
            dtype=model.dtype,
            prefix_token=None,
            data=fingerprint(seen=self._seen.fingerprint, fresh=self._fresh.fingerprint),
            max_length=self._run.sequence_length,
        )


def build(settings: EvaluationSettings, run: RunDescription) -> list[MemorizationProbe]:
    """Return the one probe."""
    return [MemorizationProbe(settings, run)]


def draws(run: RunDescription, until_step: int) -> IdLog:
    """Read which instances the weights of a checkpoint were trained on.

    Steps replayed after a restart count once, in their last copy. Of a long run a sample is
    read (:mod:`evalmon.id_logs`).

    Args:
        run: the run.
        until_step: step of the checkpoint.

    Raises:
        DataError: no id log, not of this form, or a step is incomplete.
        EvaluationError: it begins after step 1 or ends before ``until_step``.
    """
    log = id_logs.read(run, until_step, rate=id_logs.sampling_rate(run))
    path = run.path / id_logs.ID_LOG_NAME
    if log is None:
        raise DataError(f"{path}: no such file; restore what the trainer wrote")
    if log.first_step > 1 or log.last_step < until_step:
        held = max(run.draws_at(log.last_step) - run.draws_at(log.first_step - 1), 0)
        raise EvaluationError(
            f"{path}: holds {held} draws up to step {until_step}, expected "
            f"{run.draws_at(until_step)}; the id log is not whole"
        )
    return log


def strata_of(records: NDArray[np.void], step: int) -> list[NDArray[np.void]]:
    """Group the distinct instances of a run by how long ago each was last read.

    Args:
        records: draws up to ``step``, by step.
        step: step of the checkpoint.

    Returns:
        One array a stratum of :data:`STRATA`, most recent first; empty ones stay.
    """
    _, first_from_end = np.unique(records["instance"][::-1], return_index=True)
    last = records[len(records) - 1 - first_from_end]
    age = (step - last["step"].astype(np.int64)) / step
    edges = np.array(STRATA[:-1])
    stratum = np.searchsorted(edges, age, side="right")
    return [last[stratum == number] for number in range(len(STRATA))]


def _request(tokens: Sequence[int]) -> ScoreRequest:
    """Score an instance as it was trained on: all but its first token."""
    return ScoreRequest(tuple(tokens[:1]), tuple(tokens[1:]))


def _changed(run: RunDescription, step: int) -> int:
    """Return the last step up to ``step`` after which the run had other data, 0 without."""
    return max((change for change in run.data_changes if change <= step), default=0)


def _index_hash(run: RunDescription, folder: str | None) -> str:
    """Hash a token folder's index, "" where there is none to hash."""
    if folder is None:
        return ""
    try:
        content = (run.resolve(folder) / "index.json").read_bytes()
    except OSError:
        return ""
    return hashlib.blake2b(content, digest_size=8).hexdigest()
