"""The dictionary from other trainers' metric names to ours, with what each of them means.

A name alone says little: MaxText's ``learning/loss`` holds the z-loss, OLMo's
``train/CrossEntropyLoss`` does not. So every entry carries the facts that belong to the name, and
``differences`` says which of them keep two curves from being laid over each other.
"""

import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from evalmon.errors import ConfigError
from evalmon.types import Json

__all__ = [
    "SOURCES", "Difference", "Tag", "differences", "holdout_meant", "look_up", "nearest",
    "slips", "sources_of", "token_tags",
]  # fmt: skip

SOURCES: tuple[str, ...] = (
    "olmo1", "olmo_core", "maxtext", "levanter", "torchtitan", "nanotron", "lm_eval", "evalmon",
)  # fmt: skip
"""Writers whose names are known; ``evalmon`` stands for the canonical names themselves."""


@dataclass(frozen=True, slots=True)
class Tag:
    """What a name stands for.

    Attributes:
        metric: canonical name.
        facts: what is known of the numbers from the trainer that writes the name; keys as in
            :class:`evalmon.types.Curve`.
        scale: factor from the trainer's unit to ours.
        note: what the name leaves open and the dictionary takes for granted, "" for nothing.
    """

    metric: str
    facts: Mapping[str, Json] = field(default_factory=dict[str, Json])
    scale: float = 1.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact in which two curves differ.

    Attributes:
        fact: its key.
        mine: its value for the first curve.
        theirs: its value for the second.
        remedy: ``correction`` where the difference is an offset of about ``nats``, ``bpb`` where
            bits per byte can be compared instead, "" where the two must not be compared.
        nats: usual size of the offset, 0 without one.
    """

    fact: str
    mine: Json
    theirs: Json
    remedy: str
    nats: float = 0.0


@dataclass(frozen=True, slots=True)
class _Entry:
    """One row of the dictionary: a whole name as a pattern, and what it becomes."""

    source: str
    pattern: str
    metric: str
    facts: Mapping[str, Json] = field(default_factory=dict[str, Json])
    example: str = ""
    note: str = ""


_Z_NATS = 0.001
"""Usual size of a z-loss of weight 1e-5: log Z is about 10 (facts/olmo3.md 2.3)."""
_MEAN: dict[str, Json] = {"z_loss": "excluded", "divisor": "predicted_tokens"}
_WITH_Z: dict[str, Json] = {
    "z_loss": "included", "z_loss_nats": _Z_NATS, "divisor": "total_weights",
}  # fmt: skip
_HOLDOUT: dict[str, Json] = {"z_loss": "excluded"}
# OLMo-core's evaluator averages over all tokens of a document, of which the first predicts nothing.
_ALL_TOKENS: dict[str, Json] = {"z_loss": "excluded", "divisor": "all_tokens"}
_LEN_NORM: dict[str, Json] = {"normalization": "characters"}
# One set of instances is the divisor of both; they part only where instances are masked out.
_SAME_DIVISOR = frozenset({"predicted_tokens", "total_weights"})
_ZERO_A_DOCUMENT_NATS = 0.007
"""By how much a zero a document lowers a mean: at 400 tokens a document and 2.7 nats."""
_UNNAMED = "names no text: taken as C4's validation set"
_NOT_COMPARED = frozenset({"z_loss_nats", "items"})

_SET = r"(?P<set>[\w.-]+?)(-validation)?"
_TASKS = "arc_challenge|arc_easy|boolq|hellaswag|openbookqa|piqa|sciq|winogrande"
_ALIASES = MappingProxyType({"openbook_qa": "openbookqa"})

_TABLE: tuple[_Entry, ...] = (
    # OLMo-1: the loss and its z-loss apart.
    _Entry("olmo1", r"train/CrossEntropyLoss", "train/ce_nats", _MEAN),
    _Entry("olmo1", r"train/ZLoss", "train/z_nats"),
    _Entry("olmo1", r"optim/learning_rate_group0", "optim/lr"),
    _Entry("olmo1", rf"eval/{_SET}/CrossEntropyLoss", "eval/lm/{set}-validation/ce_nats",
           _HOLDOUT, "eval/c4_en-validation/CrossEntropyLoss"),
    _Entry("olmo1", r"eval/downstream/(?P<task>\w+?)_acc", "{task}/acc", {},
           "eval/downstream/arc_easy_acc"),
    _Entry("olmo1", r"eval/downstream/(?P<task>\w+?)_len_norm", "{task}/len_norm", _LEN_NORM,
           "eval/downstream/hellaswag_len_norm"),
    _Entry("olmo1", r"eval/downstream(_bpb)?/(?P<task>\w+?)(_bpb)+", "{task}/bpb", {},
           "eval/downstream_bpb/arc_easy_rc_5shot_bpb_bpb"),
    _Entry("olmo1", r"eval/downstream(_ce_loss)?/(?P<task>\w+?)(_ce_loss)+", "{task}/ce_nats",
           {"divisor": "characters"}, "eval/downstream_ce_loss/piqa_ce_loss"),
    # OLMo-core. "v2" counts the leading space of an answer, the plain label does not: another
    # normalization, so only the plain one is ours. Accuracy is the same number in both.
    _Entry("olmo_core", r"train/CE loss", "train/ce_nats", _MEAN),
    _Entry("olmo_core", r"train/Z loss", "train/z_nats"),
    _Entry("olmo_core", r"optim/LR \(group 0\)|optim/LR", "optim/lr", {}, "optim/LR (group 0)"),
    _Entry("olmo_core", rf"eval/lm/{_SET}/CE loss", "eval/lm/{set}-validation/ce_nats",
           _ALL_TOKENS, "eval/lm/c4_en-validation/CE loss"),
    _Entry("olmo_core", rf"eval/lm/{_SET}/BPB", "eval/lm/{set}-validation/bpb", {},
           "eval/lm/c4_en-validation/BPB"),
    _Entry("olmo_core", r"eval/downstream/(?P<task>\w+) \(accuracy\)", "{task}/acc", {},
           "eval/downstream/arc_easy (accuracy)"),
    _Entry("olmo_core", r"eval/downstream/(?P<task>\w+) \(length-normalized accuracy\)",
           "{task}/len_norm", _LEN_NORM, "eval/downstream/hellaswag (length-normalized accuracy)"),
    _Entry("olmo_core", r"eval/downstream/(?P<task>\w+) \(BPB\)", "{task}/bpb", {},
           "eval/downstream/arc_easy_test_rc_5shot (BPB)"),
    _Entry("olmo_core", r"eval/downstream/(?P<task>\w+) \(CE loss\)", "{task}/ce_nats",
           {"divisor": "characters"}, "eval/downstream/piqa (CE loss)"),
    # MaxText: z-loss within the loss. learning/lm_loss is the same number without the losses of
    # a mixture of experts; it is no entry, so that an export with both is no conflict.
    _Entry("maxtext", r"learning/loss", "train/ce_nats", _WITH_Z),
    _Entry("maxtext", r"learning/z_loss", "train/z_nats"),
    _Entry("maxtext", r"learning/current_learning_rate", "optim/lr"),
    _Entry("maxtext", r"eval/avg_loss", "eval/lm/c4_en-validation/ce_nats", _WITH_Z,
           note=_UNNAMED),
    # Levanter: whether a z-loss is in it is a setting that the name does not tell.
    _Entry("levanter", r"train/loss", "train/ce_nats"),
    _Entry("levanter", r"optim/learning_rate", "optim/lr"),
    # A share of all epochs where the run limits them: then it never passes 1 and tells of none.
    _Entry("levanter", r"train/current_epoch", "data/epoch"),
    _Entry("levanter", rf"eval/(paloma/)?(?!ema/){_SET}/loss",
           "eval/lm/{set}-validation/ce_nats", {}, "eval/c4_en/loss"),
    _Entry("levanter", rf"eval/(paloma/)?(?!ema/){_SET}/bpb", "eval/lm/{set}-validation/bpb", {},
           "eval/c4_en/bpb"),
    # torchtitan and nanotron: plain cross-entropy.
    _Entry("torchtitan", r"loss_metrics/global_avg_loss", "train/ce_nats", _MEAN),
    _Entry("torchtitan", r"validation_metrics/loss", "eval/lm/c4_en-validation/ce_nats",
           _HOLDOUT, note=_UNNAMED),
    _Entry("torchtitan", r"lr", "optim/lr"),
    _Entry("nanotron", r"(train/)?lm_loss", "train/ce_nats", _MEAN, "train/lm_loss"),
    _Entry("nanotron", r"(train/)?lr", "optim/lr", {}, "train/lr"),
    # lm-eval: tasks without shots of their own are scored with none; other shots need canonical
    # names, for the name does not tell.
    _Entry("lm_eval", rf"(?P<task>{_TASKS})/acc(,none)?", "{task}/acc", {}, "arc_easy/acc,none"),
    _Entry("lm_eval", rf"(?P<task>{_TASKS})/acc_norm(,none)?", "{task}/len_norm", _LEN_NORM,
           "hellaswag/acc_norm,none"),
    # Our own.
    _Entry("evalmon", r"train/ce_nats|train/z_nats|optim/lr", "{whole}", {}, "train/ce_nats"),
    _Entry("evalmon", r"data/(epoch|position|mix)", "{whole}", {}, "data/epoch"),
    _Entry("evalmon", r"eval/lm/[\w.-]+-validation/(ce_nats|bpb)", "{whole}", {},
           "eval/lm/c4_en-validation/ce_nats"),
    _Entry("evalmon", r"eval/downstream/(\w+/(acc|len_norm|ce_nats|bpb)|\w+_\d+shot)",
           "{whole}", {}, "eval/downstream/arc_easy_0shot/acc"),
)  # fmt: skip

_LOSSES = "ce_nats|ce|ce loss|ce_loss|crossentropyloss|cross_entropy|loss|nll|ppl|perplexity"
_MEANT = re.compile(
    rf"eval(?:uation)?/(?:lm/|paloma/)?(?P<set>[\w.-]+?)(?:[-_]val(?:idation)?)?/"
    rf"(?:(?P<loss>{_LOSSES})|bpb|bits_per_byte)",
    re.IGNORECASE,
)
"""Names that are close to a holdout's, whatever the holdout."""

