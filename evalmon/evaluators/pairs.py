"""Where a context ends and its continuation begins, in token ids.

Two rules, and one encoder for both:

**Joined**, as lm-eval's Hugging Face class does it. White space at the end of the context
moves to the continuation; both are encoded together and cut at the length of the context
alone; an empty context becomes one prefix token; what the tokenizer's file puts before a
text stands before the context once. Where one token spans the cut and would leave no
continuation, the continuation is encoded by itself.

**Apart**, as AI2's trainers do it. Context and continuation are encoded as they are, each
by itself, with the beginning-of-text token, where there is one, before the context.

A context is encoded once for all its continuations. What a joined text adds to it is found
from the end of the context alone where the tokenizer allows that.

Source: lm-eval ``api/model.py`` (TemplateLM) and ``models/huggingface.py``; ai2-olmo-eval
``tasks.py``; EleutherAI/lm-evaluation-harness issues 1586, 4012 and 4055.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

from evalmon.errors import EvaluationError
from evalmon.tokenizer import TextTokenizer

__all__ = ["Pair", "PairEncoder", "Tokens"]

Tokens: TypeAlias = tuple[int, ...]
"""Token ids of a text."""

Pair: TypeAlias = tuple[str, str]
"""A context and its continuation."""

_GROUP: Final = 4096  # pairs whose joined texts are held at a time


@dataclass(frozen=True, slots=True)
class _Context:
    """A context's tokens, and the part of it that joined texts begin with.

    Attributes:
        ids: tokens of the whole context, with what stands before it.
        start: place in characters where the part begins, 0 for the whole.
        tail: tokens of the part, the last of ``ids``.
    """

    ids: Tokens
    start: int
    tail: Tokens


class PairEncoder:
    """Encodes contexts and their continuations, and remembers how.

    Args:
        tokenizer: the run's tokenizer.
        prefix_token: id put before text without context.
        bos: id that begins every context of the rule "apart", None where the tokenizer has
            none.
        apart: encode as AI2's trainers do, else as lm-eval does.

    Attributes:
        boundary_merges: distinct pairs, of the rule "joined", in which one token spans the
            cut.
        apart_differs: distinct pairs, of the rule "apart", that the other rule would give
            other ids or another cut, leaving what stands before the context aside.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        prefix_token: int,
        *,
        bos: int | None = None,
        apart: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._prefix = prefix_token
        self._bos = bos
        self._apart = apart
        self._known: dict[Pair, tuple[Tokens, Tokens]] = {}
        self._contexts: dict[str, _Context] = {}
        self.boundary_merges = 0
        self.apart_differs = 0

    def encode(self, context: str, continuation: str) -> tuple[Tokens, Tokens]:
        """Return the token ids of context and continuation, each at least one.

        Raises:
            EvaluationError: one of them would have no token.
        """
        pair = (context, continuation)
        if pair not in self._known:
            self.encode_all([pair])
        return self.checked(context, continuation)

    def encode_all(self, pairs: Iterable[Pair]) -> None:
        """Encode many pairs at once, on all processors, for :meth:`encode` to look up."""
        fresh = iter(dict.fromkeys(pair for pair in pairs if pair not in self._known))
        while group := list(islice(fresh, _GROUP)):
            kept = [(context, rest) for context, rest in group if rest]
            self._known |= dict.fromkeys(set(group) - set(kept), ((), ()))
            self._learn(dict.fromkeys(self._cut(*pair)[0] for pair in kept))
            encoded = self._encode_apart(kept) if self._apart else self._encode_joined(kept)
            self._known |= dict(zip(kept, encoded, strict=True))

    def checked(self, context: str, continuation: str) -> tuple[Tokens, Tokens]:
        """Return what is known of a pair; refuse one without tokens."""
        head, rest = self._known[context, continuation]
        if not head or not rest:
            raise EvaluationError(
                f"the continuation {continuation[:60]!r} of {context[-60:]!r} has no token; "
                "it needs at least one"
            )
        return head, rest

    def _cut(self, context: str, continuation: str) -> Pair:
        """Return the context as it is encoded, and what is encoded behind it."""
        if self._apart:
            return context, continuation
        kept = context.rstrip()
        return kept, context[len(kept) :] + continuation

    def _learn(self, contexts: Iterable[str]) -> None:
        """Encode contexts that are not known yet."""
        texts = [text for text in contexts if text and text not in self._contexts]
        starts = [self._tokenizer.tail_start(text) for text in texts]
        tails = self._tokenizer.encode_batch(
            [text[start:] if start else "" for text, start in zip(texts, starts, strict=True)]
        )
        wholes = self._tokenizer.encode_batch(texts)
        for text, start, tail, ids in zip(texts, starts, tails, wholes, strict=True):
            alone = 0 < len(tail) < len(ids) and ids[-len(tail) :] == tail
            self._contexts[text] = _Context(
                ids=self._begun(tuple(ids)),
                start=start if alone else 0,
                tail=tuple(tail if alone else ids),
            )

    def _begun(self, ids: Tokens) -> Tokens:
        """Put before a context what stands there, unless its text brings that along."""
        first = self._tokenizer.opening
        if self._apart:
            first = () if self._bos is None else (self._bos,)
        begun = ids[: len(first)] == first or (not self._apart and ids[:1] == (self._prefix,))
        return ids if begun else first + ids

    def _joined(self, pairs: Sequence[Pair]) -> list[Tokens]:
        """Return the tokens of each context's tail with what follows it."""
        return [
            tuple(ids)
            for ids in self._tokenizer.encode_batch(
                [context[self._contexts[context].start :] + rest for context, rest in pairs]
            )
        ]

    def _encode_joined(self, pairs: Sequence[Pair]) -> list[tuple[Tokens, Tokens]]:
        """Encode pairs by lm-eval's rule."""
        cut = [self._cut(*pair) for pair in pairs]
        joined = iter(self._joined([pair for pair in cut if pair[0]]))
        alone = iter(self._tokenizer.encode_batch([rest for kept, rest in cut if not kept]))
        found: list[tuple[Tokens, Tokens]] = []
        for kept, rest in cut:
            if not kept:
                ids = tuple(next(alone))
                # A text that begins with the prefix token brings it along: never two of them.
                found.append(((self._prefix,), ids[1:] if ids[:1] == (self._prefix,) else ids))
                continue
            context, whole = self._contexts[kept], next(joined)
            length = len(context.tail)
            self.boundary_merges += whole[:length] != context.tail
            found.append((context.ids, whole[length:] or tuple(self._tokenizer.encode(rest))))
        return found

    def _encode_apart(self, pairs: Sequence[Pair]) -> list[tuple[Tokens, Tokens]]:
        """Encode pairs by AI2's rule, and count where the other rule would differ."""
        texts = list(dict.fromkeys(rest for _, rest in pairs))
        encoded = self._tokenizer.encode_batch(texts)
        rests = {text: tuple(ids) for text, ids in zip(texts, encoded, strict=True)}
        joined = iter(self._joined([pair for pair in pairs if pair[0]]))
        found: list[tuple[Tokens, Tokens]] = []
        for context, rest in pairs:
            behind = rests[rest]
            if not context:
                found.append(((self._prefix,), behind))
                continue
            known = self._contexts[context]
            after = next(joined)[len(known.tail) :] or behind
            self.apart_differs += after != behind or context[-1].isspace()
            found.append((known.ids, behind))
        return found
