"""The budget against a simulation token by token, with the rows dealt by PyTorch's own samplers."""

import random
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import ValidationError
from torch.utils.data import BatchSampler, DistributedSampler

from samestep.app.calculators.token_budget import Inputs
from samestep.app.calculators.token_budget.packing import first_fit
from tests.kit import Answer, Asked, Body, Program

asked = Asked("token_budget")
answer, view = asked.answer, asked.view

IGNORED = -100


# --- an independent run, token by token


def first_fit_by_hand(sizes: list[int], capacity: int) -> list[list[int]]:
    bins: list[list[int]] = []
    for index, size in enumerate(sizes):
        for items in bins:
            if sum(sizes[i] for i in items) + size <= capacity:
                items.append(index)
                break
        else:
            bins.append([index])
    return bins


def targets_of(length: int, prompt: int, longest: int) -> list[int]:
    """Token ids with the prompt ignored, cut to the longest length; not yet shifted."""
    ids = [IGNORED if position < prompt else 1 for position in range(length)]
    return ids[:longest]


def rows_by_hand(body: Answer) -> list[list[int]]:
    """The targets of every row after packing and the shift: position j holds what is predicted there."""
    prompts = body["prompts"] if len(body["prompts"]) > 1 else body["prompts"] * len(body["lengths"])
    targets = [
        targets_of(length, prompt, body["max_length"]) for length, prompt in zip(body["lengths"], prompts, strict=True)
    ]
    if body["packing"] == "none":
        bins = [[i] for i in range(len(targets))]
    else:
        bins = first_fit_by_hand([len(target) for target in targets], body["max_length"])
    rows = []
    for items in bins:
        row: list[int] = []
        for i in items:
            head, *rest = targets[i]
            row += [IGNORED if body["boundaries"] == "masked" else head, *rest]
        rows.append([*row[1:], IGNORED])  # the model sees row and predicts row shifted by one
    return rows


def updates_by_hand(body: Answer) -> tuple[list[list[list[int]]], list[int], list[int]]:
    """Every update's counts n_rk, its tokens and its padding."""
    rows = rows_by_hand(body)
    dealt = []
    for rank in range(body["P"]):
        try:
            sampler = DistributedSampler(rows, body["P"], rank, shuffle=False, drop_last=body["drop_last"])
            dealt.append(list(BatchSampler(sampler, body["microbatch"], body["drop_last"])))
        except AssertionError:  # torch cannot cut fewer rows than ranks down to none
            dealt.append([])
    updates: list[list[tuple[list[int], ...]]] = []
    waiting: list[tuple[list[int], ...]] = []
    for _ in range(body["epochs"]):
        for microstep in zip(*dealt, strict=True):
            waiting.append(microstep)
            if len(waiting) == body["K"]:
                updates.append(waiting)
                waiting = []
        if body["tail"] == "update" and waiting:
            updates.append(waiting)
        if body["tail"] != "carry":
            waiting = []
    counts, tokens, padding = [], [], []
    for update in updates:
        counts.append(
            [[sum(rows[i].count(1) for i in microstep[rank]) for microstep in update] for rank in range(body["P"])]
        )
        held = padded = 0
        for batch in chain.from_iterable(update):
            lengths = [len(rows[i]) for i in batch]
            width = {"longest": max(lengths), "max_length": body["max_length"], "none": 0}[body["pad_to"]]
            held += sum(lengths)
            padded += sum(max(0, width - length) for length in lengths)
        tokens.append(held)
        padding.append(padded)
    return counts, tokens, padding