_TOKENS = (
    "tokens",
    "throughput/total tokens",  # OLMo-core
    "throughput/total_tokens",  # OLMo-1, Levanter
    "consumed_tokens",  # nanotron
    "train/consumed_tokens",
    "n_tokens_seen",  # torchtitan
    "train/tokens",
    "tokens_seen",
)


def token_tags() -> tuple[str, ...]:
    """Return the names under which trainers log the tokens trained on so far."""
    return _TOKENS


def sources_of(tag: str) -> frozenset[str]:
    """Return the trainers that write a name.

    Example:
        >>> sorted(sources_of("lr"))
        ['nanotron', 'torchtitan']
    """
    return frozenset(_meanings(tag))


def look_up(tag: str, source: str = "") -> Tag | None:
    """Return what a metric's name means.

    Args:
        tag: the name as the trainer writes it, or a canonical name.
        source: one of ``SOURCES``, "" for any.

    Returns:
        The canonical name with its facts, None where the name is not known.

    Raises:
        ConfigError: an unknown source, or no source and two that mean different things.

    Example:
        >>> look_up("learning/loss").facts["z_loss"]
        'included'
        >>> look_up("eval/downstream/hellaswag_len_norm").metric
        'eval/downstream/hellaswag_0shot/len_norm'
        >>> look_up("perf/step_time_seconds") is None
        True
    """
    if source and source not in SOURCES:
        near = difflib.get_close_matches(source, SOURCES, n=1)
        hint = f"; nearest is {near[0]!r}" if near else ""
        raise ConfigError(f"source {source!r} of metric names: not known{hint}; of {SOURCES}")
    found = _meanings(tag)
    if source:
        return found.get(source)
    if "evalmon" in found:
        return found["evalmon"]
    meanings = list(found.values())
    if any(other != meanings[0] for other in meanings[1:]):
        said = "; ".join(
            f"{name}: {item.metric} {dict(item.facts)}" for name, item in found.items()
        )
        raise ConfigError(
            f"metric {tag!r} means different things ({said}); give it its canonical name"
        )
    return meanings[0] if meanings else None


