"""The dictionary from other trainers' metric names to ours, with what each of them means.

A name alone says little: MaxText's ``learning/loss`` holds the z-loss, OLMo's
``train/CrossEntropyLoss`` does not. So every entry carries the facts that belong to the name, and
``differences`` says which of them keep two curves from being laid over each other.
"""

import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from evalmon.errors import ConfigError
from evalmon.types import Json

__all__ = [
    "SOURCES", "Difference", "Tag", "counts_from_zero", "differences", "holdout_meant", "look_up",
    "nearest", "slips", "sources_of", "token_tags",
]  # fmt: skip

SOURCES: tuple[str, ...] = (
    "olmo1", "olmo_core", "maxtext", "levanter", "torchtitan", "nanotron", "lm_eval", "evalmon",
)  # fmt: skip
"""Writers whose names are known; ``evalmon`` stands for the canonical names themselves."""

# Their step n is the n-th batch counted from 0: the state after n + 1 updates.
_ZERO_BASED = frozenset({"levanter", "maxtext"})
_ANYBODYS = frozenset({"train/loss"})  # so common that alone it does not tell who wrote it


@dataclass(frozen=True, slots=True)
class Tag:
    """What a name stands for.

    Attributes:
        metric: canonical name.
        facts: what is known of the numbers from the trainer that writes the name; keys as in
            :class:`evalmon.types.Curve`.
        note: what the name leaves open and the dictionary takes for granted, "" for nothing.
        goes_first: whether it counts where another name that this trainer has for the metric
            stands beside it.
    """

    metric: str
    facts: Mapping[str, Json] = field(default_factory=dict[str, Json])
    note: str = ""
    goes_first: bool = False


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
    goes_first: bool = False


_Z_NATS = 0.001
"""Usual size of a z-loss of weight 1e-5: log Z is about 10 (facts/olmo3.md 2.3)."""
_MEAN: dict[str, Json] = {"z_loss": "excluded", "divisor": "predicted_tokens"}
_WITH_Z: dict[str, Json] = {
    "z_loss": "included", "z_loss_nats": _Z_NATS, "divisor": "total_weights",
}  # fmt: skip
_HOLDOUT: dict[str, Json] = {"z_loss": "excluded"}
# OLMo-core's evaluator averages over all tokens of a document, of which the first predicts nothing.
_ALL_TOKENS: dict[str, Json] = {"z_loss": "excluded", "divisor": "all_tokens"}
_LEN_NORM: dict[str, Json] = {"normalization": "characters"}  # the space before is not counted
_CHARACTERS: dict[str, Json] = {"divisor": "characters"}
_BYTES: dict[str, Json] = {"divisor": "bytes"}
# One set of instances is the divisor of both; they part only where instances are masked out.
_SAME_DIVISOR = frozenset({"predicted_tokens", "total_weights"})
_ZERO_A_DOCUMENT_NATS = 0.007
"""By how much a zero a document lowers a mean: at 400 tokens a document and 2.7 nats."""
_UNNAMED = "names no text: taken as C4's validation set"
_SPACE = "does not tell whether an answer's leading space counts: taken as not"
_NOT_COMPARED = frozenset({"z_loss_nats", "items"})

_SET = r"(?P<set>[\w.-]+?)(-validation)?"
_TASKS = "arc_challenge|arc_easy|boolq|hellaswag|openbookqa|piqa|sciq|winogrande"
_ALIASES = MappingProxyType({"openbook_qa": "openbookqa"})


