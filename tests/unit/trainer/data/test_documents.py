import jax
import jax.numpy as jnp
import pytest

from trainer.data.documents import segments


@pytest.mark.parametrize(
    ("tokens", "documents"),
    [
        ([4, 5, 6], [0, 0, 0]),
        ([4, 0, 6], [0, 0, 1]),
        ([0, 4, 5], [0, 1, 1]),
        ([4, 5, 0], [0, 0, 0]),  # nothing begins after the last token
        ([0, 0, 0], [0, 1, 2]),
        ([], []),
    ],
)
def test_a_document_ends_with_its_eos(tokens: list[int], documents: list[int]) -> None:
    rows = jnp.array([tokens, [9] * len(tokens)], jnp.int32)
    found = segments(rows, eos_id=0)
    assert found.tolist() == [documents, [0] * len(tokens)]
    assert str(found.dtype) == "int32"


def test_numbers_stay_int32_in_64_bits() -> None:
    with jax.enable_x64(True):
        found = segments(jnp.array([[1, 0, 2]], jnp.int32), eos_id=0)
    assert (found.tolist(), str(found.dtype)) == ([[0, 0, 1]], "int32")
