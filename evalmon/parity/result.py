"""What a parity check found: as a record, and as a few lines to read."""

from dataclasses import asdict, dataclass
from typing import Any, Final

from evalmon.parity.divergence import Divergence
from evalmon.parity.reference import ReferenceFacts

__all__ = ["MAX_KL", "MEAN_KL", "ModelFacts", "ParityResult", "PromptFacts"]

MAX_KL: Final = "max_kl"
MEAN_KL: Final = "mean_kl"

_NOTABLE: Final = 0.01
"""Share of the largest divergence from which a region is said to have it."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What was held against the reference.

    Attributes:
        path: its weights.
        dtype: what it computes in.
        stored_dtype: what its weights are stored in.
        vocab_size: rows of its head.
    """

    path: str
    dtype: str
    stored_dtype: str
    vocab_size: int


@dataclass(frozen=True, slots=True)
class PromptFacts:
    """What the predictions are of.

    Attributes:
        source: ``random``, ``stored``, or the file they were read from.
        tokens: length of each.
        seed: of random ones, else None.
    """

    source: str
    tokens: list[int]
    seed: int | None


@dataclass(frozen=True, slots=True)
class ParityResult:
    """How far a model is from a reference, and whether that is near enough.

    Attributes:
        divergence: the numbers.
        criterion: which of them decides, ``max_kl`` or ``mean_kl``.
        threshold: largest value that passes, in nats.
        top_k: k of the agreement.
        model: what was checked.
        reference: against what.
        prompts: on what.
        saved: file the reference was stored in, with the positions kept, or None.
    """

    divergence: Divergence
    criterion: str
    threshold: float
    top_k: int
    model: ModelFacts
    reference: ReferenceFacts
    prompts: PromptFacts
    saved: dict[str, Any] | None = None

    @property
    def passed(self) -> bool:
        """Whether it is near enough: finite, normalized, and not beyond the threshold."""
        found = self.divergence
        value: float | None = getattr(found, self.criterion)
        sound = not any(found.nonfinite.values()) and not any(found.unnormalized.values())
        return sound and value is not None and value <= self.threshold

    @property
    def vocabulary(self) -> int:
        """Entries both sides have."""
        return min(self.model.vocab_size, self.reference.vocab_size)

    @property
    def casts(self) -> dict[str, str | None]:
        """From which dtype to which the weights of each side were cast to compute."""
        return {
            "model": _cast(self.model.stored_dtype, self.model.dtype),
            "reference": _cast(self.reference.stored_dtype, "float32"),
        }

    @property
    def warnings(self) -> list[str]:
        """What the numbers do not say."""
        found: list[str] = []
        longest, window = max(self.prompts.tokens), self.reference.window
        if self.divergence.max_kl_beyond is None and not any(self.divergence.nonfinite.values()):
            found.append(
                f"sliding attention is untested: the longest prompt has {longest} tokens, the "
                f"window {window}; give longer ones"
            )
        if self.model.vocab_size != self.reference.vocab_size:
            larger = max(self.model.vocab_size, self.reference.vocab_size)
            found.append(
                f"vocabularies differ: model {self.model.vocab_size}, reference "
                f"{self.reference.vocab_size}; the last {larger - self.vocabulary} entries of the "
                "larger are left out"
            )
        return found

    def record(self) -> dict[str, Any]:
        """Return everything as JSON values; divergences are in nats."""
        found = asdict(self.divergence)
        return {
            "passed": self.passed,
            "criterion": self.criterion,
            "threshold": self.threshold,
            **found,
            "top_k": self.top_k,
            "model": self.model.path,
            "dtype": self.model.dtype,
            "stored_dtype": self.model.stored_dtype,
            "casts": self.casts,
            "reference": {**asdict(self.reference), "dtype": "float32"},
            "prompts": {**asdict(self.prompts), "count": len(self.prompts.tokens)},
            "window": self.reference.window,
            "vocabulary": {
                "compared": self.vocabulary,
                "model": self.model.vocab_size,
                "reference": self.reference.vocab_size,
            },
            "saved_reference": self.saved,
            "warnings": self.warnings,
        }

    def text(self) -> str:
        """Return a few lines: the outcome, the numbers, on what, and where to look next."""
        found, place = self.divergence, self.reference
        decisive: float | None = getattr(found, self.criterion)
        outcome = "passed" if self.passed else "FAILED"
        name = self.criterion.replace("_", " ").replace("kl", "KL")
        numbers = {
            "max KL": found.max_kl,
            "mean KL": found.mean_kl,
            "max |Δ log p|": found.max_logprob_diff,
            f"top-{self.top_k} agreement": found.topk_agreement,
        }
        regions = {
            "at the first position": found.max_kl_first,
            f"inside the window of {place.window}": found.max_kl_within,
            "beyond it": found.max_kl_beyond,
        }
        worst, texts = found.worst, f"{len(self.prompts.tokens)} prompts"
        entries = f"{self.vocabulary} entries, computed in {self.model.dtype}"
        versions = ", ".join(f"{name} {number}" for name, number in place.versions.items())
        lines = [
            f"parity {outcome}: {name} {_number(decisive)} nats, at most {self.threshold:g}",
            f"  {_listed(numbers)}",
            f"  max KL {_listed(regions)}; worst: prompt {worst.prompt}, position {worst.position}",
            f"  {found.positions} positions of {texts} ({self.prompts.source}), {entries}",
            f"  reference {place.stored_in or place.path} ({place.form}, {versions})",
        ]
        lines += [f"  cast, {side}: {cast}" for side, cast in self.casts.items() if cast]
        return "\n".join(lines if self.passed else [*lines, f"  next: {self._next()}"])

    def _next(self) -> str:
        """Say where a failure points to."""
        found = self.divergence
        for fault, counts in (
            ("not finite", found.nonfinite),
            ("not normalized", found.unnormalized),
        ):
            if any(counts.values()):
                sides = " and ".join(f"{n} of the {side}" for side, n in counts.items() if n)
                return f"positions whose log-probabilities are {fault}: {sides}; check the weights"
        notable = _NOTABLE * (found.max_kl or 0.0)
        if (found.max_kl_first or 0.0) >= notable:
            first = "embedding, value and output projections, feed-forward, head, norms, eps"
            rounding = self.model.stored_dtype != self.reference.stored_dtype
            also = (
                f"; the model's weights are {self.model.stored_dtype}, the reference's "
                f"{self.reference.stored_dtype}: compare at one precision"
            )
            return f"the first position differs already: {first}{also if rounding else ''}"
        if (found.max_kl_within or 0.0) >= notable:
            return (
                "the first position agrees, later ones inside the window do not: rotary settings "
                "(theta, YaRN in full layers only), query and key norms, grouping of heads"
            )
        return "only positions beyond the window differ: window length, which layers are full"


def _cast(stored: str, computed: str) -> str | None:
    """Say what is cast, None where nothing is."""
    return None if stored == computed else f"{stored} -> {computed}"


def _number(value: float | None) -> str:
    """Return a number as text; one that could not be had is said."""
    return "none" if value is None else f"{value:.4g}"


def _listed(numbers: dict[str, float | None]) -> str:
    """Return named numbers as one line."""
    return ", ".join(f"{name} {_number(value)}" for name, value in numbers.items())