@st.composite
def bodies(draw: st.DrawFn) -> Answer:
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=14))
    one = draw(st.booleans())
    size = 1 if one else len(lengths)
    return {
        "lengths": lengths,
        "prompts": draw(st.lists(st.integers(0, 9), min_size=size, max_size=size)),
        "max_length": draw(st.integers(1, 14)),
        "packing": draw(st.sampled_from(["none", "first_fit"])),
        "boundaries": draw(st.sampled_from(["masked", "crossing"])),
        "pad_to": draw(st.sampled_from(["longest", "max_length", "none"])),
        "microbatch": draw(st.integers(1, 3)),
        "K": draw(st.integers(1, 4)),
        "P": draw(st.integers(1, 4)),
        "epochs": draw(st.integers(1, 3)),
        "drop_last": draw(st.booleans()),
        "tail": draw(st.sampled_from(["update", "drop", "carry"])),
    }


@settings(deadline=None, max_examples=300)
@given(bodies())
def test_every_update_is_the_one_of_the_simulation(body: Answer) -> None:
    got = answer(body)
    counts, tokens, padding = updates_by_hand(body)
    assert got["counts"] == counts
    assert got["update_count"] == len(counts)
    assert [update["supervised"] for update in got["updates"]] == [sum(map(sum, update)) for update in counts]
    assert [update["microsteps"] for update in got["updates"]] == [len(update[0]) for update in counts]
    assert [update["tokens"] for update in got["updates"]] == tokens
    assert [update["padding"] for update in got["updates"]] == padding
    assert got["empty_updates"] == sum(not sum(map(sum, update)) for update in counts)


@settings(deadline=None, max_examples=200)
@given(bodies())
def test_no_token_is_lost_without_being_counted(body: Answer) -> None:
    got = answer(body)
    data, sampling, rows = got["sequences"], got["sampling"], rows_by_hand(body)
    assert data["labels"] == sum(row.count(1) for row in rows)
    lost = data["prompt_tokens"] + data["lost_to_shift"] + data["lost_to_truncation"]
    assert data["tokens"] == sum(body["lengths"]) == data["labels"] + lost
    assert data["rows"] == len(rows)
    per_epoch = data["labels"] + sampling["repeated_labels"] - sampling["dropped_labels"]
    assert per_epoch * body["epochs"] == got["supervised"] + got["tail"]["dropped_labels"]
    dealt = data["rows"] + sampling["repeated_rows"] - sampling["dropped_rows"]
    whole = sampling["microbatches"] * body["microbatch"] * body["P"]
    assert dealt == (whole if body["drop_last"] else sampling["rows_per_rank"] * body["P"])
    assert sum(got["supervised_per_update"]) == got["supervised"]


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(9, 20))
def test_first_fit_is_the_first_bin_with_room(sizes: list[int], capacity: int) -> None:
    assert first_fit(sizes, capacity) == first_fit_by_hand(sizes, capacity)


# --- the lesson of the default state, and single facts


def test_the_default_state_has_a_tail_a_repeat_padding_and_a_sequence_without_labels() -> None:
    got = view()
    assert got["supervised_per_update"] == [2683, 1900]
    assert (got["tail"]["microsteps"], got["tail"]["of"], got["tail"]["factor"]) == (1, 2, "1/2")
    assert got["sampling"]["repeated_rows"] == 1
    assert got["sequences"]["without_labels"] == 1
    assert 0.2 < got["padding_fraction"] < 0.3
    assert got["shown"] == 2
    assert got["window"] == [[800], [1100]]


def test_the_shift_costs_one_label_only_where_there_is_no_prompt() -> None:
    for prompt, labels, shift in ((0, 9, 1), (1, 9, 0), (4, 6, 0), (10, 0, 0), (12, 0, 0)):
        got = answer({"lengths": [10], "prompts": [prompt], "max_length": 20, "P": 1})["sequences"]
        assert (got["labels"], got["lost_to_shift"]) == (labels, shift)


def test_a_packing_boundary_that_is_not_masked_gives_a_label_back() -> None:
    body: Answer = {"lengths": [4, 4, 4], "prompts": 0, "max_length": 8, "packing": "first_fit", "P": 1}
    masked, crossing = answer(body), answer(body | {"boundaries": "crossing"})
    assert (masked["sequences"]["rows"], masked["sequences"]["labels"]) == (2, 9)
    assert (crossing["sequences"]["crossing_labels"], crossing["sequences"]["labels"]) == (1, 10)


