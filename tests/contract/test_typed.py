"""What people have at hand: counted numbers, printed lists, lines of a log; each read as what it says, or refused."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from samestep.app.calculators import registry
from samestep.app.contract.errors import InputError, RefusedError
from samestep.app.contract.log_lines import read_log
from samestep.app.contract.numbers import as_float, exact
from samestep.app.contract.rows import rows_of, split_rows
from samestep.app.instruments import states
from tests.kit import Asked

ledger = Asked("replica_ledger")


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("7B", 7 * 10**9),
        ("200M", 2 * 10**8),
        ("1e9", 10**9),
        ("1.5k", 1500),
        ("-2t", -2 * 10**12),
        ("0.5 B", 5 * 10**8),
        ("3万", 30_000),
        ("1/3", Fraction(1, 3)),
    ],
)
def test_a_number_may_be_counted_in_the_letters_of_its_field(typed: str, value: Fraction) -> None:
    assert exact(typed) == value


@pytest.mark.parametrize("typed", ["7BB", "B", "7 x", "7e", "1/3B", "KB", "7GiB", "nanB"])
def test_letters_that_are_no_magnitude_are_refused(typed: str) -> None:
    with pytest.raises(InputError):
        exact(typed)


@pytest.mark.parametrize("rows", [[[2.0, 3.0], [8.0, 0.0]], [[100.0], [900.0]], [[1.0, 2.0, 3.0]]])
def test_a_list_is_read_as_python_numpy_and_torch_print_it(rows: list[list[float]]) -> None:
    tensor = torch.tensor(rows)
    printed = [str(rows), str(tuple(map(tuple, rows))), str(np.array(rows)), repr(np.array(rows)), str(tensor)]
    printed += [repr(tensor.double()), f"counts: {rows}", f"n = {tensor.tolist()}"]
    printed += [str([list(row) for row in np.array(rows)]), str([list(row) for row in tensor])]
    for text in printed:
        assert rows_of(text) == tuple(tuple(map(Fraction, row)) for row in rows), text


def test_what_only_looks_like_a_printed_list_keeps_its_place_in_the_error() -> None:
    assert split_rows("2,[3;8,0") == [["2", "[3"], ["8", "0"]]
    with pytest.raises(InputError) as error:
        rows_of("[[1, 2], [3, x]]")
    with pytest.raises(InputError):
        rows_of("[log(2), 3]")
    assert error.value.cell == (1, 1)


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("loss: 2.31 grad_norm: 0.42", {"loss": "2.31", "gradient_norm": "0.42"}),
        ("{'loss': 2.31, 'grad_norm': 0.42, 'learning_rate': 1e-05}", {"loss": "2.31", "gradient_norm": "0.42"}),
        ("step 1/5 | lm loss: 6.5E0 | loss scale: 1.0 | grad norm: 0.4 |", {"loss": "6.5E0", "gradient_norm": "0.4"}),
        ("step=3, train/loss=2.5, train/grad_norm=nan", {"loss": "2.5", "gradient_norm": "nan"}),
        ("step 1 loss: 3\nstep 2 loss: 2.5", {"loss": "2.5"}),
        ("eval_loss: 1.5 step: 20", {}),
        ("2.31", {}),
        ("1:2", {}),
        ("lm loss: 2.3 | z loss: 0.01 | load_balancing_loss: 1.02 | kl_loss: 3 |", {"loss": "2.3"}),
        ("loss: 2.31, max_grad_norm: 1.0", {"loss": "2.31"}),
        ("loss: 2.31.", {"loss": "2.31"}),
    ],
)  # fmt: skip
def test_a_log_line_gives_the_training_loss_and_the_gradient_norm(line: str, read: dict[str, str]) -> None:
    assert read_log(line) == read


@pytest.mark.parametrize("number", ["2,31", "1,234.5", "1/3", "7B", "2.31k", "0x10", "2_310", "2.3.1", "1e5000", "42%"])
def test_a_number_in_a_log_line_is_read_whole_or_not_at_all(number: str) -> None:
    assert read_log(f"loss: {number} grad_norm: 0.42") == {"gradient_norm": "0.42"}


def test_a_log_line_in_one_field_fills_the_ones_that_belong_to_it() -> None:
    fingerprint = registry()["ratio_fingerprint"]
    plain = {"P": "4", "K": "8", "reference_loss": "2.31", "reference_norm": "0.42"}
    pasted = {"P": "4", "K": "8", "reference_loss": "loss: 2.31 grad_norm: 0.42"}
    observed = {"observed_loss": "2.31", "observed_norm": "3.36"}
    told = states.view_of(fingerprint, pasted | {"observed_norm": "{'loss': 2.31, 'grad_norm': 3.36}"})
    assert told == states.view_of(fingerprint, plain | observed)
    with pytest.raises(RefusedError) as error:
        states.view_of(fingerprint, pasted | {"observed_loss": "loss: nan"})
    assert error.value.errors[0].field == "observed_loss"


@pytest.mark.parametrize("scheme", ["replica_mean_then_ddp_mean", "P_over_N_then_ddp_mean", "P_over_N_then_sum"])
def test_counts_alone_are_weighed_as_with_gradients(scheme: str) -> None:
    alone = ledger.view(counts="100;900", scheme=scheme)
    whole = ledger.view(counts="100;900", gradients="5;-7", scheme=scheme)
    assert alone["cells"] == whole["cells"]
    assert alone["spread"] == whole["spread"]
    assert (alone["assumed"], whole["assumed"]) == (["gradients"], [])


def test_the_heaviest_token_counts_as_often_as_its_cell_is_smaller() -> None:
    spread = ledger.view(counts="100;900")["spread"]
    assert (spread["heaviest"], spread["lightest"]) == (["A", None], ["B", None])
    assert spread["times"] == pytest.approx(9)
    doubled = ledger.view(counts="100;900", scheme="P_over_N_then_sum")["spread"]
    assert (doubled["times"], doubled["of_right"]) == (1, pytest.approx(2))


@pytest.mark.parametrize(
    "body",
    [{"n": [[100], [900]]}, {"microsteps": [[{"n": 100}], [{"n": 900}]]}, {"microsteps": {"n": [["100"], ["900"]]}}],
)
def test_a_body_of_counts_alone_says_what_is_assumed(body: dict[str, object]) -> None:
    got = ledger.answer(body)
    assert got["assumed"] == ["gradients"]
    assert got["schemes"]["P_over_N_then_ddp_mean"]["weights_match"]
    assert not got["schemes"]["replica_mean_then_ddp_mean"]["weights_match"]


def test_a_whole_models_size_is_cut_into_equal_layers_and_one_layer_of_that_size_is_doubted() -> None:
    fsdp = Asked("fsdp_timeline")
    whole = fsdp.view(model="7B", layers="32")
    by_hand = fsdp.view(parameters="218750000", root_parameters="0", layers="32")
    assert whole.pop("assumed") == ["equal_layers"]
    assert by_hand.pop("assumed") == []
    assert whole == by_hand
    assert fsdp.view(parameters="7e9")["implausible_width"] == 24_152
    assert fsdp.view_refusal(model="5", layers="32").field == "model"


@pytest.mark.parametrize(
    ("name", "field", "most"), [("no_sync_timeline", "gradients", 4096), ("ratio_fingerprint", "counts", 200_000)]
)
def test_too_many_cells_are_refused_before_any_is_read(name: str, field: str, most: int) -> None:
    error = Asked(name).refusal({"P": 2, "K": 2, field: [["x"] * most, ["x"]]})
    assert (error.field, error.code) == (field, "too_long")
    assert f"{most:,}" in error.en


@pytest.mark.parametrize("number", [0, -3, 2**53 + 1, 10**299, 10**308, -(10**300) - 1])
def test_a_whole_number_is_the_float64_nearest_to_it(number: int) -> None:
    assert as_float(number) == float(Fraction(number))
