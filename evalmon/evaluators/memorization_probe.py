"""The seen-against-fresh probe: does the model know text it read better than text it did not?

Pairs of sequences of one source, one drawn from the instances the run has consumed (as
its id log says), one from token files of the same mix that it never reads, are scored
by the same checkpoint. Their mean difference, fresh minus seen, is near 0 for a run that
reads each text once and grows when texts come again. Seen instances are drawn in equal
numbers from strata of age, so that neither the last step nor the far past decides alone.

Source: docs/detection.md, which says what the interval has to exceed.
"""

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from evalmon import metrics
from evalmon.config import EvaluationSettings
from evalmon.errors import DataError, EvaluationError
from evalmon.models import LanguageModel
from evalmon.scoring import fingerprint, score_all
from evalmon.types import (
    ID_LOG_MAGIC,
    ID_LOG_RECORD,
    CheckpointRef,
    Evaluation,
    IntArray,
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


class _Instances:
    """The instances of a token folder: consecutive ``length`` tokens of one file.

    The global index runs over the files in the order of ``index.json``; the tail of each
    file is dropped.

    Raises:
        DataError: no index, or a token file of another size than it names.
    """

    def __init__(self, folder: Path, length: int) -> None:
        index = folder / "index.json"
        try:
            record = cast("dict[str, Any]", json.loads(index.read_text(encoding="utf-8")))
            entries = [
                (folder / item["path"], str(item["label"]), int(item["n_tokens"]))
                for item in record["files"]
            ]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{index}: cannot be read as the index of a token folder ({error}); the probe "
                "needs the folders that run.json names"
            ) from error
        for path, _, tokens in entries:
            if not path.is_file() or path.stat().st_size != 4 * tokens:
                raise DataError(f"{path}: not the {tokens} uint32 tokens that {index} names")
        self.folder = folder
        self.fingerprint = str(record.get("fingerprint", ""))
        self._length = length
        self._labels = [label for _, label, _ in entries]
        self._files: list[NDArray[np.uint32]] = [
            np.memmap(path, dtype="<u4", mode="r") for path, _, _ in entries
        ]
        counts = [tokens // length for _, _, tokens in entries]
        self._starts: IntArray = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def label(self, instance: int) -> str:
        """Return the source an instance is of."""
        return self._labels[self._file(instance)]

    def by_label(self) -> dict[str, list[int]]:
        """Return the instances of each source."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for file, label in enumerate(self._labels):
            found[label] += range(int(self._starts[file]), int(self._starts[file + 1]))
        return dict(found)

    def tokens(self, instance: int) -> tuple[int, ...]:
        """Return the token ids of an instance."""
        file = self._file(instance)
        start = (instance - int(self._starts[file])) * self._length
        return tuple(self._files[file][start : start + self._length].tolist())

    def _file(self, instance: int) -> int:
        """Return the number of the file an instance is in."""
        if not 0 <= instance < len(self):
            raise EvaluationError(
                f"instance {instance} is not among the {len(self)} of {self.folder}; the id log "
                "belongs to other data"
            )
        return int(np.searchsorted(self._starts, instance, side="right")) - 1


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
        if not (run.path / "ids.bin").is_file():
            return "the run has no id log (ids.bin)"
        if checkpoint.step == 0:
            return "nothing has been read at step 0"
        return ""

    def evaluate(
        self, model: LanguageModel, checkpoint: CheckpointRef, run: RunDescription, weights: str
    ) -> Evaluation:
        """Probe the weights loaded into ``model``.

        Raises:
            EvaluationError: the id log ends before the checkpoint or belongs to other
                data, too few pairs can be made, or the model's answers are not finite.
            DataError: the id log or a token folder cannot be read.
        """
        started = time.monotonic()
        records = draws(run, checkpoint.step)
        pairs = self._sample(records, checkpoint.step)
        requests = [self._request(pair.seen, pair.text_hash) for pair in pairs]
        requests += [_request(self._fresh.tokens(pair.fresh)) for pair in pairs]
        answers = score_all(model, requests)
        losses = [-float(np.mean(answer.logprobs, dtype=np.float64)) for answer in answers]
        seen, fresh = np.array(losses[: len(pairs)]), np.array(losses[len(pairs) :])
        interval = metrics.paired_difference(fresh, seen)
        estimate = metrics.mean(fresh - seen)
        probe = ProbeResult(
            mean_nats=interval.value,
            low_nats=interval.low,
            high_nats=interval.high,
            pairs=len(pairs),
            ids_fingerprint=hashlib.blake2b(records.tobytes(), digest_size=16).hexdigest(),
        )
        score = Score(
            metric="probe/memorization/mean_nats",
            value=estimate.value,
            stderr=estimate.stderr,
            items=len(pairs),
            identity=self._identity(model),
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
        )

    @cached_property
    def _seen(self) -> _Instances:
        """The instances the run reads from."""
        return _Instances(self._run.resolve(self._run.data), self._run.sequence_length)

    @cached_property
    def _fresh(self) -> _Instances:
        """The instances it never reads."""
        return _Instances(self._run.resolve(self._run.fresh_data or ""), self._run.sequence_length)

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
                label = self._seen.label(seen)
                if unused.get(label):
                    pairs.append(_Pair(label, seen, unused[label].pop(), int(record["text_hash"])))
        if len(pairs) < _LEAST_PAIRS:
            raise EvaluationError(
                f"only {len(pairs)} pairs can be made at step {step}, at least {_LEAST_PAIRS} are "
                f"needed; {self._fresh.folder} holds sources {sorted(unused)} and must hold those "
                "of the training data"
            )
        return pairs

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


def draws(run: RunDescription, until_step: int) -> NDArray[np.void]:
    """Read which instances the weights of a checkpoint were trained on.

    Steps replayed after a restart count once, in their last copy.

    Args:
        run: the run.
        until_step: step of the checkpoint.

    Returns:
        [n] records of ID_LOG_RECORD, by step.

    Raises:
        DataError: no id log, or not of this form.
        EvaluationError: it ends before ``until_step``, or a step is incomplete.
    """
    path = run.path / "ids.bin"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    if not content.startswith(ID_LOG_MAGIC):
        raise DataError(f"{path}: begins with {content[:16]!r}, not an id log of this version")
    whole = (len(content) - len(ID_LOG_MAGIC)) // ID_LOG_RECORD.itemsize
    records = np.frombuffer(content, ID_LOG_RECORD, whole, len(ID_LOG_MAGIC))
    steps = records["step"].astype(np.int64)
    # Later records of an earlier step mean that training went back: what lies between is void.
    kept = records[steps <= np.minimum.accumulate(steps[::-1])[::-1]]
    kept = kept[kept["step"] <= until_step]
    _, start, count = np.unique(kept["step"], return_index=True, return_counts=True)
    # Going back to the very last step leaves two copies of it side by side.
    from_end = np.repeat(start + count, count) - np.arange(len(kept))
    kept = kept[from_end <= run.batch_instances]
    if len(kept) != until_step * run.batch_instances:
        raise EvaluationError(
            f"{path}: holds {len(kept)} draws up to step {until_step}, expected "
            f"{until_step * run.batch_instances}; the id log is not whole"
        )
    return kept


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


def _index_hash(run: RunDescription, folder: str | None) -> str:
    """Hash a token folder's index, "" where there is none to hash."""
    if folder is None:
        return ""
    try:
        content = (run.resolve(folder) / "index.json").read_bytes()
    except OSError:
        return ""
    return hashlib.blake2b(content, digest_size=8).hexdigest()
