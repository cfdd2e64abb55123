"""Rotary frequencies against numbers worked out by hand, and the forms settings come in."""

import math
from typing import Any

import numpy as np
import pytest

from evalmon.errors import ConfigError
from evalmon.types import (
    FULL,
    SLIDING,
    RopeParameters,
    Yarn,
    inverse_frequencies,
    layer_types,
    rope_parameters,
)

THETA = 500_000.0
SCALE = 1.2079441541679836  # 0.1 ln 8 + 1


def test_sliding_layers_turn_by_powers_of_theta_and_are_not_scaled():
    found, scale = inverse_frequencies(8, RopeParameters(THETA))
    assert scale == 1.0
    expected = [1.0, 0.037606030930863936, 0.001414213562373095, 5.318295896944987e-05]
    assert found.tolist() == pytest.approx(expected, rel=1e-12)


def test_full_layers_of_a_short_model_divide_all_but_the_fastest_pair():
    """Head of 8, factor 8 over 16 tokens.

    Pair 4 ln(16 / (2 pi 32)) / ln(theta) = -0.77 makes 32 turns, pair 0.28 one: the blend runs
    from pair 0 to pair 1, and pairs 1 to 3 are slow.
    """
    found, scale = inverse_frequencies(8, RopeParameters(THETA, Yarn(8.0, 16)))
    assert scale == pytest.approx(SCALE, rel=1e-15)
    expected = [1.0, 0.004700753866357992, 0.00017677669529663688, 6.647869871181234e-06]
    assert found.tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("pair", "slow"),
    [(0, 0), (18, 0), (19, 1 / 17), (26, 8 / 17), (34, 16 / 17), (35, 1), (63, 1)],
)
def test_full_layers_of_olmo_3_blend_from_pair_18_to_pair_35(pair: int, slow: float):
    """128 ln(8192 / (2 pi 32)) / (2 ln theta) = 18.08; with one turn 34.98."""
    found, scale = inverse_frequencies(128, RopeParameters(THETA, Yarn(8.0, 8192)))
    plain = math.exp(-2 * pair / 128 * math.log(THETA))
    assert found[pair] == pytest.approx(plain * (slow / 8 + 1 - slow), rel=1e-12)
    assert scale == pytest.approx(SCALE, rel=1e-15)


def test_an_attention_factor_that_is_given_is_kept():
    assert inverse_frequencies(8, RopeParameters(THETA, Yarn(8.0, 16, 32.0, 1.0, 1.5)))[1] == 1.5


