"""Where contexts end: white space, merges across the join, one prefix, and the two rules."""

import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, processors

from evalmon.errors import EvaluationError
from evalmon.evaluators.pairs import Pair, PairEncoder
from evalmon.tokenizer import TextTokenizer

WORDS = "the quick brown fox jumps over a lazy dog while two small birds sing of science"


@pytest.fixture(scope="module")
def tokenizer(tokenizer_file: Path) -> TextTokenizer:
    return TextTokenizer(tokenizer_file)


@pytest.fixture
def toy(tmp_path: Path) -> TextTokenizer:
    """A tokenizer with the pieces <eos>, a, b, c and ab."""
    vocabulary = {"<eos>": 0, "a": 1, "b": 2, "c": 3, "ab": 4}
    Tokenizer(models.BPE(vocabulary, [("a", "b")])).save(str(tmp_path / "toy.json"))
    return TextTokenizer(tmp_path / "toy.json")


@pytest.fixture
def opened(tokenizer_file: Path, tmp_path: Path) -> TextTokenizer:
    """A tokenizer whose file puts <s> (id 300) before every text."""
    made = Tokenizer.from_file(str(tokenizer_file))
    made.add_special_tokens([AddedToken("<s>", special=True)])
    first = made.token_to_id("<s>")
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", first)]
    )
    made.save(str(tmp_path / "opened.json"))
    return TextTokenizer(tmp_path / "opened.json")


def random_pairs(count: int) -> list[Pair]:
    """Pairs of words, cut at any character, some with white space or a special token there."""
    rng = random.Random(0)
    found: list[Pair] = []
    for _ in range(count):
        text = " ".join(rng.choices([*WORDS.split(), "  ", "\n", "<|endoftext|>", "é"], k=80))
        cut = rng.randrange(len(text) - 40)
        found.append((text[:cut], text[cut : cut + rng.randrange(1, 40)]))
    return found


# lm-eval's rule. Faults F15 and F16.


def test_a_token_across_the_join_leaves_the_continuation_its_own_tokens(toy: TextTokenizer):
    pairs = PairEncoder(toy, 0)
    assert pairs.encode("ca", "b") == ((3, 1), (2,))
    assert pairs.boundary_merges == 1
    pairs.encode("ca", "b")
    assert pairs.boundary_merges == 1  # a pair counts once
    assert pairs.encode("ac", "ab") == ((1, 3), (4,))
    assert pairs.boundary_merges == 1


@pytest.mark.parametrize("apart", [False, True])
def test_an_empty_continuation_is_refused(toy: TextTokenizer, apart: bool):
    with pytest.raises(EvaluationError, match=r"the continuation '' of 'ca' has no token"):
        PairEncoder(toy, 0, apart=apart).encode("ca", "")


@pytest.mark.parametrize("end", [" ", "  ", "\n", " \n "])
def test_white_space_at_the_end_of_the_context_moves(tokenizer: TextTokenizer, end: str):
    pairs = PairEncoder(tokenizer, 0)
    first = pairs.encode(f"Q: the fox?{end}", "dog")
    assert first == pairs.encode("Q: the fox?", f"{end}dog")
    assert first[0] == tuple(tokenizer.encode("Q: the fox?"))
    assert first[0] + first[1] == tuple(tokenizer.encode(f"Q: the fox?{end}dog"))


def test_joined_pairs_are_the_whole_text_cut_at_the_contexts_length(tokenizer: TextTokenizer):
    asked = [pair for pair in random_pairs(200) if pair[0].strip()]
    pairs = PairEncoder(tokenizer, 0)
    pairs.encode_all(asked)
    merged = 0
    for context, rest in asked:
        head = tokenizer.encode(context.rstrip())
        whole = tokenizer.encode(context + rest)
        merged += whole[: len(head)] != head
        behind = whole[len(head) :] or tokenizer.encode(context[len(context.rstrip()) :] + rest)
        assert pairs.encode(context, rest) == (tuple(head), tuple(behind))
    assert pairs.boundary_merges == merged > 0
    one_by_one = PairEncoder(tokenizer, 0)
    assert [one_by_one.encode(*pair) for pair in asked] == [pairs.encode(*pair) for pair in asked]


