"""Facts about counting labels; the independent method lays out every token and asks `cross_entropy` what it used."""

import math
import random
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.nn.functional import cross_entropy

from samestep.app.calculators.label_count import MAX_ROWS, Inputs, compute, present
from samestep.app.calculators.label_count.rules import RULES
from samestep.app.contract.errors import InputError
from samestep.app.contract.limits import MAX_LISTED_CELLS
from tests.kit import Asked, Body, Program

asked = Asked("label_count")
answer, view, refusal = asked.answer, asked.view, asked.refusal

VOCABULARY, EOS, PAD, IGNORED = 7, 5, 6, -100


def ways(lengths: str, prompts: str = "0", **fields: str) -> dict[str, Any]:
    """The totals of all rules for rows given as text, uncut unless it is said."""
    got = view(lengths=lengths, prompts=prompts, **{"max_length": "", **fields})
    return {name: count["N"] for name, count in got["schemes"].items()}


# --- an independent count, token by token


def used_by_loss(labels: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """How many of each rule's targets `cross_entropy` has used: those whose logits have a gradient."""
    targets = torch.cat([*labels.values()])
    logits = torch.zeros(len(targets), VOCABULARY, requires_grad=True)
    loss = cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
    used = torch.autograd.grad(loss, logits)[0].any(dim=1).split([len(each) for each in labels.values()])
    return {name: int(each.sum()) for name, each in zip(labels, used, strict=True)}


class Laid:
    """One row as tensors: token ids, where sequences start, what is prompt, and how many positions are padding."""

    def __init__(self, row: Body, longest: int | None) -> None:
        self.ids, self.prompt, self.starts = [], [], []
        for length, prompt in zip(row["lengths"], row["prompts"], strict=True):
            self.starts.append(len(self.ids))
            self.ids += [1] * (length - 1) + [EOS]
            self.prompt += [i < prompt for i in range(length)]
        self.uncut = len(self.ids)
        self.kept = min(self.uncut, row.get("max_length") or longest or self.uncut)
        self.padding = row.get("padding", 0)

    def labels(self, seams: bool, *, prompt: bool = False, uncut: bool = False, padding: bool = False) -> torch.Tensor:
        """Labels aligned with the inputs. `seams`: those at packing boundaries are masked."""
        size = self.uncut if uncut else self.kept
        labels = torch.tensor(self.ids[:size])
        if not prompt:
            labels[torch.tensor(self.prompt[:size])] = IGNORED
        if seams:
            labels[[start for start in self.starts[1:] if start < size]] = IGNORED
        return torch.cat([labels, torch.full((self.padding,), PAD if padding else IGNORED)])

    def counts(self, crossing: bool) -> dict[str, int]:
        seams = not crossing
        right = self.labels(seams)
        twice = self.labels(seams=True)[1:].clone()
        twice[[start for start in self.starts[1:] if start < len(twice)]] = IGNORED
        no_eos = right.clone()
        no_eos[no_eos == EOS] = IGNORED
        used = used_by_loss(
            {
                "after_shift": right[1:],
                "before_shift": right,
                "every_start": self.labels(seams=False),
                "shifted_twice": right[2:],
                "boundaries_mismatched": self.labels(not seams)[1:],
                "boundaries_twice": twice,
                "padding_counted": self.labels(seams, padding=True)[1:],
                "prompt_counted": self.labels(seams, prompt=True)[1:],
                "truncation_ignored": self.labels(seams, uncut=True)[1:],
                "eos_masked": no_eos[1:],
            }
        )
        return used | {"attention_mask": self.kept, "all_positions": len(right)}


def laid_out(body: Body) -> list[list[list[Laid]]]:
    cells = [[[Laid(row, body.get("max_length")) for row in cell] for cell in rank] for rank in body["cells"]]
    for given_rank, rank in zip(body["cells"], cells, strict=True):
        for given_cell, cell in zip(given_rank, rank, strict=True):
            target = max((row.kept for row in cell), default=0)
            for given_row, row in zip(given_cell, cell, strict=True):
                if "padding" not in given_row:
                    row.padding = target - row.kept
    return cells


@st.composite
def rows(draw: st.DrawFn) -> Body:
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    row: Body = {"lengths": lengths, "prompts": [draw(st.sampled_from([0, 0, 1, 2, 7])) for _ in lengths]}
    if draw(st.booleans()):
        row["padding"] = draw(st.integers(0, 3))
    if draw(st.booleans()):
        row["max_length"] = draw(st.integers(1, 12))
    return row


@st.composite
def bodies(draw: st.DrawFn) -> Body:
    cells = st.lists(st.lists(rows(), max_size=3), min_size=1, max_size=3)
    body: Body = {"cells": draw(st.lists(cells, min_size=1, max_size=3))}
    body["boundaries"] = draw(st.sampled_from(["masked", "crossing"]))
    if draw(st.booleans()):
        body["max_length"] = draw(st.integers(1, 10))
    return body


@given(bodies())
@settings(max_examples=60, deadline=None)
def test_every_rule_counts_what_cross_entropy_uses_of_labels_made_by_that_rule(body: Body) -> None:
    got = answer(body)
    by_hand = [
        [[row.counts(body["boundaries"] == "crossing") for row in cell] for cell in rank] for rank in laid_out(body)
    ]
    assert list(got["schemes"]) == list(RULES)
    for name, count in got["schemes"].items():
        assert count["counts"] == [[sum(row[name] for row in cell) for cell in rank] for rank in by_hand], name


@given(bodies())
@settings(max_examples=60, deadline=None)
def test_rows_given_as_labels_or_masked_tokens_count_as_those_given_by_lengths(body: Body) -> None:
    expected = answer(body)
    as_labels, as_tokens = [], []
    for rank in laid_out(body):
        as_labels.append([[_as_labels(row) for row in cell] for cell in rank])
        as_tokens.append([[_as_tokens(row) for row in cell] for cell in rank])
    for cells in (as_labels, as_tokens):
        got = answer({"cells": cells, "boundaries": body["boundaries"], "pad_id": EOS})
        for name, count in got["schemes"].items():
            assert count == expected["schemes"][name], name


def _as_labels(row: Laid) -> Body:
    labels = row.labels(seams=False, uncut=True)[: row.uncut].tolist()
    return {"labels": labels, "starts": row.starts, "padding": row.padding, "max_length": row.kept}


def _as_tokens(row: Laid) -> Body:
    mask = [int(not prompt) for prompt in row.prompt]
    return {"tokens": row.ids, "mask": mask, "starts": row.starts, "padding": row.padding, "max_length": row.kept}


@given(bodies())
@settings(max_examples=40, deadline=None)
def test_factors_are_the_ratios_of_the_labels_gradients(body: Body) -> None:
    """Each cell's labels get one weight; autograd says which, for the right loss and for the two wrong ones."""
    got = answer(body)
    crossing = body["boundaries"] == "crossing"
    cells = [
        torch.cat([torch.full((1,), IGNORED), *(row.labels(not crossing)[1:] for row in cell)])
        for rank in laid_out(body)
        for cell in rank
    ]
    right = [int((labels != IGNORED).sum()) for labels in cells]
    count = got["schemes"]["before_shift"]
    wrong = [n for rank in count["counts"] for n in rank]

    def weights(of_sums: list[float]) -> list[float]:
        """The size of a label's gradient in each cell when the cells' losses are summed with these factors."""
        logits = [torch.zeros(len(labels), VOCABULARY, dtype=torch.float64, requires_grad=True) for labels in cells]
        parts = [
            factor * cross_entropy(x, labels, ignore_index=IGNORED, reduction="sum")
            for factor, x, labels in zip(of_sums, logits, cells, strict=True)
        ]
        torch.stack(parts).sum().backward()  # type: ignore[no-untyped-call]
        return [float(x.grad.abs().max()) for x in logits if x.grad is not None]

    total, counted = sum(right), sum(wrong)
    if not total or not counted:
        assert count["factor"] is None
        return
    due = weights([1 / total] * len(cells))
    by_total = weights([1 / counted] * len(cells))
    weighed = weights([m / counted / n if n else 0.0 for m, n in zip(wrong, right, strict=True)])
    own = weights([1 / m if m else 0.0 for m in wrong])
    fair = weights([1 / n if n else 0.0 for n in right])
    local = [factor for rank in count["local_factors"] for factor in rank]
    weighted = [factor for rank in count["weighted_factors"] for factor in rank]
    for i, n in enumerate(right):
        if n == 0:
            assert (local[i], weighted[i]) == (None, None)
            continue
        assert by_total[i] / due[i] == pytest.approx(count["factor_value"], rel=1e-12)
        assert weighed[i] / due[i] == pytest.approx(weighted[i], rel=1e-12)
        assert own[i] / fair[i] == pytest.approx(local[i], rel=1e-12)


# --- single facts


def test_four_rows_of_five_are_sixteen_labels_and_not_twenty() -> None:
    got = view(lengths="5 5 5 5", prompts="0", max_length="")
    assert got["N"] == 16
    assert got["current"]["N"] == 20
    assert got["current"]["factor"] == "4/5"
    assert got["current"]["kind"] == "scaled"


def test_a_masked_prompt_hides_the_fault_of_counting_before_the_shift() -> None:
    assert view(lengths="5 5 5 5", prompts="1", max_length="")["current"]["kind"] == "same"
    assert view(lengths="5 5 5 5", prompts="1", max_length="", scheme="prompt_counted")["current"]["kind"] == "same"
    assert view(lengths="5 5 5 5", prompts="2", max_length="", scheme="prompt_counted")["current"]["N"] == 16


def test_unequal_rows_per_label_turn_the_direction_and_equal_ones_scale_it() -> None:
    assert view(lengths="5,5;5,5", prompts="0", max_length="")["current"]["kind"] == "scaled"
    got = view(lengths="5,9;5,5", prompts="0", max_length="")["current"]
    assert got["kind"] == "distorted"
    assert got["spread"] == pytest.approx((8 / 9) / (4 / 5))


def test_a_packed_row_loses_one_label_at_each_boundary_and_only_one() -> None:
    counts = ways("5+3")
    assert counts["after_shift"] == 4 + 2
    assert counts["boundaries_mismatched"] == 4 + 3
    assert counts["boundaries_twice"] == 4 + 1
    assert counts["before_shift"] == 5 + 2
    assert counts["every_start"] == 5 + 3


def test_a_loss_that_predicts_across_boundaries_has_one_label_more_there() -> None:
    counts = ways("5+3", boundaries="crossing")
    assert counts["after_shift"] == 7
    assert counts["boundaries_mismatched"] == 6


def test_padding_counts_for_nothing_unless_its_labels_are_left_in() -> None:
    counts = ways("6 4")
    assert counts["after_shift"] == 5 + 3
    assert counts["padding_counted"] == 5 + 5
    assert ways("6 4", pad_to="none")["padding_counted"] == 8
    assert ways("6 4", pad_to="max_length", max_length="9")["all_positions"] == 18


def test_a_truncated_answer_is_counted_by_what_is_left_of_it() -> None:
    counts = ways("9", prompts="3", max_length="8")
    assert counts["after_shift"] == 5
    assert counts["truncation_ignored"] == 6
    assert ways("9", prompts="9", max_length="8")["after_shift"] == 0


def test_an_end_of_text_with_paddings_id_is_a_label_all_the_same() -> None:
    cells = [[[{"labels": [-100, 4, 5, 2, 2], "attention_mask": [1, 1, 1, 1, 0]}]]]
    got = answer({"cells": cells, "pad_id": 2})
    assert got["N"] == 3
    assert got["schemes"]["eos_masked"]["N"] == 2
    assert got["padding"] == 1


def test_shifting_twice_loses_the_label_of_the_second_token() -> None:
    assert ways("5 5", prompts="0")["shifted_twice"] == 6
    assert ways("5 5", prompts="2")["shifted_twice"] == ways("5 5", prompts="2")["after_shift"] == 6


def test_a_window_without_labels_has_no_factor() -> None:
    got = view(lengths="5;5", prompts="5", max_length="")
    assert got["N"] == 0
    assert got["empty_cells"] == 2
    assert {(c["kind"], c["factor"], c["reason"]) for c in got["schemes"].values()} == {
        ("undefined", None, "zero_count")
    }


def test_an_empty_microbatch_has_no_factors_and_spoils_no_other() -> None:
    got = view(lengths="5,;5,5", prompts="0,;0,0", max_length="")
    assert got["counts"] == [[4, 0], [4, 4]]
    assert got["current"]["local_factors"][0] == [pytest.approx(0.8), None]
    assert got["current"]["kind"] == "scaled"


def test_factors_are_exact_fractions() -> None:
    got = ways("6 4,9;5+3,8", "0 0,3;0+0,2", max_length="8")
    factor = view()["current"]["factor"]
    assert Fraction(factor) == Fraction(got["after_shift"], got["before_shift"])


def test_a_picture_marks_what_is_counted_too_much() -> None:
    strip = view()["strips"][3]
    assert strip["seen"] == [[1, 5], [6, 8]]
    assert strip["counted"] == [[0, 5], [6, 8]]
    assert {span["what"] for span in view()["strips"][1]["spans"]} == {"start", "label", "padding"}
    without_eos = view(scheme="eos_masked")["strips"][0]
    assert without_eos["counted"] == [[1, 5]]


def test_a_row_of_drawn_stretches_holds_as_many_labels_as_are_counted() -> None:
    for scheme in RULES:
        got = view(scheme=scheme)
        drawn = sum(end - begin for strip in got["strips"] for begin, end in strip["counted"])
        assert drawn == got["current"]["N"], scheme


def test_any_number_of_ranks_can_be_shown_and_the_picture_stays_bounded() -> None:
    cells = [[[{"lengths": [5 + r % 3]}] for _ in range(4)] for r in range(64)]
    shown = present(Inputs.model_validate({"cells": cells}), "padding_counted")
    assert shown.selected == "padding_counted"
    assert len(shown.strips) == 8
    with pytest.raises(InputError):
        present(Inputs.model_validate({"cells": cells}), "no_such_rule")


def test_lists_are_left_out_where_there_are_too_many_cells() -> None:
    cells = [[[{"lengths": [3]}]] * (MAX_LISTED_CELLS + 1)]
    result = compute(Inputs.model_validate({"cells": cells}))
    assert result.counts is None
    assert result.N == 2 * (MAX_LISTED_CELLS + 1)
    assert result.schemes["before_shift"].factor == "2/3"


def test_long_rows_are_counted_without_being_laid_out() -> None:
    row = {"lengths": [10**7] * 300}
    got = answer({"cells": [[[row]]]})
    assert got["N"] == 300 * (10**7 - 1)
    assert math.isclose(got["schemes"]["before_shift"]["factor_value"], 1, rel_tol=1e-8)


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({}, "lengths"),
        ({"lengths": [0]}, "lengths"),
        ({"lengths": [3], "labels": [1]}, "labels"),
        ({"lengths": [3, 4, 5], "prompts": [1, 2]}, "prompts"),
        ({"lengths": [3], "mask": [1]}, "mask"),
        ({"labels": [1, 2], "mask": [1, 1]}, "mask"),
        ({"labels": [1, 2], "prompts": [1]}, "prompts"),
        ({"labels": [1, 2.5]}, "labels"),
        ({"tokens": [1, 2], "mask": [1]}, "mask"),
        ({"labels": [1, 2], "starts": [1]}, "starts"),
        ({"labels": [1, 2], "starts": [0, 2]}, "starts"),
        ({"lengths": [3], "starts": [0]}, "starts"),
        ({"labels": [1, 2], "attention_mask": [0, 1]}, "attention_mask"),
        ({"labels": [1, 2], "attention_mask": [1, 1], "padding": 2}, "attention_mask"),
        ({"lengths": [3], "padding": -1}, "padding"),
        ({"lengths": [3], "max_length": 0}, "max_length"),
        ({"lengths": [3], "rows": 1}, "rows"),
    ],
)
def test_a_row_that_does_not_hold_together_is_refused_at_its_place(row: Body, field: str) -> None:
    assert refusal({"cells": [[[{"lengths": [2]}, row]]]}).path[:5] == ("cells", 0, 0, 1, field)


