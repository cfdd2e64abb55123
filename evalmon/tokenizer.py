"""Text to token ids and back, by one ``tokenizers`` file; owns the tokenizers library.

No token is ever added to a text here: what stands before scored text is the evaluator's
business, so that there is exactly one such token. Cutting and padding that a file may ask
for are switched off, so that no text is shortened unseen.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, cast

from evalmon.errors import DataError
from evalmon.types import RunDescription

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["SpannedText", "TextTokenizer"]

_BREAK: Final = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")
_TAIL: Final = 160  # characters at the end of a text in which a break is looked for
_LOOKS_BACK: Final = re.compile(r"\(\?<|\\[bBAG]|(?<!\[)\^")


@dataclass(frozen=True, slots=True)
class SpannedText:
    """A text's tokens, and how many of its UTF-8 bytes they cover.

    Attributes:
        ids: token ids.
        bytes_before: [len(ids) + 1] bytes of the text that lie before each token, and at
            last all of them. They are counted in the text as it is given, whatever the
            tokenizer makes of it; a character that several tokens share counts where the
            last of them ends.
    """

    ids: tuple[int, ...]
    bytes_before: tuple[int, ...]


class TextTokenizer:
    """One tokenizer file, read when it is first needed.

    Args:
        path: a ``tokenizers`` JSON file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_run(cls, run: RunDescription) -> Self:
        """Return the tokenizer a run was trained with.

        Raises:
            DataError: the run names none.
        """
        if not run.tokenizer:
            raise DataError(
                f"{run.path / 'run.json'}: names no tokenizer, so text cannot be scored; "
                "make the token folder with `python -m trainer index --tokenizer-file FILE`"
            )
        return cls(run.resolve(run.tokenizer))

    @cached_property
    def fingerprint(self) -> str:
        """Return 16 hex digits over the file.

        Raises:
            DataError: it cannot be read.
        """
        return hashlib.blake2b(self._content, digest_size=8).hexdigest()

    @cached_property
    def vocab_size(self) -> int:
        """Return one more than the largest id, added tokens included."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    @cached_property
    def opening(self) -> tuple[int, ...]:
        """Return the ids that the file itself asks to put before a text; often none."""
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        whole = self._tokenizer.encode("a", add_special_tokens=True).ids
        starts = range(len(whole) - len(plain) + 1)
        begin = next((n for n in starts if whole[n : n + len(plain)] == plain), 0)
        return tuple(whole[:begin])

    def require_fit(self, vocab_size: int, place: str) -> None:
        """Refuse a model that lacks some of the ids, before anything is computed.

        Args:
            vocab_size: ids the model has.
            place: what says so, for the message.

        Raises:
            DataError: a token's id is not among them; the token is named.
        """
        if self.vocab_size <= vocab_size:
            return
        last = self._tokenizer.id_to_token(self.vocab_size - 1)
        raise DataError(
            f"{self.path}: token {last!r} has id {self.vocab_size - 1}, but {place} has "
            f"{vocab_size} ids; name the tokenizer the model was trained with"
        )

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts, on all processors."""
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [item.ids for item in found]

    def encode_spans(self, texts: Sequence[str]) -> list[SpannedText]:
        """Return the token ids of texts with the bytes they cover."""
        found = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [
            SpannedText(tuple(item.ids), _bytes_before(text, item.offsets))
            for text, item in zip(texts, found, strict=True)
        ]

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Return the text of token ids, with or without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special))

    def decode_batch(self, texts: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of lists of token ids, special tokens left out."""
        return self._tokenizer.decode_batch([list(ids) for ids in texts])

    def tail_start(self, text: str) -> int:
        """Return a place near the end of a text from which its tokens may be found alone.

        What precedes it is never changed by what follows the text: tokens of the whole are
        those before the place, then those of the rest with its continuation. That holds
        where the file splits text by one pattern, from left to right and without looking
        back, and a word begins at the place. A caller still checks that the rest alone has
        the tokens it has in the text.

        Returns:
            The place in characters; 0 where only the whole text will do.
        """
        if not self._splits_forward:
            return 0
        found = _BREAK.search(text, max(1, len(text) - _TAIL))
        return found.start() if found else 0

    @cached_property
    def _splits_forward(self) -> bool:
        """Say whether one pattern that never looks back splits text into words of BPE."""
        record = cast("dict[str, Any]", json.loads(self._tokenizer.to_str()))
        rule: dict[str, Any] = record.get("pre_tokenizer") or {}
        rules = rule.get("pretokenizers", [rule])
        first, rest = rules[0], rules[1:]
        match first.get("type"):
            case "ByteLevel":
                sound = first["use_regex"] and not first["add_prefix_space"] and not rest
            case "Split":
                pattern = first["pattern"].get("Regex", "^")
                sound = first["behavior"] == "Isolated" and not first["invert"]
                sound = sound and not _LOOKS_BACK.search(pattern)
            case _:
                sound = False
        plain = all(
            item["type"] == "ByteLevel" and not item["use_regex"] and not item["add_prefix_space"]
            for item in rest
        )
        normal = (record.get("normalizer") or {}).get("type") in {None, "NFC"}
        return bool(sound and plain and normal and record["model"]["type"] == "BPE")

    @cached_property
    def _content(self) -> bytes:
        """Read the file once."""
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise DataError(
                f"{self.path}: the tokenizer cannot be read ({error.strerror}); give the "
                "tokenizers JSON file the model was trained with"
            ) from error

    @cached_property
    def _tokenizer(self) -> "Tokenizer":
        """Parse the file once."""
        content = self._content
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise DataError(
                f"{self.path}: needs the tokenizers package; pip install 'evalmon[evaluate]'"
            ) from error
        try:
            made = Tokenizer.from_str(content.decode())
        except Exception as error:
            # The library raises bare Exception for anything it cannot parse.
            if type(error) is not Exception and not isinstance(error, UnicodeDecodeError):
                raise
            raise DataError(f"{self.path}: not a tokenizers JSON file ({error})") from error
        made.no_truncation()
        made.no_padding()
        return made


def _bytes_before(text: str, offsets: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Count the bytes of a text before each of its tokens, given where those lie in it."""
    sizes: Sequence[int] = range(len(text) + 1)
    if not text.isascii():
        sizes = [0, *accumulate(len(character.encode()) for character in text)]
    if not offsets:
        return (sizes[-1],)
    starts = [begin for begin, _ in offsets[1:]]
    ends = [end for _, end in offsets[:-1]]
    middle = [sizes[min(end, start)] for end, start in zip(ends, starts, strict=True)]
    return (0, *middle, sizes[-1])
