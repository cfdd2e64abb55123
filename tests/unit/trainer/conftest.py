"""Token folders and runs small enough for unit tests."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.unit.trainer.loop_runs import SETTINGS, compiled
from trainer import loop
from trainer.data.index import InstanceIndex, TokenFile, TokenFolder
from trainer.data.source import InstanceSource
from trainer.rundir import Run, create_run

MakeFolder = Callable[..., TokenFolder]


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Write a token folder with the given lengths of its files."""

    def make(*lengths: int, vocab_size: int = 64, name: str = "data") -> TokenFolder:
        path = tmp_path / name
        path.mkdir()
        (path / "tokenizer.json").write_text("{}")
        rng = np.random.default_rng(0)
        files: list[TokenFile] = []
        for number, length in enumerate(lengths):
            tokens = rng.integers(0, vocab_size, length).astype("<u4")
            part = path / f"s{number}-00000.npy"
            tokens.tofile(part)
            files.append(TokenFile.of(part, part.name, f"s{number}"))
        folder = TokenFolder(path, tuple(files), vocab_size, 0)
        folder.save()
        return folder

    return make


@pytest.fixture
def make_source(make_folder: MakeFolder) -> Callable[[int], InstanceSource]:
    """Write a folder of N instances of 4 tokens and open it."""

    def make(instances: int) -> InstanceSource:
        half = instances // 2
        folder = make_folder(half * 4 + 3, (instances - half) * 4 + 1)
        return InstanceSource(InstanceIndex.build(folder, 4))

    return make


@pytest.fixture
def quick_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out compiling the real update; end-to-end tests make it."""
    monkeypatch.setattr(loop, "compile_update", lambda *_: compiled)


@pytest.fixture
def run(make_folder: MakeFolder, tmp_path: Path) -> Run:
    """A run of six steps over 24 instances, not begun."""
    return create_run(tmp_path / "run", "run", SETTINGS, make_folder(8 * 24).path)
