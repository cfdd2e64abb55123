"""How doubts about the scores themselves read, and what a self-check measured."""

from typing import Final

from evalmon.types import Evaluation, Verdict, VerdictName

__all__ = ["doubt", "self_check_facts"]

_SENTENCES: Final = {
    "untrained_model": (
        "The model of {run} looks untrained at this checkpoint: no verdict is given."
    ),
    "evaluator_suspect": (
        "The evaluator is suspect: its scores of {run} at this checkpoint cannot be the model's "
        "own."
    ),
    "same_scores": (
        "The evaluator is suspect: it gave {run} the same scores, to the last bit, at two "
        "checkpoints of different weights."
    ),
}


def doubt(verdict: Verdict) -> str:
    """Return the headline of a verdict that rests on scores not to be trusted, or "".

    Returns:
        A sentence with ``{run}`` in place of the run's name.
    """
    found = {finding.detector for finding in verdict.findings}
    if verdict.verdict is VerdictName.NOT_ENOUGH_DATA:
        found &= {"untrained_model"}
    elif verdict.verdict is not VerdictName.EVALUATOR_FAULT or "unmatched_drop" in found:
        return ""  # of a fault seen in the curves, the curves speak
    return next((said for detector, said in _SENTENCES.items() if detector in found), "")


def self_check_facts(step: int, check: Evaluation) -> tuple[tuple[str, str], ...]:
    """Return what a self-check that passed measured, as (label, text)."""
    scores = {score.metric.rpartition("/")[2]: score for score in check.scores}
    facts = [("self-check", f"passed at step {step:,}")]
    if score := scores.get("max_difference_nats"):
        measured = f"{score.value:.2g} nats of {score.items:,} log-likelihoods"
        facts.append(("largest difference between layouts", measured))
    if score := scores.get("flipped_choices"):
        facts.append(("choices that flip with the layout", f"{score.value:.0f} of {score.items:,}"))
    if golden := check.header.get("golden"):
        facts.append(("golden slice", str(golden)))
    if dtype := check.header.get("dtype"):
        stored = check.header.get("stored_dtype")
        facts.append(("computed in", f"{dtype}, stored in {stored}" if stored else str(dtype)))
    return tuple(facts)