REFUSED_FIELDS = {
    "lengths": ["", "5,x"],
    "prompts": [{"lengths": "5 5", "prompts": "0 0 0"}, ""],
    "labels": ["1,two"],
    "max_length": [{"pad_to": "max_length", "max_length": ""}],
    "scheme": ["guess"],
}


def test_more_rows_than_can_be_counted_are_refused() -> None:
    assert refusal({"cells": [[[{"lengths": [2]}] * (MAX_ROWS + 1)]]}).field == "cells"


def test_labels_may_be_pasted_with_brackets_and_spaces() -> None:
    pasted = view(labels="[-100, 5, 6] [5, 6, 7] | [5, 6 + 7, 8]", max_length="", prompts="0")
    assert pasted["counts"] == [[4, 2]]
    assert pasted["tokens"] == 10


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    def row() -> Body:
        if source.random() < 0.5:
            lengths = [source.randint(1, 9) for _ in range(source.randint(1, 3))]
            more = source.choice([{}, {"padding": 2}, {"max_length": 5}])
            return {"lengths": lengths, "prompts": [source.randint(0, 9) for _ in lengths], **more}
        if source.random() < 0.5:
            return {
                "labels": [source.choice([-100, 0, 7]) for _ in range(8)],
                "starts": source.choice([[0], [0, 3, 4]]),
            }
        mask = [source.randint(0, 1) for _ in range(6)]
        return {"tokens": [5, 7, 7, 8, 7, 7], "mask": mask, "attention_mask": [1, 1, 1, 1, 0, 0]}

    cells = [[[row() for _ in range(source.randint(0, 3))] for _ in range(2)] for _ in range(2)]
    return {
        "cells": cells,
        "max_length": 7,
        "pad_to": source.choice(["longest", "max_length", "none"]),
        "boundaries": source.choice(["masked", "crossing"]),
        "pad_id": source.choice([None, 7, 1]),
    }


PROGRAM = Program(
    prints=["N", "counts", "schemes.before_shift.factor_value", "schemes.padding_counted.N"],
    planted=("labels(9, 3)", "labels(9, 4)"),
    bodies=any_body,
)
