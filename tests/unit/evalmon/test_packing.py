"""Plans: every text whole on its branch, shared beginnings once, few shapes, exact counts."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalmon.packing import BATCH_TOKENS, Batch, Plan, Section, plan
from evalmon.types import ROW_TOKENS, ScoreRequest


def sections(
    root: Section, above: tuple[int, ...] = ()
) -> Iterator[tuple[Section, tuple[int, ...]]]:
    """Yield every section with the whole beginning its rows continue."""
    beginning = above + root.extension
    yield root, beginning
    for child in root.children:
        yield from sections(child, beginning)


def batches(made: Plan) -> Iterator[tuple[Batch, tuple[int, ...]]]:
    for section, beginning in sections(made.root):
        for batch in made.batches(section):
            yield batch, beginning


def asked(made: Plan) -> dict[int, list[tuple[tuple[int, ...], int]]]:
    """Return, of each request, the texts before its tokens and the tokens, as laid out."""
    found: defaultdict[int, list[tuple[tuple[int, ...], int]]] = defaultdict(list)
    for batch, beginning in batches(made):
        forest = batch.forest
        for owner, pick, target in zip(batch.owners, forest.picks, forest.targets, strict=True):
            text = beginning + forest.text_at(int(pick))
            row, column = divmod(int(pick), forest.ids.shape[1])
            assert forest.positions[row, column] == len(text) - 1
            found[int(owner)].append((text, int(target)))
    return found


def expected(request: ScoreRequest) -> list[tuple[tuple[int, ...], int]]:
    whole = (*request.context, *request.continuation)
    start = len(request.context)
    return [(whole[:place], whole[place]) for place in range(start, len(whole))]


def distinct_tokens(requests: Sequence[ScoreRequest]) -> int:
    """Count the nodes of the tree of all inputs, prefix by prefix."""
    inputs = [(*item.context, *item.continuation[:-1]) for item in requests]
    return len({text[:stop] for text in inputs for stop in range(1, len(text) + 1)})


texts = st.lists(st.integers(0, 2), min_size=1, max_size=30).map(tuple)
requests_strategy = st.lists(
    st.builds(ScoreRequest, texts, texts), min_size=1, max_size=25, unique=True
)


@given(requests_strategy, st.integers(0, 5), st.integers(1, 3), st.booleans())
def test_each_token_is_asked_for_behind_its_whole_text(
    requests: list[ScoreRequest], rows: int, multiple: int, share: bool
):
    made = plan(requests, batch_rows=rows, row_multiple=multiple, share=share)
    found = asked(made)
    assert [found[number] for number in range(len(requests))] == [expected(r) for r in requests]
    for batch, _ in batches(made):
        assert len(batch.forest.ids) % multiple == 0


@given(requests_strategy)
def test_small_trees_are_computed_token_by_token_once(requests: list[ScoreRequest]):
    made = plan(requests)
    assert made.tokens_distinct == distinct_tokens(requests)
    computed = sum(batch.forest.tokens for batch, _ in batches(made))
    inputs = sum(len(r.context) + len(r.continuation) - 1 for r in requests)
    assert made.tokens_distinct <= computed <= inputs
    if inputs <= ROW_TOKENS:  # one row: nothing is computed twice
        assert computed == made.tokens_distinct


def few_shot(items: int, block: int = 400, seed: int = 0) -> list[ScoreRequest]:
    """Return four answers to each of some questions below one block of examples."""
    rng = np.random.default_rng(seed)
    shared = tuple(rng.integers(0, 500, block).tolist())
    found: list[ScoreRequest] = []
    for _ in range(items):
        question = tuple(rng.integers(0, 500, rng.integers(10, 40)).tolist())
        answers = [rng.integers(0, 500, rng.integers(1, 9)).tolist() for _ in range(4)]
        found += [ScoreRequest(shared + question, tuple(answer)) for answer in answers]
    return found


def test_a_block_that_a_whole_task_shares_is_computed_once():
    requests = few_shot(100)
    made = plan(requests)
    (child,) = made.root.children
    assert (len(child.extension), child.depth) == (400, 400)
    assert not made.root.rows
    computed = 400 + sum(batch.forest.tokens for batch, _ in batches(made))
    assert computed == pytest.approx(distinct_tokens(requests), rel=0.02)
    padded = sum(batch.forest.ids.size for batch, _ in batches(made))
    assert 1 - (computed - 400) / padded < 0.1
    assert [found for _, found in sorted(asked(made).items())] == [expected(r) for r in requests]


def test_a_few_questions_with_their_block_stand_in_one_row():
    requests = few_shot(4)
    made = plan(requests)
    assert not made.root.children
    ((batch, _),) = batches(made)
    assert batch.forest.ids.shape == (1, 4 * ROW_TOKENS)
    assert batch.forest.tokens == distinct_tokens(requests)


def test_no_pick_stands_in_a_shared_beginning():
    """A request whose tokens are asked for inside what others share ends the sharing there."""
    long = tuple(range(600))
    requests = [ScoreRequest(long[:100], long[100:])]
    requests += [ScoreRequest((*long, n), (n,) * 300) for n in range(8)]
    made = plan(requests)
    (outer,) = made.root.children
    assert [outer.depth, *(child.depth for child in outer.children)] == [99, 600]
    assert [found for _, found in sorted(asked(made).items())] == [expected(r) for r in requests]


def test_shapes_are_few():
    shapes = {
        batch.forest.ids.shape
        for items in range(3, 60, 7)
        for batch, _ in batches(plan(few_shot(items, seed=items)))
    }
    assert {length for _, length in shapes} <= {256, 512, 1024}
    assert {count for count, length in shapes if length == ROW_TOKENS} <= {8, 2, 1}
    assert all(count * length <= BATCH_TOKENS for count, length in shapes)


def test_a_long_text_has_a_row_of_its_own():
    request = ScoreRequest((1,), tuple(range(3000)))
    ((batch, _),) = batches(plan([request]))
    assert batch.forest.ids.shape == (1, 4096)
    assert batch.forest.tokens == 3000


def test_padding_ends_in_itself_and_is_no_branch():
    ((batch, _),) = batches(plan([ScoreRequest((5, 6), (7, 8))], batch_rows=3, row_multiple=2))
    forest = batch.forest
    assert forest.ids.shape == (2, ROW_TOKENS)
    assert forest.ends[0, :3].tolist() == [2, 2, 2]
    assert forest.ends[0, 3:].tolist() == list(range(3, ROW_TOKENS))
    assert forest.ends[1].tolist() == list(range(ROW_TOKENS))
    assert forest.ids[0, 3:].sum() == forest.positions[0, 3:].sum() == 0


def test_unshared_texts_stand_beside_each_other_from_position_zero():
    requests = [ScoreRequest((5, 6), (7,)), ScoreRequest((5, 6), (8, 9))]
    ((batch, _),) = batches(plan(requests, share=False))
    assert batch.forest.tokens == 5
    assert batch.forest.positions[0, :5].tolist() == [0, 1, 0, 1, 2]
    assert batch.forest.ends[0, :5].tolist() == [1, 1, 4, 4, 4]
