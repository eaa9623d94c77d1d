"""The byte-level BPE: exactly 387 tokens, every text comes back, and the result depends on the text alone."""

import random

import pytest
from hypothesis import given, strategies as st

from samestep.experiments.tiny import tokenizer
from samestep.experiments.tiny.tokenizer import FIRST_BYTE, FIRST_MERGE, MERGES, SPECIALS, Tokenizer, train

_CHANCE = random.Random(3)
_WORDS = ["".join(_CHANCE.choices("梯度更新mean，均值x3.", k=5)) for _ in range(300)]
TEXT = [" ".join(_CHANCE.choices(_WORDS, k=3000))]


@pytest.fixture(scope="module")
def learnt() -> Tokenizer:
    return train(TEXT)


def test_the_vocabulary_is_three_specials_256_bytes_and_128_merges(learnt: Tokenizer) -> None:
    assert (len(SPECIALS), 256, len(learnt.merges)) == (3, 256, 128)
    assert len(learnt) == tokenizer.VOCABULARY == 387


def test_text_comes_back_byte_for_byte(learnt: Tokenizer) -> None:
    tokens = learnt.encode(TEXT[0])
    assert learnt.decode(tokens) == TEXT[0]
    assert len(tokens) < len(TEXT[0].encode()) / 2  # merges are used


@given(text=st.text())
def test_any_text_comes_back(learnt: Tokenizer, text: str) -> None:
    assert learnt.decode_bytes(learnt.encode(text)) == text.encode()


def test_the_most_frequent_pair_comes_first_and_ties_go_to_the_smaller_ids() -> None:
    frequent = ["cd"] * 5000 + ["ab"] * 5000 + ["zz"] * 6000
    first, second, third = train(["\n".join([*frequent, *_WORDS, *_WORDS])]).merges[:3]
    assert (first, second, third) == (_pair("zz"), _pair("ab"), _pair("cd"))


def _pair(text: str) -> tuple[int, int]:
    return FIRST_BYTE + ord(text[0]), FIRST_BYTE + ord(text[1])


def test_training_again_gives_the_same_merges_whatever_the_order_of_equal_counts() -> None:
    assert train(TEXT).merges == train([TEXT[0]]).merges
    assert train([*TEXT, "x"]).merges == train(["x", *TEXT]).merges


def test_a_merge_is_made_of_earlier_tokens(learnt: Tokenizer) -> None:
    for k, pair in enumerate(learnt.merges):
        assert all(FIRST_BYTE <= part < FIRST_MERGE + k for part in pair)


def test_too_little_text_is_refused() -> None:
    with pytest.raises(ValueError, match=f"{MERGES} are needed"):
        train(["short"])


def test_the_file_holds_the_merges(learnt: Tokenizer) -> None:
    assert Tokenizer.from_json(learnt.to_json()).merges == learnt.merges
    with pytest.raises(ValueError, match="no tokenizer"):
        Tokenizer.from_json('{"kind": "other"}')
