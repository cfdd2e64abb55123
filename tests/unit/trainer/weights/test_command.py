import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer import cli

MakePublished = Callable[..., Path]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run ``convert`` and return its exit status."""

    def run(*words: object) -> int:
        monkeypatch.setattr(sys, "argv", ["trainer", "convert", *map(str, words)])
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    return run


def test_facts_are_the_last_line_and_progress_is_on_standard_error(
    call: Callable[..., int], tmp_path: Path, make_published: MakePublished,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    source, result = make_published(), tmp_path / "weights"
    assert call(source, result, "--dtype", "bfloat16", "--vocab-size", 16, "--json") == 0
    told = capsys.readouterr()
    facts = json.loads(told.out.splitlines()[-1])
    assert facts == json.loads((result / "provenance.json").read_text())
    assert facts["dtype"] == "float32 -> bfloat16"
    assert facts["options"]["vocab_size"] == 16
    for phase in ("hash", "write", "check"):
        assert f"{phase}: 100%" in told.err


def test_a_summary_says_what_changed(
    call: Callable[..., int], tmp_path: Path, make_published: MakePublished,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    source = make_published(fields={"eos_token_id": 50279})
    assert call(source, tmp_path / "mt", "--to", "maxtext", "--no-scan", "--vocab-size", 10) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (f"{source} (huggingface) -> {tmp_path / 'mt'} (maxtext, layers apart)")
    assert "dtype: float32, kept" in lines
    assert "vocabulary: 12 -> 10 rows, 2 rows cut off" in lines
    assert [line for line in lines if line.startswith("warning: ") and "50279" in line]


def test_bad_input_is_one_line_and_exit_2(
    call: Callable[..., int], tmp_path: Path, make_published: MakePublished,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    source = make_published(without=("lm_head.weight",))
    assert call(source, tmp_path / "out") == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert error[0].startswith("error: ")
    assert "missing lm_head.weight" in error[0]
    assert not (tmp_path / "out").exists()
    assert call(source, tmp_path / "out", "--dtype", "fp16") == 2
    assert "nearest is 'float16'" in capsys.readouterr().err