def _downstream(
    label: str, metric: str, facts: dict[str, Json], note: str = ""
) -> tuple[_Entry, _Entry]:
    """Return the rows of one of OLMo-core's labels and of its "v2", which counts the space too.

    Source: allenai/OLMo-in-loop-evals, ``ICLMetric.compute``. To 0.7 there are plain labels alone,
    without the space; from 0.8 on both, where an accuracy is one number, taken as v2 says.
    """
    spaced: dict[str, Json] = {fact: f"{unit}_with_space" for fact, unit in facts.items()}
    name, example = r"eval/downstream/(?P<task>\w+) ", "eval/downstream/hellaswag "
    return (
        _Entry("olmo_core", rf"{name}\({label}\)", f"{{task}}/{metric}", facts,
               f"{example}({label})", note),
        _Entry("olmo_core", rf"{name}\({label} v2\)", f"{{task}}/{metric}", spaced,
               f"{example}({label} v2)", goes_first=True),
    )  # fmt: skip


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
    _Entry("olmo1", r"eval/downstream(_bpb)?/(?P<task>\w+?)(_bpb)+", "{task}/bpb", _BYTES,
           "eval/downstream_bpb/arc_easy_rc_5shot_bpb_bpb"),
    _Entry("olmo1", r"eval/downstream(_ce_loss)?/(?P<task>\w+?)(_ce_loss)+", "{task}/ce_nats",
           _CHARACTERS, "eval/downstream_ce_loss/piqa_ce_loss"),
    _Entry("olmo_core", r"train/CE loss", "train/ce_nats", _MEAN),
    _Entry("olmo_core", r"train/Z loss", "train/z_nats"),
    _Entry("olmo_core", r"optim/LR \(group 0\)|optim/LR", "optim/lr", {}, "optim/LR (group 0)"),
    _Entry("olmo_core", rf"eval/lm/{_SET}/CE loss", "eval/lm/{set}-validation/ce_nats",
           _ALL_TOKENS, "eval/lm/c4_en-validation/CE loss"),
    _Entry("olmo_core", rf"eval/lm/{_SET}/BPB", "eval/lm/{set}-validation/bpb", {},
           "eval/lm/c4_en-validation/BPB"),
    *_downstream("accuracy", "acc", {}),
    *_downstream("length-normalized accuracy", "len_norm", _LEN_NORM, _SPACE),
    *_downstream("BPB", "bpb", _BYTES),
    *_downstream("CE loss", "ce_nats", _CHARACTERS),
    # MaxText: z-loss within; learning/lm_loss has no losses of a mixture of experts in it.
    _Entry("maxtext", r"learning/loss", "train/ce_nats", _WITH_Z, goes_first=True),
    _Entry("maxtext", r"learning/lm_loss", "train/ce_nats", _WITH_Z),
    _Entry("maxtext", r"learning/z_loss", "train/z_nats"),
    _Entry("maxtext", r"learning/current_learning_rate", "optim/lr"),
    _Entry("maxtext", r"eval/avg_loss", "eval/lm/c4_en-validation/ce_nats", _WITH_Z, note=_UNNAMED),
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


def counts_from_zero(names: Iterable[str], source: str = "") -> str:
    """Return the trainer that wrote a log and counts its steps from 0, "" where none is known.

    Our steps are updates completed, so that each of its steps is one too low.

    Args:
        names: metrics of the log, known or not.
        source: the trainer, where that is known.

    Source: stanford-crfm/levanter, callbacks/_core.py: ``StepInfo.step`` is ``state.step - 1``,
    at which the loss, the evaluations and the tokens of ``step + 1`` batches are logged.

    Example:
        >>> counts_from_zero(["train/loss", "eval/c4_en/loss"]), counts_from_zero(["train/loss"])
        ('levanter', '')
    """
    if source:
        return source if source in _ZERO_BASED else ""
    known = {name: found for name in names if (found := sources_of(name))}
    if not known.keys() - _ANYBODYS:
        return ""
    common = frozenset[str].intersection(*known.values())
    return next(iter(common & _ZERO_BASED), "") if len(common) == 1 else ""


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
        both = {str(one), str(two)}
        if one == two or (fact == "divisor" and both <= _SAME_DIVISOR):
            continue
        remedy, nats = "", 0.0
        if fact == "tokenizer":
            remedy = "bpb"
        elif fact == "divisor" and "all_tokens" in both and both & _SAME_DIVISOR:
            remedy, nats = "correction", _ZERO_A_DOCUMENT_NATS
        elif fact == "z_loss" and both == {"included", "excluded"}:
            remedy = "correction"
            size = (mine if one == "included" else theirs).get("z_loss_nats", _Z_NATS)
            nats = float(size) if isinstance(size, int | float) else _Z_NATS
        found.append(Difference(fact, one, two, remedy, nats))
    return tuple(found)


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
    metric, facts = entry.metric.format(whole=match.string, **groups), dict(entry.facts)
    if "task" in groups:
        label, more = _task(str(groups["task"]))
        metric, facts = "eval/downstream/" + entry.metric.format(task=label), facts | more
    return Tag(metric, facts, note=entry.note, goes_first=entry.goes_first)


def _task(label: str) -> tuple[str, dict[str, Json]]:
    """Return a task's label with its shots, and what the label tells of shots and split."""
    label = _ALIASES.get(label, label)
    shots = re.search(r"_(\d+)shot", label)
    facts: dict[str, Json] = {"shots": int(shots[1]) if shots else 0}
    split = re.search(r"_(test|val)_", label)
    if split:
        facts["split"] = {"test": "test", "val": "validation"}[split[1]]
    return label if shots else f"{label}_0shot", facts
