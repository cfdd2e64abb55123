"""What is wrong with a pipeline by its construction."""

from dataclasses import asdict, dataclass

__all__ = ["ConfigFinding"]


@dataclass(frozen=True, slots=True)
class ConfigFinding:
    """One construction that draws instances wrongly, or may.

    Attributes:
        id: letter of the construction in the catalogue, "" where it has none.
        name: the construction, as the replay audit calls it.
        severity: ``error`` where instances are repeated, skipped or leaked by it, else
            ``warning``.
        place: operation it is at.
        message: what it does to the data.
        fix: what to do.
    """

    id: str
    name: str
    severity: str
    place: str
    message: str
    fix: str

    @property
    def is_error(self) -> bool:
        """Whether the data is wrong for certain."""
        return self.severity == "error"

    def record(self) -> dict[str, str]:
        """Return the fields as JSON values."""
        return asdict(self)

    def text(self) -> str:
        """Return a few lines to read."""
        letter = f" ({self.id})" if self.id else ""
        return (
            f"{self.severity}: {self.name}{letter} at {self.place}\n"
            f"  {self.message}\n  fix: {self.fix}"
        )
