"""One run on one device, on eight, on several processes: the same losses; and moved between them.

Devices are simulated by XLA on the CPU. Runs share processes where they can, because each
process has to start JAX.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon import checkpoints
from evalmon.types import RunDescription

pytestmark = pytest.mark.slow

STEPS, HALF = 20, 10
MESHES = ("data=8", "fsdp=8", "tensor=2,data=4", "data=2,fsdp=2,tensor=2")
RUNS = [(mesh, scan) for mesh in MESHES for scan in (False, True)]

COMMANDS = """
import json, sys
from trainer import cli
ends = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["trainer", *words]
    try:
        cli.main()
        ends.append(0)
    except SystemExit as end:
        ends.append(end.code)
print(json.dumps(ends))
"""
"""Several commands of the trainer in one process, and how each ended."""

WRONG = [
    ("data=3", "--mesh: data x fsdp = 3 does not divide the (micro-)batch of 8; the nearest"),
    ("tensor=8", "--mesh: tensor=8 does not divide the model's heads 4; the nearest"),
    ("tensor=4", "--mesh: tensor=4 does not divide the model's kv_heads 2; the nearest"),
    ("data=8,fsdp=2", "--mesh: data x fsdp = 16 does not divide the (micro-)batch of 8"),
    ("data=8,tensor=2", "--mesh data=8,fsdp=1,tensor=2: needs 16 devices, but there are 8"),
]


def _environment(devices: int) -> dict[str, str]:
    flags = (
        f"--xla_force_host_platform_device_count={devices}",
        "--xla_backend_optimization_level=0",
        # On a busy machine simulated devices wait long for each other.
        "--xla_cpu_collective_call_terminate_timeout_seconds=300",
    )
    return {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(flags)}


def _run(devices: int, commands: Iterable[Sequence[object]]) -> str:
    """Run commands in one process; return what they said on standard error."""
    words = [[str(word) for word in command] for command in commands]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(words)],
        capture_output=True,
        text=True,
        env=_environment(devices),
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return f"{done.stdout.splitlines()[-1]}\n{done.stderr}"


def _together(processes: int, devices: int, *words: object) -> list[tuple[int, str]]:
    """Run ``python -m trainer train`` as several processes; return how each ended and said."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    common = ["--coordinator", f"localhost:{port}", "--processes", str(processes)]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "trainer", *map(str, words), *common, "--process-id", str(i)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(devices),
        )
        for i in range(processes)
    ]
    said = [process.communicate(timeout=600)[1] for process in started]
    return [(process.returncode, err) for process, err in zip(started, said, strict=True)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("meshes")


@pytest.fixture(scope="module")
def data(root: Path) -> Path:
    rng = np.random.default_rng(0)
    words = [f"w{n}" for n in range(30)]
    lines = [{"text": " ".join(rng.choice(words, 300)), "source": "s"} for _ in range(40)]
    (root / "text.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _run(1, [["tokenize", root / "text.jsonl", "--out", root / "data", "--vocab-size", 300]])
    return root / "data"


def _new(data: Path, out: Path, *more: object) -> list[object]:
    return [
        *("train", "--preset", "tiny", "--data", data, "--out", out, "--steps", STEPS),
        *("--batch", 8, "--sequence-length", 48, "--hosts", 2, "--seed", 3),
        *("--checkpoint-every", HALF, "--learning-rate", 1e-3, *more),
    ]


def _place(root: Path, mesh: str, *, scan: bool) -> Path:
    return root / f"{mesh}{'-scanned' if scan else ''}"


def _halfway(run: Path, out: Path) -> Path:
    """Copy a finished run as if it had been killed after its checkpoint at half."""
    shutil.copytree(run, out)
    shutil.rmtree(out / "checkpoints" / str(STEPS))
    log = out / "log.jsonl"
    lines = [line for line in log.read_text().splitlines() if json.loads(line)["event"] != "end"]
    log.write_text("\n".join(lines) + "\n")
    return out


@pytest.fixture(scope="module")
def trained(root: Path, data: Path) -> dict[str, Any]:
    """Make all runs, two processes at a time; return what was said, by name of the run."""
    said: dict[str, Future[Any]] = {}

    def train(mesh: str, scan: bool) -> list[object]:
        flags = ("--scan-layers",) if scan else ()
        return _new(data, _place(root, mesh, scan=scan), "--mesh", mesh, *flags)

    with ThreadPoolExecutor(2) as pool:
        wrong = [_new(data, root / "wrong", "--mesh", mesh) for mesh, _ in WRONG]
        halves = ([train(*run) for run in RUNS[::2]], [train(*run) for run in RUNS[1::2]])
        eight = [pool.submit(_run, 8, half + wrong) for half in halves]
        said["wrong"] = eight[0]
        said["one"] = pool.submit(_run, 1, [_new(data, root / "one")])
        for future in eight:
            ends = json.loads(future.result().splitlines()[0])
            assert ends == [0] * len(halves[0]) + [2] * len(WRONG), future.result()
        saved = _place(root, "fsdp=8", scan=False)
        for name, devices, more in (
            ("on 1", 1, ("--mesh", "data=1", "--scan-layers")),
            ("on 2", 2, ("--mesh", "fsdp=2")),
            ("on 16", 16, ("--mesh", "data=4,fsdp=2,tensor=2")),
        ):
            words = ["train", "--resume", "--out", _halfway(saved, root / name), *more]
            said[name] = pool.submit(_run, devices, [words])
    with ThreadPoolExecutor(1) as pool:
        for mesh, flags in (("data=2,fsdp=2,tensor=2", ()), ("fsdp=8", ("--scan-layers",))):
            words = _new(data, root / f"two {mesh}", "--mesh", mesh, *flags)
            said[f"two {mesh}"] = pool.submit(_together, 2, 4, *words)
    return {name: future.result() for name, future in said.items()}


def _events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def _losses(run: Path) -> dict[int, float]:
    return {e["step"]: e["train/ce_nats"] for e in _events(run) if e["event"] == "step"}


def test_the_run_on_one_device_learns(root: Path, trained: dict[str, Any]) -> None:
    losses = _losses(root / "one")
    assert list(losses) == list(range(1, STEPS + 1))
    assert losses[STEPS] < losses[1] - 0.5


@pytest.mark.parametrize(("mesh", "scan"), RUNS)
def test_eight_devices_learn_what_one_learns(
    root: Path, trained: dict[str, Any], mesh: str, scan: bool
) -> None:
    run = _place(root, mesh, scan=scan)
    assert _events(run)[0]["devices"] == 8
    assert _losses(run) == pytest.approx(_losses(root / "one"), abs=1e-5)


@pytest.mark.parametrize("mesh", ["data=2,fsdp=2,tensor=2", "fsdp=8"])
def test_two_processes_learn_and_log_what_one_does(
    root: Path, trained: dict[str, Any], mesh: str
) -> None:
    for status, err in trained[f"two {mesh}"]:
        assert status == 0, err
    run, one = root / f"two {mesh}", root / "one"
    assert _losses(run) == pytest.approx(_losses(one), abs=1e-5)
    assert (run / "ids.bin").read_bytes() == (one / "ids.bin").read_bytes()
    for event in ("start", "step", "checkpoint", "end"):
        logged = [[e.get("step") for e in _events(r) if e["event"] == event] for r in (run, one)]
        assert logged[0] == logged[1]


@pytest.mark.parametrize("devices", [1, 2, 16])
def test_a_run_saved_on_eight_devices_goes_on_with_more_or_fewer(
    root: Path, trained: dict[str, Any], devices: int
) -> None:
    run = root / f"on {devices}"
    start = [e for e in _events(run) if e["event"] == "start"][-1]
    assert (start["resumed_from_step"], start["devices"]) == (HALF, devices), trained[run.name]
    assert [e["step"] for e in _events(run) if e["event"] == "step"] == [
        *range(1, STEPS + 1),
        *range(HALF + 1, STEPS + 1),
    ]
    assert _losses(run) == pytest.approx(_losses(root / "one"), abs=1e-5)


def test_a_checkpoint_is_the_same_whatever_it_was_saved_on(
    root: Path, trained: dict[str, Any]
) -> None:
    runs = [root / "one", root / "two fsdp=8", *(_place(root, m, scan=s) for m, s in RUNS)]
    records = {(run / "checkpoints/0/progress/metadata").read_text() for run in runs}
    assert len(records) == 1
    assert "params_fingerprint" in records.pop()


@pytest.mark.parametrize("name", ["data=2,fsdp=2,tensor=2-scanned", "two fsdp=8"])
def test_its_parameters_are_read_here_without_its_devices(
    root: Path, trained: dict[str, Any], name: str
) -> None:
    *_, last = checkpoints.find(RunDescription.load(root / name)).committed
    assert last.step == STEPS
    tree = checkpoints.restore(last).tree
    kernel = tree["layers"]["3"]["mlp"]["up_proj"]["kernel"]
    assert isinstance(kernel, np.ndarray)
    assert (kernel.shape, kernel.dtype) == ((128, 512), np.float32)


def test_a_mesh_that_does_not_fit_is_refused_and_nothing_is_written(
    root: Path, trained: dict[str, Any]
) -> None:
    errors = [line for line in trained["wrong"].splitlines() if line.startswith("error: ")]
    for (_, message), line in zip(WRONG, errors, strict=True):
        assert line.startswith(f"error: {message}")
    assert not (root / "wrong").exists()


def test_processes_that_cannot_share_a_run_all_end_with_2(data: Path, root: Path) -> None:
    first, second = _together(2, 1, *_new(data, root / "unshared", "--hosts", 3, "--batch", 6))
    assert (first[0], second[0]) == (2, 2)
    assert "--hosts 3: must be a multiple of --processes 2" in first[1]
    assert "process 0 could not begin; its own message says why" in second[1]
    assert not (root / "unshared").exists()
