"""Training speed beside the machine and beside torch: ``python -m tests.benchmarks.train``.

One model (4 layers, width 512, vocabulary 8,192, length 512, batch 8, float32) is trained by
the trainer's own update and by torch (transformers' model, scaled-dot-product attention,
fused AdamW, the same clipping and z-loss). Steps of the two and a large float32 matrix product
take turns in one process, and the fastest of each counts, because a shared machine only ever
slows them down.

- ``fraction_of_peak``: model FLOPs of a step (attention counted over the pairs it sees) a
  second, over the rate of the matrix product.
- ``ratio_torch``: seconds of torch's step over seconds of ours.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainer.architecture import Execution, Olmo3Config
from trainer.flops import training_flops_per_token
from trainer.objective import Objective
from trainer.optimizer import AdamW
from trainer.schedule import CosineWithWarmup
from trainer.update import UpdateRule, fresh_state, make_update

CONFIG = Olmo3Config(8192, width=512, layers=4, heads=8, kv_heads=8, head_dim=64, ffn=2048)
LENGTH, BATCH, MATRIX = 512, 8, 2048


def main() -> None:
    """Measure, print a table on standard error and one JSON object last."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=12, help="turns of each (default 12)")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    options = parser.parse_args()
    tokens = np.random.default_rng(0).integers(0, CONFIG.vocab_size, (BATCH, LENGTH))
    works = {"matrix": _matrix(), "ours": _ours(tokens), "torch": _torch(tokens)}
    for work in works.values():
        work()
    best = dict.fromkeys(works, float("inf"))
    for _ in range(options.rounds):
        for name, work in works.items():
            begun = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - begun)
    flops = training_flops_per_token(CONFIG, LENGTH) * BATCH * LENGTH
    peak = 2.0 * MATRIX**3 / best["matrix"]
    record = {
        "fraction_of_peak": round(flops / best["ours"] / peak, 4),
        "ratio_torch": round(best["torch"] / best["ours"], 4),
        "fraction_of_peak_torch": round(flops / best["torch"] / peak, 4),
        "step_seconds": round(best["ours"], 4),
        "step_seconds_torch": round(best["torch"], 4),
        "flops_per_step": flops,
        "flops_per_second": flops / best["ours"],
        "peak_flops_per_second": peak,
        "tokens_per_second": round(BATCH * LENGTH / best["ours"], 1),
        "rounds": options.rounds,
    }
    if not options.json:
        for name, value in record.items():
            print(f"{name:<24} {value:,.4g}", file=sys.stderr)
    print(json.dumps(record))


def _matrix() -> Callable[[], Any]:
    """Return a large float32 matrix product."""
    matrix, product = jnp.ones((MATRIX, MATRIX), jnp.float32), jax.jit(jnp.matmul)
    return lambda: product(matrix, matrix).block_until_ready()


def _ours(tokens: np.ndarray) -> Callable[[], Any]:
    """Return a step of the trainer."""
    rule = UpdateRule(CosineWithWarmup(1e-4, 0, 1000), AdamW(), Objective())
    execution = Execution()
    update = jax.jit(make_update(CONFIG, execution, rule), donate_argnums=0)
    box = [jax.tree.map(jnp.asarray, fresh_state(CONFIG, execution, 0))]
    batch = jnp.asarray(tokens, jnp.int32)

    def step() -> None:
        box[0], measures = update(box[0], batch, np.int32(1))
        jax.block_until_ready((box[0], measures))

    return step


def _torch(tokens: np.ndarray) -> Callable[[], Any]:
    """Return a step of torch."""
    import torch
    from transformers import Olmo3Config as PeerConfig
    from transformers import Olmo3ForCausalLM

    rope = {"rope_type": "default", "rope_theta": CONFIG.rope_theta}
    kinds = ["full_attention" if CONFIG.sees_all(i) else "sliding_attention" for i in range(4)]
    model = Olmo3ForCausalLM(
        PeerConfig(
            vocab_size=CONFIG.vocab_size,
            hidden_size=CONFIG.width,
            intermediate_size=CONFIG.ffn,
            num_hidden_layers=CONFIG.layers,
            num_attention_heads=CONFIG.heads,
            num_key_value_heads=CONFIG.kv_heads,
            rms_norm_eps=CONFIG.norm_eps,
            max_position_embeddings=LENGTH,
            rope_parameters={"sliding_attention": rope, "full_attention": dict(rope)},
            sliding_window=CONFIG.window,
            layer_types=kinds,
            pad_token_id=None,
            eos_token_id=None,
            attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]  # a keyword of its base
        )
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    batch = torch.from_numpy(tokens)
    targets = batch[:, 1:].reshape(-1, 1)

    def step() -> None:
        logits = model(batch, use_cache=False).logits[:, :-1].reshape(-1, CONFIG.vocab_size)
        normalizer = torch.logsumexp(logits, -1)
        ce = (normalizer - logits.gather(1, targets)[:, 0]).mean()
        (ce + 1e-5 * (normalizer**2).mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        ce.item()

    return step


if __name__ == "__main__":
    main()
