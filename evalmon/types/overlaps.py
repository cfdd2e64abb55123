"""What of a holdout is in the training text of a run."""

from dataclasses import asdict, dataclass

from evalmon.types.verdicts import Finding, Json

__all__ = ["DocumentOverlap", "LeakageReport", "OverlapMeasure", "TrainingDocument"]


@dataclass(frozen=True, slots=True)
class OverlapMeasure:
    """What counts as overlap.

    Attributes:
        ngram: words of an n-gram.
        minimum: fewest different n-grams that a training document shares with one of the
            holdout to be named for it.
        share: share of a document's n-grams from which on it counts as leaked.
    """

    ngram: int = 13
    minimum: int = 1
    share: float = 0.5


@dataclass(frozen=True, slots=True, order=True)
class TrainingDocument:
    """A training document that holds text of a holdout document.

    Attributes:
        ngrams: different n-grams that both have.
        exact: whether they are equal.
        file: token file, as ``index.json`` names it.
        document: number of the document in the file, from 1.
        label: source of the file.
    """

    ngrams: int
    exact: bool
    file: str
    document: int
    label: str


@dataclass(frozen=True, slots=True)
class DocumentOverlap:
    """A holdout document of which something is in the training text.

    Attributes:
        id: the document's id.
        exact: whether a training document is equal to it.
        ngrams: its different n-grams.
        found: how many of them are in the training text.
        sources: training documents that hold most of it, at most five.
    """

    id: str
    exact: bool
    ngrams: int
    found: int
    sources: tuple[TrainingDocument, ...]

    @property
    def share(self) -> float:
        """Share of its n-grams that is found; 1 where it is there whole."""
        return 1.0 if self.exact else self.found / self.ngrams

    def record(self) -> dict[str, Json]:
        """Return the overlap as a JSON object."""
        sources: list[Json] = [asdict(source) for source in self.sources]
        return {
            "id": self.id,
            "exact": self.exact,
            "ngrams": self.ngrams,
            "found": self.found,
            "share": round(self.share, 6),
            "sources": sources,
        }


@dataclass(frozen=True, slots=True)
class LeakageReport:
    """What of a holdout is in the training text of a run.

    Attributes:
        run: the run's name.
        holdout: the holdout's name.
        fingerprint: of its documents.
        measure: what counts as overlap.
        documents: documents of the holdout.
        short: those with fewer words than an n-gram: looked for whole only.
        training_documents: documents of the training text.
        training_tokens: tokens of them, each file's whole.
        overlaps: documents with any overlap, most first.
    """

    run: str
    holdout: str
    fingerprint: str
    measure: OverlapMeasure
    documents: int
    short: int
    training_documents: int
    training_tokens: int
    overlaps: tuple[DocumentOverlap, ...]

    @property
    def exact(self) -> int:
        """Documents that are there whole."""
        return sum(item.exact for item in self.overlaps)

    @property
    def leaked(self) -> tuple[DocumentOverlap, ...]:
        """Documents that are there whole or to the share that counts."""
        return tuple(i for i in self.overlaps if i.exact or i.share >= self.measure.share)

    @property
    def finding(self) -> Finding | None:
        """A finding of kind ``leakage`` with the leaked documents, None without any."""
        if not self.leaked:
            return None
        documents: list[Json] = [item.record() for item in self.leaked]
        return Finding(
            detector="holdout_overlap",
            kind="leakage",
            run=self.run,
            alarm_step=0,
            alarm_tokens=0,
            onset_tokens=None,
            channel="",
            magnitude_nats=None,
            message=(
                f"{len(self.leaked):,} of {self.documents:,} documents of holdout {self.holdout} "
                f"are in the training text, {self.exact:,} of them whole, the others with at least "
                f"{self.measure.share:.0%} of their {self.measure.ngram}-grams of words"
            ),
            evidence={
                "holdout": self.holdout,
                "documents": self.documents,
                "exact": self.exact,
                "overlapping": len(self.overlaps),
                "leaked": documents,
            },
        )
