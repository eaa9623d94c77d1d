"""What chapter 170 says of the published tokenizer, streams and optimizer state, counted again."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from samestep.experiments import corpus
from samestep.experiments.tensors import load
from samestep.experiments.train_tiny import (
    FLOOR,
    LEARNING_RATE,
    STEPS,
    VALIDATION_WINDOWS,
    VOCABULARY,
    WARM_UP,
    WEIGHT_DECAY,
    WINDOW,
    Data,
    prepare,
)
from tests.book_claims.chapter_code import CONTENT, chapter, output, programs

BAG = CONTENT / "evidence" / "train_tiny" / "data"
NAME = "170-tiny-language-model"


def printed(code: str) -> list[str]:
    """What the chapter's first program says when it is ended after one update: the whole takes seconds."""
    assert code.count("STEPS = 256, 64, 4, 64, 8, 300") == 1
    return output(code.replace("STEPS = 256, 64, 4, 64, 8, 300", "STEPS = 256, 64, 4, 64, 8, 0")).splitlines()


def test_the_program_of_one_page_begins_at_even_guessing_and_has_the_floors_that_the_chapter_quotes() -> None:
    code = programs(NAME)[0]
    assert printed(code) == [
        "step   0   held out 5.515",
        "evenly 5.545   by frequency 3.073   by the token before 2.413",
        "parameters 132864   sees the future False",
    ]


def test_a_program_without_its_mask_counts_the_same_parameters_and_sees_the_future() -> None:
    code = programs(NAME)[0]
    assert code.count(", is_causal=True") == 1
    assert printed(code.replace(", is_causal=True", ""))[-1] == "parameters 132864   sees the future True"


@pytest.fixture(scope="module")
def data() -> Data:
    return prepare(corpus.FOLDER)


@pytest.fixture(scope="module")
def learnt(data: Data) -> Counter[int]:
    return Counter(data.train.tolist())


def test_a_word_of_english_is_one_token_and_its_chinese_twin_five(data: Data) -> None:
    assert data.tokens.encode("gradient") == [329]
    assert len(data.tokens.encode("梯度")) == 5


def test_nine_merges_are_whole_characters_of_chinese(data: Data) -> None:
    texts = [data.tokens.bytes_of[259 + k] for k in range(128)]
    whole = [text for text in texts if len(text) == 3 and text[0] >= 0xE2]
    assert len([text for text in whole if len(text.decode("utf-8", "ignore")) == 1]) == 9


def test_what_no_context_can_do_costs_as_much_as_the_chapter_says(data: Data, learnt: Counter[int]) -> None:
    stream, total = data.validation.tolist(), len(data.train) + VOCABULARY
    starts = np.linspace(0, len(stream) - WINDOW - 1, VALIDATION_WINDOWS).astype(int)
    labels = [(stream[s + i], stream[s + i + 1]) for s in starts for i in range(WINDOW)]
    pairs = Counter(pairwise(data.train.tolist()))
    frequency = {token: (learnt[token] + 1) / total for token in range(VOCABULARY)}

    def pair(a: int, b: int) -> float:
        return 0.9 * pairs[a, b] / max(learnt[a], 1) + 0.1 * frequency[b]

    by_frequency = -sum(math.log(frequency[b]) for _, b in labels) / len(labels)
    by_pair = -sum(math.log(pair(a, b)) for a, b in labels) / len(labels)
    whole = -sum(math.log(frequency[b]) for b in stream[1:]) / (len(stream) - 1)
    assert (round(by_frequency, 2), round(by_pair, 2), round(whole, 2)) == (5.32, 3.21, 5.31)
    for lang in ("en", "zh"):
        assert all(number in chapter(lang, NAME) for number in ("5.32", "3.21", "5.31"))


def test_tokens_that_never_occurred_left_their_rows_to_the_decay_alone(learnt: Counter[int]) -> None:
    unseen = [token for token in range(VOCABULARY) if not learnt[token]]
    assert len(unseen) == 92
    state = load(BAG / "optimizer.safetensors")
    (moments,) = (value for name, value in state.items() if "exp_avg_sq" in name and "embedding" in name)
    assert not moments[unseen].any()
    assert moments[[token for token in range(VOCABULARY) if learnt[token]]].any(axis=1).all()
    kept = math.prod(1 - WEIGHT_DECAY * rate(step) for step in range(STEPS))
    assert round(kept, 3) == 0.877


def rate(step: int) -> float:
    if step < WARM_UP:
        return LEARNING_RATE * (step + 1) / WARM_UP
    wave = (1 + math.cos(math.pi * (step - WARM_UP) / (STEPS - WARM_UP))) / 2
    return LEARNING_RATE * (FLOOR + (1 - FLOOR) * wave)
