"""Sources and options that nobody means: one clear error, and nothing left beside the source."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from evalmon.errors import CheckpointError, ConfigError, EvalmonError
from trainer.weights.convert import Options, convert

MakePublished = Callable[..., Path]


@pytest.mark.parametrize("rows", [10**9, 2**31])
def test_more_rows_than_fit_are_refused_before_anything_is_written(
    tmp_path: Path,
    make_published: MakePublished,
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
) -> None:
    source = make_published()
    usage = shutil.disk_usage(tmp_path)._replace(free=10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(EvalmonError, match=r"10{9} are free|--vocab-size 2147483648: expected"):
        convert(source, tmp_path / "new", Options(vocab_size=rows))
    assert list(tmp_path.iterdir()) == [source]


def test_a_weights_folder_of_another_adapter_is_refused(
    tmp_path: Path, make_published: MakePublished
) -> None:
    convert(make_published(), tmp_path / "weights", Options())
    file = tmp_path / "weights/model.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "adapter": "llama"}))
    with pytest.raises(ConfigError, match=r"model.json: adapter is 'llama', expected 'olmo3'"):
        convert(tmp_path / "weights", tmp_path / "back", Options())


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_numbers_that_json_does_not_have_are_refused(
    tmp_path: Path, make_published: MakePublished, number: str
) -> None:
    source = make_published()
    file = source / "config.json"
    file.write_text(file.read_text().rstrip().removesuffix("}") + f', "bos_token_id": {number}}}')
    with pytest.raises(CheckpointError, match=f"config.json: .*{number} is no finite number"):
        convert(source, tmp_path / "new", Options())
    assert list(tmp_path.iterdir()) == [source]


def test_odd_records_of_others_do_no_harm(tmp_path: Path, make_published: MakePublished) -> None:
    source = make_published(fields={"dtype": ["float32"]})
    record = source / ".cache/huggingface/download/config.json.metadata"
    record.parent.mkdir(parents=True)
    record.write_bytes(b"\xff\xfe")
    assert convert(source, tmp_path / "weights", Options())["source"]["revision"] is None
    file = tmp_path / "weights/provenance.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "earlier": 5}))
    assert len(convert(tmp_path / "weights", tmp_path / "back", Options())["earlier"]) == 1
