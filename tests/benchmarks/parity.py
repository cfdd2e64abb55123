"""Distance to transformers, and of planted errors: ``python -m tests.benchmarks.parity``.

The random models, prompts and errors are those of ``tests/contract/test_parity.py``, which holds
them to limits; here the numbers themselves are printed.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.contract.test_parity import ERRORS, ERRORS_SHAPE, SHAPES, Peer, config_of, make_peer


def main() -> None:
    """Print a line a model and error on standard error, one JSON object last."""
    models: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        for name, shape in SHAPES.items():
            models[name] = _agreement(make_peer(shape, Path(place) / name))
            print(f"{name:20}{_line(models[name])}", file=sys.stderr)
        narrow = make_peer(ERRORS_SHAPE, Path(place) / "errors")
        errors = {name: _planted(narrow, name) for name in ERRORS}
    for name, error in errors.items():
        print(f"{name:20}{_line(error)}", file=sys.stderr)
    print(json.dumps({"models": models, "errors": errors}))


def _agreement(peer: Peer) -> dict[str, float | None]:
    """Return the divergence in both dtypes, and the reference's own in bfloat16."""
    wide = peer.measure_ours(config_of(peer.shape))
    narrow = transformers.Olmo3ForCausalLM.from_pretrained(
        peer.folder, dtype=torch.bfloat16, attn_implementation="eager"
    ).eval()

    def predict(ids: list[int]) -> Any:
        with torch.no_grad():
            logits = narrow(torch.tensor([ids])).logits[0].float()
        return torch.log_softmax(logits, -1).numpy()

    return {
        "max_kl": wide.max_kl,
        "max_logprob_diff": wide.max_logprob_diff,
        "bfloat16_mean_kl": peer.measure_ours(config_of(peer.shape, "bfloat16")).mean_kl,
        "bfloat16_mean_kl_reference": peer.measure(predict).mean_kl,
    }


def _planted(peer: Peer, name: str) -> dict[str, float | None]:
    """Return the divergence of our model with one error."""
    config, patch = ERRORS[name]
    if patch is None:
        found = peer.measure_ours(config)
    else:
        where, attribute, wrong = patch
        right = getattr(where, attribute)
        setattr(where, attribute, wrong)
        try:
            found = peer.measure_ours(config)
        finally:
            setattr(where, attribute, right)
    return {"max_kl": found.max_kl, "mean_kl": found.mean_kl}


def _line(record: dict[str, float | None]) -> str:
    """Return a record as text."""
    return "  ".join(f"{name} {value:.2e}" for name, value in record.items() if value is not None)


if __name__ == "__main__":
    main()