def test_a_carried_tail_shifts_the_windows_of_the_next_epoch() -> None:
    body: Answer = {"lengths": [3, 5, 7], "prompts": [1], "max_length": 9, "microbatch": 1, "P": 1, "epochs": 2}
    updates = {tail: answer(body | {"tail": tail})["supervised_per_update"] for tail in ("update", "drop", "carry")}
    assert updates == {"update": [6, 6, 6, 6], "drop": [6, 6], "carry": [6, 8, 10]}


def test_a_run_of_too_few_rows_has_no_update() -> None:
    got = answer({"lengths": [5], "prompts": [1], "P": 2, "drop_last": True})
    assert (got["update_count"], got["supervised_mean"], got["padding_fraction"]) == (0, None, None)
    assert got["supervised_per_update"] == []
    assert view(lengths="5", prompts="1", drop_last="true")["shown"] is None


def test_long_runs_are_counted_and_not_listed() -> None:
    got = answer({"lengths": [9] * 5000, "prompts": [1], "microbatch": 1, "K": 1, "P": 1, "epochs": 3})
    assert got["update_count"] == 15_000
    assert got["updates"] is got["counts"] is got["supervised_per_update"] is None
    assert got["supervised"] == 8 * 15_000


# --- refusals


REFUSED_FIELDS = {
    "lengths": ["", "5,0", "5,2.5", "5,,6"],
    "prompts": ["1,2", "-1"],
    "max_length": ["0"],
    "microbatch": [""],
    "K": ["0"],
    "P": ["5000"],
    "epochs": ["10000000"],
    "packing": ["best_fit"],
    "drop_last": ["maybe"],
    "tail": [""],
    "update": ["3", "0"],
}


def test_true_and_false_are_flags_and_no_numbers() -> None:
    with pytest.raises(ValidationError):
        answer({"lengths": [True]})
    with pytest.raises(ValidationError):
        answer({"lengths": [5], "K": True})
    body: Answer = {"lengths": [5, 6, 7]}
    assert answer(body | {"drop_last": True}) == answer(body | {"drop_last": "true"})
    assert answer(body) == answer(body | {"prompts": 0})
    with pytest.raises(ValidationError):
        answer(body | {"drop_last": 1})


@pytest.mark.parametrize("text", ["900,350", "900;350", "900\n350", "900\t350", [900, 350]])
def test_lengths_may_be_pasted_as_a_row_or_a_column(text: Any) -> None:
    assert Inputs.model_validate({"lengths": text, "prompts": "0"}).lengths == (900, 350)


# --- the panel in words

SHOWN = [
    "",
    "tail=carry&epochs=3",
    "tail=drop&packing=first_fit&boundaries=crossing",
    "drop_last=true&lengths=5&prompts=1",
    "lengths=5,6&prompts=9",
    "lengths=8&prompts=1&P=1&microbatch=1&K=1",
    "update=1",
    "K=0",
    "pad_to=none",
]


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    lengths = [source.randint(1, 40) for _ in range(source.randint(1, 12))]
    prompts = source.choice([0, [source.randint(0, 20) for _ in lengths]])
    return {
        "lengths": lengths,
        "prompts": prompts,
        "max_length": source.choice([16, 64]),
        "packing": source.choice(["none", "first_fit"]),
        "boundaries": source.choice(["masked", "crossing"]),
        "pad_to": source.choice(["longest", "max_length", "none"]),
        "microbatch": source.randint(1, 3),
        "K": source.randint(1, 3),
        "P": source.randint(1, 4),
        "epochs": source.randint(1, 3),
        "drop_last": source.random() < 0.5,
        "tail": source.choice(["update", "drop", "carry"]),
    }


PROGRAM = Program(
    prints=["supervised_per_update", "counts", "padding", "sequences.labels"],
    planted=("640", "641"),
    bodies=any_body,
)
