import statistics

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evalmon.errors import ConfigError
from trainer.skip_step import SkipRule, SpikeHistory, fresh_history, judge, skip_rule


class Oracle:
    """OLMo-core's rule with Python lists: 129 values, the present one among them."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.norms: list[float] = []

    def skips(self, loss: float, norm: float) -> bool:
        spikes: list[bool] = []
        for values, value in ((self.losses, loss), (self.norms, norm)):
            values.append(value)
            if len(values) > 129:
                values.pop(0)
            before = values[:-1]
            spikes.append(
                len(values) >= 64
                and value - statistics.fmean(before) > 6 * statistics.stdev(before)
            )
        return any(spikes)


_judge = jax.jit(judge)


def _run(losses: list[float], norms: list[float]) -> list[bool]:
    history, skipped = fresh_history(np.float32), list[bool]()
    for loss, norm in zip(losses, norms, strict=True):
        skip, history = _judge(history, jnp.float32(loss), jnp.float32(norm))
        skipped.append(bool(skip))
    return skipped


@pytest.mark.parametrize("seed", range(4))
def test_it_decides_like_lists_do_over_hundreds_of_steps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    losses = (3 + 0.1 * rng.standard_normal(500)).astype(np.float32)
    norms = (0.5 + 0.02 * rng.standard_normal(500)).astype(np.float32)
    for values, width in ((losses, 0.1), (norms, 0.02)):
        places = rng.choice(500, 12, replace=False)
        values[places] += width * rng.uniform(4, 20, 12) * rng.choice([1, -1], 12)
    oracle = Oracle()
    expected = [oracle.skips(float(a), float(b)) for a, b in zip(losses, norms, strict=True)]
    assert _run(losses.tolist(), norms.tolist()) == expected
    assert 2 <= sum(expected) <= 24


def _varied(count: int) -> list[float]:
    return [2.0 + 0.01 * (i % 7) for i in range(count)]


@pytest.mark.parametrize(("before", "skipped"), [(62, False), (63, True), (200, True)])
def test_nothing_is_judged_before_the_64th_value(before: int, *, skipped: bool) -> None:
    values = [*_varied(before), 9.0]
    assert _run(values, _varied(before + 1))[-1] is skipped
    assert _run(_varied(before + 1), values)[-1] is skipped


def test_only_a_rise_is_a_spike() -> None:
    values = [*_varied(100), -50.0]
    assert not any(_run(values, values))


def test_six_deviations_are_not_yet_a_spike() -> None:
    # A constant history has a deviation of 0: the same value is no spike, any more is.
    flat = [2.0] * 100
    assert not any(_run(flat, flat))
    assert _run([*flat, float(np.nextafter(np.float32(2), np.float32(3)))], [*flat, 2.0])[-1]
    # The deviation is the unbiased one: 64 values of 0 and 64 of 2 give sqrt(128 / 127).
    waves = [0.0, 2.0] * 64
    beyond = 1 + 6 * (128 / 127) ** 0.5
    assert not _run([*waves, beyond - 1e-5], [*waves, 1.0])[-1]
    assert _run([*waves, beyond + 1e-5], [*waves, 1.0])[-1]


def test_the_value_is_not_compared_with_itself() -> None:
    # Were it among them, a lone spike of 64 values could never exceed 6 deviations by much.
    values = [*_varied(63), 2.2]
    assert _run(values, _varied(64))[-1]
    everything = np.array(values)
    assert 2.2 - everything.mean() < 6 * everything.std(ddof=1)


def test_only_the_last_128_values_count() -> None:
    calm = [2.0 + 0.001 * (i % 5) for i in range(128)]
    wild = [50.0 if i % 2 else 2.0 for i in range(40)]
    assert not _run([*wild, *calm[:-1], 3.0], [1.0] * 168)[-1]
    assert _run([*wild, *calm, 3.0], [1.0] * 169)[-1]


def test_a_skipped_value_joins_the_history_so_that_a_new_level_is_accepted() -> None:
    values = [*_varied(100), *[4.0] * 20]
    skipped = _run(values, _varied(120))
    assert skipped[100]
    assert not skipped[-1]
    oracle = Oracle()
    assert skipped == [
        oracle.skips(float(np.float32(a)), float(np.float32(b)))
        for a, b in zip(values, _varied(120), strict=True)
    ]


def test_a_loss_that_is_no_number_is_no_spike() -> None:
    assert not any(_run([*_varied(100), float("nan")], _varied(101)))


def test_the_history_is_arrays_of_fixed_shape() -> None:
    history = fresh_history(np.float64)
    assert isinstance(history, SpikeHistory)
    assert [np.shape(leaf) for leaf in history] == [(128,), (128,), ()]
    assert history.losses.dtype == np.float64


def test_rules_are_found_by_name() -> None:
    assert skip_rule("none") is None
    assert skip_rule("olmo_core") == SkipRule(z_in_loss=False, clipped_norm=False)
    assert skip_rule("maxtext") == SkipRule(z_in_loss=True, clipped_norm=True)
    with pytest.raises(ConfigError, match=r"--skip-step 'olmo': .*nearest is 'olmo_core'"):
        skip_rule("olmo")
