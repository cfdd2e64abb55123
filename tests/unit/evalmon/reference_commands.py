"""Runs `evalmon reference`, and writes the tables that it is given."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from evalmon import reference_cli
from evalmon.errors import EvalmonError

__all__ = ["call", "record", "refused", "rows", "table"]

C4 = "eval/lm/c4_en-validation/ce_nats"


def call(*arguments: str | Path) -> Result:
    """Run the command as the group that it is."""
    return CliRunner().invoke(reference_cli.reference, [str(item) for item in arguments])


def record(*arguments: str | Path, code: int = 0) -> Any:
    """Run a command with --json and return the one object on standard output."""
    result = call(*arguments, "--json")
    assert result.exit_code == code, (result.output, result.exception)
    (line,) = result.stdout.strip().splitlines()
    return json.loads(line)


def refused(kind: type[EvalmonError], *arguments: str | Path) -> str:
    """Run a command that has to be refused and return what it says."""
    result = call(*arguments)
    assert isinstance(result.exception, kind), (result.output, result.exception)
    assert result.exception.exit_code == 2
    return str(result.exception)


def table(folder: Path, rows: str, header: str = "run,metric,step,tokens,value") -> Path:
    path = folder / "table.csv"
    path.write_text(f"{header}\n{rows}")
    return path


def rows(run: str = "a", metric: str = C4, points: int = 12) -> str:
    return "".join(
        f"{run},{metric},{n * 100},{n * 10**9},{3 + 1 / n!r}\n" for n in range(1, points + 1)
    )
