"""Samples are recognised by content, however they were sliced."""

import torch

from samestep.experiments.audit.running.rows import Rows

DATA = {"x": torch.arange(12, dtype=torch.float64).reshape(4, 3), "label": torch.tensor([0, 1, 1, 2])}


def test_rows_are_found_in_any_order_with_their_field_and_number() -> None:
    rows = Rows(DATA)
    match = rows.matched(DATA["x"][[2, 0, 2]])
    assert match is not None
    assert (match[0], rows.samples(*match)) == ("x", [2, 0, 2])


def test_a_row_that_is_changed_or_of_another_type_is_not_recognised() -> None:
    assert Rows(DATA).matched(DATA["x"][:2] + 1e-9) is None
    assert Rows(DATA).matched(DATA["x"][:2].float()) is None


def test_of_equal_rows_it_cannot_be_told_which_sample_they_are() -> None:
    rows = Rows(DATA)
    match = rows.matched(DATA["label"][[1]])
    assert match is not None
    assert rows.samples(*match) is None


def test_a_microbatch_without_rows_is_recognised_as_none_of_them() -> None:
    match = Rows(DATA).matched(DATA["x"][:0])
    assert match is not None
    assert match[1] == []


def test_activations_with_a_gradient_are_no_samples() -> None:
    assert Rows(DATA).matched(DATA["x"].clone().requires_grad_()) is None


def test_every_view_of_what_was_dealt_out_is_known_however_it_is_cut() -> None:
    rows = Rows(DATA)
    microbatch = {"x": DATA["x"][[3, 1]]}
    rows.deal(microbatch, [3, 1])
    assert rows.dealt(microbatch["x"][:, :2]) == ("x", [3, 1])
    assert rows.dealt(microbatch["x"][1:, 1:]) == ("x", [1])
    assert rows.dealt(microbatch["x"].flatten()) == ("x", [3, 1])
    assert rows.dealt(DATA["x"][:, 1:]) == ("x", [0, 1, 2, 3])
    assert rows.dealt(microbatch["x"].clone()) is None
