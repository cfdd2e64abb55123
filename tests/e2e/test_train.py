"""The trainer as users run it: real processes, killed, stopped and starved."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalmon.types import ID_LOG_MAGIC, ID_LOG_RECORD, RunDescription

pytestmark = pytest.mark.slow

STEPS = 60
WORDS = (
    "the",
    "a",
    "sea",
    "ship",
    "wind",
    "over",
    "under",
    "blue",
    "grey",
    "calls",
    "rises",
    "home",
)


def _trainer(*words: object, before: str = "") -> subprocess.Popen[str]:
    """Start ``python -m trainer``; ``before`` is Python to run first."""
    code = f"{before}\nimport sys; sys.argv[0] = 'trainer'\nfrom trainer.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )


def _finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    lines = [{"text": " ".join(rng.choice(WORDS, 400)), "source": f"s{n % 3}"} for n in range(40)]
    (root / "text.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = _finish(
        _trainer("tokenize", root / "text.jsonl", "--out", root / "data", "--vocab-size", 300)
    )
    assert made[0] == 0, made[2]
    return root / "data"


def _new(data: Path, out: Path) -> list[object]:
    return [
        *("train", "--preset", "olmo3-1m", "--data", data, "--out", out, "--steps", STEPS),
        *("--batch", 8, "--sequence-length", 16, "--hosts", 4, "--seed", 3),
        *("--checkpoint-every", 7, "--instances", STEPS * 8),
    ]


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    status, told, err = _finish(_trainer(*_new(data, out)))
    assert status == 0, err
    assert json.loads(told.splitlines()[-1]) == {
        "run": "run",
        "out": str(out),
        "reason": "completed",
    }
    return out


def _events(run: Path) -> list[dict[str, Any]]:
    whole = (run / "log.jsonl").read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def _losses(run: Path) -> dict[int, float]:
    return {e["step"]: e["train/ce_nats"] for e in _events(run) if e["event"] == "step"}


def _last_drawn(run: Path) -> dict[int, list[int]]:
    """Return the sorted instances of each step, of its last copy."""
    ids = np.frombuffer((run / "ids.bin").read_bytes()[len(ID_LOG_MAGIC) :], ID_LOG_RECORD)
    return {
        int(step): sorted(ids["instance"][ids["step"] == step][-8:].tolist())
        for step in np.unique(ids["step"])
    }


def test_a_run_learns_and_reads_each_instance_once(finished: Path) -> None:
    losses = _losses(finished)
    assert list(losses) == list(range(1, STEPS + 1))
    assert np.mean([losses[s] for s in range(STEPS - 9, STEPS + 1)]) < losses[1] - 0.5
    drawn = [i for instances in _last_drawn(finished).values() for i in instances]
    assert len(set(drawn)) == len(drawn) == STEPS * 8
    committed = sorted(e["step"] for e in _events(finished) if e["event"] == "checkpoint")
    assert committed == [*range(0, STEPS, 7), STEPS]
    assert sorted(int(p.name) for p in (finished / "checkpoints").iterdir()) == committed


def test_the_same_seed_gives_the_same_losses_to_the_last_bit(
    data: Path, finished: Path, tmp_path: Path
) -> None:
    assert _finish(_trainer(*_new(data, tmp_path / "run")))[0] == 0
    assert _losses(tmp_path / "run") == _losses(finished)
    one, other = (RunDescription.load(path).recipe for path in (finished, tmp_path / "run"))
    assert one == other


def test_a_run_killed_with_signal_9_ends_like_one_that_was_not(
    data: Path, finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = _trainer(*_new(data, run))
    while process.poll() is None:
        if (run / "log.jsonl").exists() and sum(e["event"] == "step" for e in _events(run)) > 20:
            process.kill()
            break
    _finish(process)
    assert _events(run)[-1]["event"] != "end"
    with (run / "ids.bin").open("ab") as stream:
        stream.write(b"torn record")
    status, _, err = _finish(_trainer("train", "--resume", "--out", run))
    assert status == 0, err
    starts = [e for e in _events(run) if e["event"] == "start"]
    assert [e["segment"] for e in starts] == [0, 1]
    assert starts[1]["resumed_from_step"] % 7 == 0
    assert starts[1]["resumed_from_step"] > 0
    assert _losses(run) == pytest.approx(_losses(finished), abs=1e-6)
    assert _last_drawn(run) == _last_drawn(finished)


def test_four_devices_learn_what_one_learns(data: Path, finished: Path, tmp_path: Path) -> None:
    devices = "import os; os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=4'"
    status, _, err = _finish(_trainer(*_new(data, tmp_path / "run"), before=devices))
    assert status == 0, err
    assert [_events(run)[0]["devices"] for run in (finished, tmp_path / "run")] == [1, 4]
    assert _last_drawn(tmp_path / "run") == _last_drawn(finished)
    # Sums over devices are rounded in another order, and the difference grows with the steps.
    assert _losses(tmp_path / "run") == pytest.approx(_losses(finished), abs=1e-2)
    assert _losses(tmp_path / "run")[1] == pytest.approx(_losses(finished)[1], abs=1e-5)


def test_a_stop_file_ends_a_run_cleanly(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "STOP").touch()
    status, told, err = _finish(_trainer(*_new(data, run)))
    assert status == 0, err
    assert json.loads(told.splitlines()[-1])["reason"] == "stopped"
    last = _events(run)[-1]
    assert (last["event"], last["reason"], last["step"]) == ("end", "stopped", 1)
    assert (run / "checkpoints/1").is_dir()


def test_an_exploding_run_ends_with_1_and_keeps_what_it_had(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    status, _, err = _finish(_trainer(*_new(data, run), "--learning-rate", 1e30))
    assert status == 1
    assert err.startswith("error: step ")
    assert "Traceback" not in err
    rows = [e for e in _events(run) if e["event"] == "step"]
    assert "train/ce_nats" in rows[-1]["nonfinite"]
    assert rows[-1]["train/ce_nats"] is None
    assert _events(run)[-1]["reason"] == "failed"
    assert (run / "checkpoints/0").is_dir()


def test_a_full_disk_ends_a_run_with_an_error_and_not_with_a_stale_success(
    data: Path, tmp_path: Path
) -> None:
    # No file may grow beyond 200 kB: the log fits, an array of the checkpoint does not.
    limit = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))"
    )
    run = tmp_path / "run"
    words = ["olmo3-14m" if word == "olmo3-1m" else word for word in _new(data, run)]
    status, _, err = _finish(_trainer(*words, before=limit))
    assert status != 0
    # The storage library's own threads may print beside it.
    ours = f"error: {run.resolve() / 'checkpoints/0'}: checkpoint could not be"
    (last,) = [line for line in err.splitlines() if line.startswith(ours)]
    assert "last durable step is None" in last
    assert _events(run)[-1]["reason"] == "failed"
    assert not [e for e in _events(run) if e["event"] == "checkpoint"]


def test_a_run_directory_in_use_is_refused(data: Path, finished: Path) -> None:
    status, _, err = _finish(_trainer(*_new(data, finished)))
    assert status == 2
    assert "already holds a run; go on with --resume" in err