# Exactly one prefix token. Fault F17.


@pytest.mark.parametrize("context", ["", "  "])
def test_without_context_there_is_one_prefix_token(tokenizer: TextTokenizer, context: str):
    for prefix in (0, 7):  # no beginning of text, and one that differs from its end
        pairs = PairEncoder(tokenizer, prefix, bos=prefix or None)
        assert pairs.encode(context, "the fox") == (
            (prefix,),
            tuple(tokenizer.encode(f"{context}the fox")),
        )


def test_a_prefix_that_the_text_brings_along_is_not_doubled(tokenizer: TextTokenizer):
    pairs = PairEncoder(tokenizer, 0)
    assert pairs.encode("", "<|endoftext|>the fox") == (
        (0,),
        tuple(tokenizer.encode("the fox")),
    )
    with pytest.raises(EvaluationError, match="has no token"):
        pairs.encode("", "<|endoftext|>")


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("text", ["the fox", "<s>the fox"])
def test_a_tokenizer_that_adds_a_beginning_adds_it_once(
    opened: TextTokenizer, apart: bool, text: str
):
    pairs = PairEncoder(opened, 300, bos=300, apart=apart)
    fox = tuple(opened.encode("the fox"))
    assert pairs.encode(text, " sing") == ((300, *fox), tuple(opened.encode(" sing")))
    assert pairs.encode("", "the fox") == ((300,), fox)


# AI2's rule.


def test_apart_pairs_are_encoded_as_they_are_and_what_differs_is_counted(
    tokenizer: TextTokenizer,
):
    asked = random_pairs(200)
    apart, joined = PairEncoder(tokenizer, 0, apart=True), PairEncoder(tokenizer, 0)
    apart.encode_all(asked)
    for context, rest in asked:
        assert apart.encode(context, rest) == (
            tuple(tokenizer.encode(context)) or (0,),
            tuple(tokenizer.encode(rest)),
        )
    differing = {pair for pair in asked if apart.encode(*pair) != joined.encode(*pair)}
    assert apart.apart_differs == len(differing) > 0
    assert apart.boundary_merges == 0


def test_a_merge_across_the_join_alone_makes_no_difference(toy: TextTokenizer):
    pairs = PairEncoder(toy, 0, apart=True)
    assert pairs.encode("ca", "b") == ((3, 1), (2,))
    assert pairs.apart_differs == 0
    assert pairs.encode("ca", "bab") == ((3, 1), (2, 4))  # joined: c, ab, ab, cut behind ab
    assert pairs.apart_differs == 1


def test_a_beginning_of_text_stands_before_every_context(tokenizer: TextTokenizer):
    pairs = PairEncoder(tokenizer, 0, bos=0, apart=True)
    fox = tuple(tokenizer.encode("the fox"))
    assert pairs.encode("the fox", " sing")[0] == (0, *fox)
    assert pairs.encode("<|endoftext|>the fox", " sing")[0] == (0, *fox)
    assert pairs.encode("", " sing")[0] == (0,)
    assert PairEncoder(tokenizer, 0, apart=True).encode("the fox", " sing")[0] == fox


# A context is encoded once.


def test_a_shared_context_is_encoded_once(
    tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
):
    sizes: list[int] = []
    plain = TextTokenizer.encode_batch

    def counted(self: TextTokenizer, texts: Any) -> list[list[int]]:
        sizes.append(sum(map(len, texts)))
        return plain(self, texts)

    monkeypatch.setattr(TextTokenizer, "encode_batch", counted)
    context = " ".join([WORDS] * 40)
    asked = [(context, f" {word} {n}") for n, word in enumerate(WORDS.split() * 4)]
    for apart in (False, True):
        sizes.clear()
        pairs = PairEncoder(tokenizer, 0, apart=apart)
        pairs.encode_all(asked)
        assert sum(sizes) < 5 * len(context) < len(asked) * len(context)
        sizes.clear()
        pairs.encode_all(asked)
        assert {pairs.encode(*pair)[0] for pair in asked} == {tuple(tokenizer.encode(context))}
        assert not sizes
