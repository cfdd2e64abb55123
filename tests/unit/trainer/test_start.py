import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from evalmon.errors import CheckpointError
from evalmon.types import ModelDescription
from trainer.presets import preset
from trainer.start import start_fingerprint, stored_dtypes

CONFIG = preset("tiny", 128)


def _weights(path: Path, digest: str) -> Path:
    (path / "params").mkdir(parents=True)
    ModelDescription(path / "model.json", "olmo3", asdict(CONFIG), 128, 64).save()
    (path / "provenance.json").write_text(json.dumps({"sha256": digest}))
    return path


def _checkpoint(path: Path, digest: str) -> Path:
    (path / "params").mkdir(parents=True)
    (path / "progress").mkdir()
    (path / "progress/metadata").write_text(json.dumps({"params_fingerprint": digest}))
    return path


@pytest.mark.parametrize("make", [_weights, _checkpoint])
def test_equal_weights_have_one_fingerprint_wherever_they_are(
    make: Callable[[Path, str], Path], tmp_path: Path
) -> None:
    one, same, other = (make(tmp_path / name, name[0]) for name in ("a1", "a2", "b"))
    assert start_fingerprint(one, CONFIG) == start_fingerprint(same, CONFIG)
    assert start_fingerprint(one, CONFIG) != start_fingerprint(other, CONFIG)


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_what_holds_no_weights_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="give RUN/checkpoints/STEP, or what"):
        start_fingerprint(tmp_path / name, CONFIG)


@pytest.mark.parametrize(
    ("change", "tensor"),
    [
        ({"width": 256}, "embed_tokens.embedding"),
        ({"kv_heads": 4}, "layers.0.self_attn.k_norm.scale"),
        ({"vocab_size": 256}, "embed_tokens.embedding"),
        ({"layers": 8}, "layers.4.mlp.down_proj.kernel"),
    ],
)
def test_the_first_tensor_that_does_not_fit_is_named(
    change: dict[str, int], tensor: str, tmp_path: Path
) -> None:
    weights = _weights(tmp_path / "weights", "a")
    with pytest.raises(CheckpointError, match=rf"weights: {tensor} has shape"):
        start_fingerprint(weights, replace(CONFIG, **change))


def test_other_heads_in_tensors_of_the_same_shapes_are_refused(tmp_path: Path) -> None:
    weights = _weights(tmp_path / "weights", "a")
    change = {
        "heads": CONFIG.heads // 2, "kv_heads": CONFIG.kv_heads // 2,
        "head_dim": CONFIG.head_dim * 2,
    }  # fmt: skip
    with pytest.raises(CheckpointError, match=rf"weights: its model has heads {CONFIG.heads}, but"):
        start_fingerprint(weights, replace(CONFIG, **change))


def test_another_compute_dtype_fits(tmp_path: Path) -> None:
    weights = _weights(tmp_path / "weights", "a")
    assert start_fingerprint(weights, replace(CONFIG, dtype="bfloat16"))


def test_the_dtypes_of_a_weights_folder_are_those_its_provenance_records(tmp_path: Path) -> None:
    weights = _weights(tmp_path / "weights", "a")
    with pytest.raises(CheckpointError, match=r"provenance.json: says no 'dtype_after'"):
        stored_dtypes(weights)
    (weights / "provenance.json").write_text(json.dumps({"dtype_after": {"bfloat16": 47}}))
    assert stored_dtypes(weights) == ["bfloat16"]
    assert stored_dtypes(_checkpoint(tmp_path / "checkpoint", "a")) is None