def holdout_meant(tag: str) -> str:
    """Return the canonical name that an unknown name of a holdout's curve is close to, else "".

    Example:
        >>> holdout_meant("eval/lm/pile/ce_nats")
        'eval/lm/pile-validation/ce_nats'
        >>> holdout_meant("perf/step_time_seconds")
        ''
    """
    found = _MEANT.fullmatch(tag)
    if not found or found["set"].lower() == "downstream":
        return ""
    return f"eval/lm/{found['set']}-validation/{'ce_nats' if found['loss'] else 'bpb'}"


def nearest(tag: str) -> tuple[str, ...]:
    """Return known names close to one that is not known, the closest first.

    Example:
        >>> nearest("train/CE los")[0]
        'train/CE loss'
    """
    if meant := holdout_meant(tag):
        return (meant,)
    return _close(tag, 0.5) or ("train/ce_nats", "eval/lm/c4_en-validation/ce_nats")


def slips(tag: str) -> tuple[str, ...]:
    """Return known names of which one that is not known may be a slip of the pen.

    Example:
        >>> slips("train/CE los"), slips("perf/step_time_seconds")
        (('train/CE loss',), ())
    """
    return _close(tag, 0.85)


def differences(mine: Mapping[str, Json], theirs: Mapping[str, Json]) -> tuple[Difference, ...]:
    """Return the facts that both curves state and in which they differ.

    A fact only one side knows is no difference: it cannot be held against the other.

    Args:
        mine: facts of the first curve.
        theirs: facts of the second.

    Returns:
        One entry a fact, by its key, each with what could be done.

    Example:
        >>> found, = differences({"z_loss": "included", "z_loss_nats": 0.002},
        ...                      {"z_loss": "excluded"})
        >>> found.remedy, found.nats
        ('correction', 0.002)
    """
    found: list[Difference] = []
    for fact in sorted(mine.keys() & theirs.keys() - _NOT_COMPARED):
        one, two = mine[fact], theirs[fact]
        if one == two or (fact == "divisor" and {str(one), str(two)} <= _SAME_DIVISOR):
            continue
        remedy, nats = "", 0.0
        if fact == "tokenizer":
            remedy = "bpb"
        elif fact == "divisor" and _a_zero_a_document({str(one), str(two)}):
            remedy, nats = "correction", _ZERO_A_DOCUMENT_NATS
        elif fact == "z_loss" and {str(one), str(two)} == {"included", "excluded"}:
            remedy = "correction"
            size = (mine if one == "included" else theirs).get("z_loss_nats", _Z_NATS)
            nats = float(size) if isinstance(size, int | float) else _Z_NATS
        found.append(Difference(fact, one, two, remedy, nats))
    return tuple(found)


