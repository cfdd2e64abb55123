import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from evalmon.errors import ConfigError
from evalmon.types import Yarn
from trainer.architecture import Execution, Olmo3Config

SMALL = Olmo3Config(
    vocab_size=50, width=16, layers=5, heads=4, kv_heads=2, head_dim=8, ffn=24, window=3
)


def test_every_fourth_layer_and_the_last_see_all() -> None:
    assert [SMALL.sees_all(i) for i in range(5)] == [False, False, False, True, True]


@pytest.mark.parametrize("yarn", [None, Yarn(8.0, 8192)])
def test_a_record_gives_the_config_back(yarn: Yarn | None) -> None:
    config = replace(SMALL, yarn=yarn)
    record = json.loads(json.dumps(asdict(config)))
    assert Olmo3Config.from_record(record, "run.json") == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"windw": 3}, "unknown field 'windw'; nearest is 'window'"),
        ({"width": 0}, "'width' is 0, expected int > 0"),
        ({"width": 16.0}, "'width' is 16.0, expected int > 0"),
        ({"width": True}, "'width' is True, expected int > 0"),
        ({"norm_eps": 0.0}, "'norm_eps' is 0.0, expected float > 0"),
        ({"kv_heads": 3}, "'kv_heads' 3 does not divide 'heads' 4"),
        ({"head_dim": 7}, "'head_dim' is 7, must be even"),
        ({"dtype": "float8"}, "'dtype' is 'float8'"),
        ({"yarn": {"faktor": 2}}, "'yarn': faktor 2 has no meaning here"),
        ({"yarn": "x"}, "'yarn' is 'x', expected a JSON object"),
        ({"yarn": {"factor": 0, "original_length": 4}}, "'yarn': factor is 0; expected"),
        ({"yarn": {"factor": 2.0}}, "'yarn': yarn without original_length"),
        ({"layers": 10**9}, "'layers' is 1000000000, expected int > 0, at most 10000"),
        ({"window": 2**31}, "'window' is 2147483648, expected int > 0, at most 2147483647"),
        ({"norm_eps": float("inf")}, "'norm_eps' is inf, expected float > 0 and finite"),
        ({"rope_theta": 1.0}, "'rope_theta' is 1.0, expected float > 1 and finite"),
    ],
)
def test_a_field_no_model_can_have_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"here: .*{message}"):
        Olmo3Config.from_record({**asdict(SMALL), **change}, "here")


def test_a_missing_field_is_named() -> None:
    record = asdict(SMALL)
    del record["norm_eps"]
    with pytest.raises(ConfigError, match=r"missing \['norm_eps'\]"):
        Olmo3Config.from_record(record, "here")


def test_an_unknown_policy_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"--remat 'ful': .* nearest is 'full'"):
        Execution(remat="ful")


@pytest.mark.parametrize(
    ("compute", "master"),
    [("float32", "float32"), ("bfloat16", "float32"), ("float64", "float64")],
)
def test_trained_parameters_are_at_least_float32(compute: str, master: str) -> None:
    assert replace(SMALL, dtype=compute).master_dtype == master
