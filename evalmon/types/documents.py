"""A piece of text with a name, as holdouts and training text are made of."""

from dataclasses import dataclass

__all__ = ["Document"]


@dataclass(frozen=True, slots=True)
class Document:
    """One text, never cut across parts of a split.

    Attributes:
        id: name, unique within its collection.
        text: the text, at least one byte of UTF-8.
        source: label of where it comes from, "" where that is not known.
    """

    id: str
    text: str
    source: str = ""
