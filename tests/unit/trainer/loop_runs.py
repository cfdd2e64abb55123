"""Runs of the training loop with a stand-in for its update, and what they wrote."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evalmon.types import ID_LOG_MAGIC, ID_LOG_RECORD
from trainer.config import TrainSettings
from trainer.rundir import Run
from trainer.update import Measures, OptimizerState, TrainState, Update

SETTINGS = TrainSettings(
    preset="olmo3-1m",
    steps=6,
    batch_instances=4,
    sequence_length=8,
    hosts=2,
    loader="batch_strided",
    seed=1,
    checkpoint_every=2,
    learning_rate=0.01,
    warmup_steps=1,
)


def stand_in(state: TrainState, tokens: jax.Array, step: jax.Array) -> tuple[TrainState, Measures]:
    """Change the state by the batch, in place of an update that takes seconds to compile."""
    seen = jnp.mean(tokens.astype(jnp.float32))
    params = jax.tree.map(lambda p: p * 0.9 + seen * 1e-3, state.params)
    ce = jnp.mean(params["norm"]["scale"])
    adam, history = state.optimizer
    adam = adam._replace(count=adam.count + 1)
    history = history._replace(seen=history.seen + 1)
    after = TrainState(params, OptimizerState(adam, history))
    two, one = ce * 0 + 2.0, ce * 0 + 1.0
    return after, Measures(ce, ce * 0 + 1e-4, two, one, step == 3, jnp.int32(4))


compiled: Update = jax.jit(stand_in, donate_argnums=0)


def events_of(run: Run) -> list[dict[str, Any]]:
    """Return every line of its run log."""
    lines = (run.description.path / "log.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def loss_of(run: Run) -> dict[int, float]:
    """Return step -> train loss."""
    return {e["step"]: e["train/ce_nats"] for e in events_of(run) if e["event"] == "step"}


def ids_of(run: Run) -> np.ndarray:
    """Return [n] the records of its id log."""
    content = (run.description.path / "ids.bin").read_bytes()
    return np.frombuffer(content[len(ID_LOG_MAGIC) :], ID_LOG_RECORD)
