"""Text to token ids, as the run's own tokenizer file says; owns the tokenizers library."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from evalmon.errors import DataError, EvaluationError
from evalmon.types import RunDescription

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["PairEncoder", "RunTokenizer"]

_Tokens: TypeAlias = tuple[int, ...]


class RunTokenizer:
    """The tokenizer a run was trained with.

    Never adds a token of its own: the prefix before scored text is the evaluator's
    business, so that there is exactly one.

    Args:
        run: its ``tokenizer`` names a ``tokenizers`` JSON file.
    """

    def __init__(self, run: RunDescription) -> None:
        self.path: Path = run.resolve(run.tokenizer or "tokenizer.json")
        self._named = bool(run.tokenizer)

    @cached_property
    def fingerprint(self) -> str:
        """Return 16 hex digits over the file.

        Raises:
            DataError: the run names no tokenizer, or its file cannot be read.
        """
        if not self._named:
            raise DataError(
                f"{self.path.parent / 'run.json'}: names no tokenizer, so text cannot be scored; "
                "make the token folder with `python -m trainer index --tokenizer-file FILE`"
            )
        try:
            return hashlib.blake2b(self.path.read_bytes(), digest_size=8).hexdigest()
        except OSError as error:
            raise DataError(
                f"{self.path}: the tokenizer cannot be read ({error.strerror}); run.json must name "
                "the tokenizers JSON file the run was trained with"
            ) from error

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    @cached_property
    def _tokenizer(self) -> "Tokenizer":
        """Read the file once."""
        from tokenizers import Tokenizer

        text = self.path.read_text(encoding="utf-8") if self.fingerprint else ""
        try:
            return Tokenizer.from_str(text)
        except Exception as error:
            # The library raises bare Exception for anything it cannot parse.
            if type(error) is not Exception:
                raise
            raise DataError(f"{self.path}: not a tokenizers JSON file ({error})") from error


class PairEncoder:
    """Encodes a context and its continuation as lm-eval's Hugging Face class does.

    White space at the end of the context moves to the continuation; both are encoded
    together and cut at the length of the context alone; an empty context becomes one
    prefix token. Where one token spans the cut and would leave no continuation, the
    continuation is encoded by itself.

    Args:
        tokenizer: the run's tokenizer.
        prefix_token: id put before text without context.

    Attributes:
        boundary_merges: distinct pairs in which one token spans the cut.

    Source: lm-eval ``api/model.py`` (TemplateLM); EleutherAI/lm-evaluation-harness
    issues 4012 and 4055.
    """

    def __init__(self, tokenizer: RunTokenizer, prefix_token: int) -> None:
        self._tokenizer = tokenizer
        self._prefix = prefix_token
        self._known: dict[tuple[str, str], tuple[_Tokens, _Tokens]] = {}
        self.boundary_merges = 0

    def encode(self, context: str, continuation: str) -> tuple[_Tokens, _Tokens]:
        """Return the token ids of context and continuation, each at least one.

        Raises:
            EvaluationError: one of them would have no token.
        """
        key = (context, continuation)
        if key not in self._known:
            head, rest = self._encode(context, continuation)
            if not head or not rest:
                raise EvaluationError(
                    f"{context[-60:]!r} and its continuation {continuation[:60]!r} have "
                    f"{len(head)} and {len(rest)} tokens; both need at least one"
                )
            self._known[key] = (tuple(head), tuple(rest))
        return self._known[key]

    def _encode(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Encode one pair."""
        if not continuation:
            return self._tokenizer.encode(context), []
        kept = context.rstrip()
        moved = context[len(kept) :] + continuation
        if not kept:
            rest = self._tokenizer.encode(moved)
            # A text that begins with the prefix token brings it along: never two of them.
            return ([self._prefix], rest[1:] if rest[:1] == [self._prefix] else rest)
        head = self._tokenizer.encode(kept)
        rest = self._tokenizer.encode(kept + moved)[len(head) :]
        if not rest:
            self.boundary_merges += 1
            rest = self._tokenizer.encode(moved)
        return head, rest