def _a_zero_a_document(divisors: set[str]) -> bool:
    """Tell whether two divisors differ by one token a document."""
    return "all_tokens" in divisors and bool(divisors & _SAME_DIVISOR)


def _close(tag: str, cutoff: float) -> tuple[str, ...]:
    """Return known names at least that similar to one that is not, the closest first."""
    names = {entry.example or entry.pattern for entry in _TABLE}
    return tuple(difflib.get_close_matches(tag, sorted(names), n=3, cutoff=cutoff))


@functools.cache
def _meanings(tag: str) -> Mapping[str, Tag]:
    """Return what each trainer that writes a name means by it."""
    found: dict[str, Tag] = {}
    for entry in _TABLE:
        match = None if entry.source in found else re.fullmatch(entry.pattern, tag)
        if match:
            found[entry.source] = _tag(entry, match)
    return MappingProxyType(found)


def _tag(entry: _Entry, match: re.Match[str]) -> Tag:
    """Fill an entry's canonical name in."""
    groups = match.groupdict()
    facts = dict(entry.facts)
    if "task" in groups:
        label, more = _task(str(groups["task"]))
        facts |= more
        return Tag("eval/downstream/" + entry.metric.format(task=label), facts, note=entry.note)
    return Tag(entry.metric.format(whole=match.string, **groups), facts, note=entry.note)


def _task(label: str) -> tuple[str, dict[str, Json]]:
    """Return a task's label with its shots, and what the label tells of shots and split."""
    label = _ALIASES.get(label, label)
    shots = re.search(r"_(\d+)shot", label)
    facts: dict[str, Json] = {"shots": int(shots[1]) if shots else 0}
    split = re.search(r"_(test|val)_", label)
    if split:
        facts["split"] = {"test": "test", "val": "validation"}[split[1]]
    return label if shots else f"{label}_0shot", facts
