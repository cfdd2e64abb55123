"""The writers with the real libraries, where these are installed."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from evalmon.errors import ConfigError, WriteError
from trainer import writers
from trainer.writers import TensorBoard, WeightsAndBiases, Writer, open_writers, require_installed

VALUES = {"train/ce_nats": 2.5, "optim/lr": 1e-3}


def _write(writer: Writer, *steps: int) -> None:
    writer.start(steps[0] - 1)
    for step in steps:
        writer.write(step, step * 32, {**VALUES, "train/ce_nats": 1.0 / step})
    writer.close()


def _events(content: bytes) -> list[Any]:
    """Read records of TensorFlow's form: length, checksum, event, checksum."""
    library: Any = importlib.import_module("tensorboardX.proto.event_pb2")
    events: list[Any] = []
    at = 0
    while at < len(content):
        size = int.from_bytes(content[at : at + 8], "little")
        events.append(library.Event.FromString(content[at + 12 : at + 12 + size]))
        at += 12 + size + 4
    return events


def _starts(content: bytes) -> list[int]:
    return [e.step for e in _events(content) if e.WhichOneof("what") == "session_log"]


def test_tensorboard_gets_our_names_and_steps(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    _write(TensorBoard(tmp_path / "events"), 1, 2)
    (file,) = (tmp_path / "events").iterdir()
    scalars: dict[str, list[tuple[int, float]]] = {}
    for event in _events(file.read_bytes()):
        for value in event.summary.value:
            scalars.setdefault(value.tag, []).append((event.step, value.simple_value))
    assert set(scalars) == {"train/ce_nats", "optim/lr", "tokens"}
    assert scalars["train/ce_nats"] == [(1, 1.0), (2, 0.5)]
    assert scalars["tokens"] == [(1, 32.0), (2, 64.0)]


def test_a_resumed_run_hides_the_values_it_abandoned(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    _write(TensorBoard(tmp_path / "events"), 1, 2, 3)
    _write(TensorBoard(tmp_path / "events"), 2, 3)
    content = b"".join(file.read_bytes() for file in sorted((tmp_path / "events").iterdir()))
    # TensorBoard drops what is at or after the step of a start mark.
    assert _starts(content) == [1, 2]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # W&B warns about its own dependencies
def test_weights_and_biases_writes_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    wandb: Any = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    _write(WeightsAndBiases("project", tmp_path, "mine", {"steps": 3}), 1, 2, 2, 3)
    wandb.teardown()  # waits for its writing process, as the end of ours does
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    content = file.read_bytes()
    assert content.count(b"train/ce_nats") >= 4
    assert b"optim/lr" in content
    assert b"mine" in content
    # Standard output is for our own JSON line.
    assert capfd.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_library_that_refuses_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb: Any = pytest.importorskip("wandb")

    class Refusing:
        def define_metric(self, *_: Any, **__: Any) -> None: ...

        def log(self, _: Any) -> None:
            raise wandb.Error("gone")

    def refuse(**_: Any) -> Any:
        raise wandb.Error("no key")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(ConfigError, match=r"--wandb p: .*no key.*WANDB_MODE=offline"):
        WeightsAndBiases("p", tmp_path, "mine", {})
    monkeypatch.setattr(wandb, "init", lambda **_: Refusing())
    with pytest.raises(WriteError, match=r"gone.*go on with --resume"):
        WeightsAndBiases("p", tmp_path, "mine", {}).write(1, 32, VALUES)


def test_a_missing_package_is_refused_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writers, "find_spec", lambda _: None)
    require_installed(tensorboard=False, wandb=False)
    with pytest.raises(ConfigError, match=r"--tensorboard: needs tensorboardX; .*pip install"):
        require_installed(tensorboard=True, wandb=False)
    with pytest.raises(ConfigError, match=r"--wandb: needs wandb; .*'evalmon\[writers\]'"):
        require_installed(tensorboard=False, wandb=True)


def test_only_what_was_asked_for_is_opened(tmp_path: Path) -> None:
    assert open_writers(tmp_path, "mine", {}, None, None) == []
    pytest.importorskip("tensorboardX")
    (writer,) = open_writers(tmp_path, "mine", {}, tmp_path / "events", None)
    assert isinstance(writer, TensorBoard)
    writer.close()
    assert not (tmp_path / "events").exists()