YARN: dict[str, Any] = {
    "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192,
    "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": SCALE,
}  # fmt: skip
FORMS = {
    "legacy": {"rope_theta": THETA, "rope_scaling": YARN},
    "legacy, type": {
        "rope_theta": THETA,
        "rope_scaling": {"type": "yarn", **{k: v for k, v in YARN.items() if k != "rope_type"}},
    },
    "flat": {"rope_parameters": {"rope_theta": THETA, **YARN}},
    "flat beside theta": {"rope_theta": THETA, "rope_parameters": YARN},
    "by type": {
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": THETA},
            FULL: {"rope_theta": THETA, **YARN},
        }
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_scales_the_full_layers_alone(form: str):
    found = rope_parameters(FORMS[form], "config.json")
    assert found == {
        SLIDING: RopeParameters(THETA),
        FULL: RopeParameters(THETA, Yarn(8.0, 8192, 32.0, 1.0, SCALE)),
    }


@pytest.mark.parametrize("nothing", [{}, {"rope_scaling": None}, {"rope_parameters": None}])
def test_without_scaling_both_types_are_plain(nothing: dict[str, Any]):
    found = rope_parameters({"rope_theta": THETA, **nothing}, "config.json")
    assert found == {SLIDING: RopeParameters(THETA), FULL: RopeParameters(THETA)}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "sliding_attention: rope_theta is None; OLMo 3's is 500000, write it"),
        ({"rope_theta": 1}, "rope_theta is 1"),
        ({"rope_theta": THETA, "rope_scaling": {"rope_type": "linear"}}, "rope_type 'linear'"),
        ({"rope_theta": THETA, "rope_scaling": {"rope_type": "yarn"}}, "yarn without factor"),
        (
            {"rope_theta": THETA, "rope_scaling": {**YARN, "factor": "x"}},
            "full_attention: factor is 'x'; expected a number above 0",
        ),
        *(
            ({"rope_theta": THETA, "rope_scaling": {**YARN, name: value}}, f"{name} is ")
            for name, value in (
                *(("factor", value) for value in (0, -1, "8", [8], math.inf, math.nan, 10**400)),
                *(("original_max_position_embeddings", value) for value in (16.5, math.inf, True)),
                *(("attention_factor", value) for value in (0, -1.0, math.nan)),
                ("beta_fast", 0),
            )
        ),
        ({"rope_theta": THETA, "rope_scaling": {**YARN, "mscale": 2.0}}, "mscale 2.0 has no"),
        ({"rope_theta": THETA, "rope_scaling": {**YARN, "beta_slow": 64}}, "beta_fast > beta_slow"),
        ({"rope_theta": THETA, "rope_scaling": {**YARN, "type": "linear"}}, "but type 'linear'"),
        ({"rope_theta": THETA, "rope_scaling": {"factor": 8.0}}, "'default': factor 8.0 has no"),
        (
            {"rope_theta": THETA, "rope_scaling": {"partial_rotary_factor": 0.5}},
            "partial_rotary_factor is 0.5",
        ),
        *(
            ({"rope_theta": theta}, "rope_theta is ")
            for theta in (math.nan, math.inf, 10**400, True, "5e5", [1])
        ),
        *(
            ({"rope_theta": THETA, name: value}, f"{name} is .*, expected a JSON object")
            for name in ("rope_parameters", "rope_scaling")
            for value in ([1], "yarn", 8, True)
        ),
        *(
            (
                {"rope_parameters": {SLIDING: value, FULL: {"rope_theta": THETA}}},
                "sliding_attention is .*, expected a JSON object",
            )
            for value in ([1], "x", 8)
        ),
        (
            {"rope_parameters": {kind: {"rope_theta": THETA} for kind in (SLIDING, FULL, "other")}},
            "other .* has no meaning",
        ),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": THETA}}, "rope_theta is 10000.0"),
        (
            {"rope_parameters": {"rope_theta": THETA}, "rope_scaling": YARN, "rope_theta": THETA},
            "rope_parameters says .*, but rope_scaling",
        ),
        ({"rope_theta": THETA, "rope_scaling": {**YARN, "factor": 0.5}}, "yarn with factor 0.5"),
        ({"rope_theta": THETA, "rope_scaling": {**YARN, "truncate": False}}, "truncate false"),
        ({"rope_theta": THETA, "rope_scaling": {**YARN, "truncate": 0}}, "truncate false"),
        ({"rope_parameters": {FULL: {"rope_theta": THETA}}}, "lacks 'sliding_attention'"),
        (
            {"rope_parameters": {kind: {"rope_theta": THETA, **YARN} for kind in (SLIDING, FULL)}},
            "scales sliding_attention; OLMo 3 scales full_attention only",
        ),
        (
            {"rope_parameters": {SLIDING: {"rope_theta": 1e4}, FULL: {"rope_theta": THETA}}},
            "rope_theta is 10000.0 in sliding and 500000.0 in full",
        ),
    ],
)
def test_settings_olmo_3_cannot_have_are_refused(config: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says) as caught:
        rope_parameters(config, "config.json")
    assert str(caught.value).startswith("config.json")


def test_every_fourth_and_the_last_layer_are_full():
    kinds = layer_types({"num_hidden_layers": 6}, "config.json")
    assert kinds == [SLIDING, SLIDING, SLIDING, FULL, SLIDING, FULL]
    assert layer_types({"num_hidden_layers": 6, "layer_types": kinds}, "config.json") == kinds


def test_other_layer_types_are_refused_at_the_first_that_differs():
    """The published class's own default leaves the last of six layers sliding."""
    kinds = [SLIDING, SLIDING, SLIDING, FULL, SLIDING, SLIDING]
    with pytest.raises(ConfigError, match=r"layer_types\[5\] is 'sliding_attention'"):
        layer_types({"num_hidden_layers": 6, "layer_types": kinds}, "config.json")
    with pytest.raises(ConfigError, match="layer_types has 6 entries for 7 layers"):
        layer_types({"num_hidden_layers": 7, "layer_types": kinds}, "config.json")


@pytest.mark.parametrize("layers", [None, "4", 4.0, True, 0, -1, 10**9])
def test_a_number_of_layers_that_is_none_is_refused(layers: object):
    with pytest.raises(ConfigError, match=r"config.json: num_hidden_layers is "):
        layer_types({"num_hidden_layers": layers}, "config.json")


@pytest.mark.parametrize("given", ["full", {}, 4, [[1]] * 4])
def test_layer_types_that_are_no_list_are_refused(given: object):
    with pytest.raises(ConfigError, match=r"config.json: layer_types"):
        layer_types({"num_hidden_layers": 4, "layer_types": given}, "config.json")


def test_settings_written_in_both_forms_may_agree():
    both = {"rope_theta": THETA, "rope_scaling": YARN, "rope_parameters": YARN}
    assert rope_parameters(both, "config.json") == rope_parameters(FORMS["legacy"], "config.json")


def test_frequencies_are_float64_and_fall():
    found, _ = inverse_frequencies(128, RopeParameters(THETA, Yarn(8.0, 8192)))
    assert found.dtype == np.float64
    assert (np.diff(found) < 0).all()
