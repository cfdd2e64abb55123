"""Whether the curves of two runs may be laid over each other, and what stands between them.

Only like is laid over like. Where both sides say what a number means and differ, there are
three ways out: a refusal; a correction, where the difference is an offset of known size, as
a z-loss in one of the losses; or bits per byte, where only the tokenizers differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from evalmon import tags
from evalmon.types import Json, MetricIdentity, RunDescription

__all__ = ["Likeness", "curves_alike", "identity_differences", "runs_alike"]


@dataclass(frozen=True, slots=True)
class Likeness:
    """What stands between two curves.

    Attributes:
        refusals: why they must not be laid over each other, one sentence each.
        offsets: constant offsets between them that are tolerated, one sentence each.
        offset_nats: how large those are together.
    """

    refusals: tuple[str, ...] = ()
    offsets: tuple[str, ...] = ()
    offset_nats: float = 0.0

    def __add__(self, other: "Likeness") -> "Likeness":
        return Likeness(
            (*self.refusals, *other.refusals),
            (*self.offsets, *other.offsets),
            self.offset_nats + other.offset_nats,
        )


def curves_alike(
    metric: str, mine: Mapping[str, Json], theirs: Mapping[str, Json], reference: str
) -> Likeness:
    """Compare what is known of two curves of one metric.

    Args:
        metric: canonical name of both.
        mine: facts of the run's curve.
        theirs: facts of the reference's.
        reference: the reference's name.

    Returns:
        Refusals and offsets; none where nothing known differs.

    Example:
        >>> found = curves_alike("train/ce_nats", {"z_loss": "included", "z_loss_nats": 0.001},
        ...                      {"z_loss": "excluded"}, "olmo3")
        >>> found.refusals, found.offset_nats
        ((), 0.001)
    """
    refusals: list[str] = []
    offsets: list[str] = []
    nats = 0.0
    for item in tags.differences(mine, theirs):
        said = (
            f"{metric} differs from {reference}'s in {item.fact!r}: {item.mine!r} against "
            f"{item.theirs!r}"
        )
        if item.remedy == "correction":
            offsets.append(
                f"{said}: an offset of about {item.nats:g} nats, which is tolerated; log the loss "
                "without it to be exact"
            )
            nats += item.nats
        elif item.remedy == "bpb" and metric.endswith("/ce_nats") and metric.startswith("eval/"):
            refusals.append(
                f"{said}: nats per token of different tokenizers cannot be compared; compare bits "
                f"per byte, {metric.replace('ce_nats', 'bpb')}"
            )
        else:
            refusals.append(said)
    return Likeness(tuple(refusals), tuple(offsets), nats)


def runs_alike(
    mine: RunDescription,
    theirs: RunDescription,
    holdout: str,
    identities: tuple[MetricIdentity | None, MetricIdentity | None],
    train: str,
) -> Likeness:
    """Compare two run directories, which say everything: what one alone says differs too.

    Args:
        mine: the run.
        theirs: its reference.
        holdout: metric of the holdout.
        identities: what that metric means in each, None where it is not known.
        train: metric of the train loss.

    Returns:
        Refusals alone.
    """
    loss, other = mine.loss, theirs.loss
    refusals = [
        f"{train} differs from {theirs.name}'s in {key!r}: {loss.get(key)!r} against "
        f"{other.get(key)!r}"
        for key in sorted({*loss, *other})
        if loss.get(key) != other.get(key)
    ]
    own, peer = identities
    if own is not None and peer is not None:
        refusals.extend(
            f"{holdout} differs from {theirs.name}'s in {field}"
            for field in identity_differences(own, peer)
        )
        if own.tokenizer != peer.tokenizer:
            refusals.append(
                "nats per token of different tokenizers cannot be compared: compare bits per byte, "
                f"{holdout.replace('ce_nats', 'bpb')}"
            )
        elif own != peer:
            refusals.append("score both runs with the same settings")
    return Likeness(tuple(refusals))


def identity_differences(mine: MetricIdentity, theirs: MetricIdentity) -> tuple[str, ...]:
    """Say in which fields two metric identities differ, with both values.

    Example:
        >>> from dataclasses import replace
        >>> one = MetricIdentity("c4", "bpb", None, "", "validation", None, "bytes", "t",
        ...                      "float32", 0, "d", 8)
        >>> identity_differences(one, replace(one, prefix_token=2))
        ("'prefix_token': 0 against 2",)
    """
    return tuple(
        f"{item.name!r}: {getattr(mine, item.name)!r} against {getattr(theirs, item.name)!r}"
        for item in fields(mine)
        if getattr(mine, item.name) != getattr(theirs, item.name)
    )
