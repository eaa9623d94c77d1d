"""The ledger against exact cases, float64 autograd and the laws that a mean obeys."""

import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from samestep.app.calculators import replica_ledger
from samestep.app.calculators.replica_ledger.weighting import alike, weights
from samestep.app.mathematics.window import Window
from tests.kit import Asked, Body, Program, agrees, cases, quarters

asked = Asked("replica_ledger")
answer, view = asked.answer, asked.view

MEAN_RULES = ("replica_mean_then_ddp_mean", "microstep_mean_div_K_then_ddp_mean", "P_over_N_then_ddp_mean")


@pytest.mark.parametrize("case", cases("ledger").values(), ids=lambda case: case["id"])
def test_worked_case(case: dict[str, Any]) -> None:
    agrees(answer(**case["inputs"]), case["expected"], **case["tolerance"])


def test_the_chain_case_has_the_vector_gradients_of_its_schemes() -> None:
    case = cases()["X-01"]
    got = answer(microsteps=case["inputs"]["microsteps"], schemes=case["inputs"]["schemes"])
    for name in ("replica_mean_then_ddp_mean", "P_over_N_then_ddp_mean"):
        assert got["schemes"][name]["grad"] == pytest.approx(case["expected"][name]["grad"], rel=1e-12)
    assert got["schemes"]["P_over_N_then_ddp_mean"]["matches_reference"]
    assert not got["schemes"]["replica_mean_then_ddp_mean"]["matches_reference"]


counts = st.integers(0, 50)
values = st.integers(-1000, 1000).map(lambda i: i / 8)
cell = st.tuples(counts, values, values)
windows = st.lists(st.lists(cell, min_size=1, max_size=4), min_size=1, max_size=5)


def body(window: list[list[tuple[float, float, float]]], **more: Any) -> dict[str, Any]:
    cells = [[{"n": n, "g": g, "loss": loss} for n, g, loss in row] for row in window]
    return {"microsteps": cells, **more}


def autograd(window: list[list[tuple[int, float, float]]], scheme: str) -> float:
    """The gradient that an implementation gets: one leaf a replica, backward in every microstep, then the reduction.

    Every token's loss is g·θ, so its gradient is g; one masked position stands in every microstep, as padding does,
    so that the mean over no token is 0/0.
    """
    total = sum(n for row in window for n, _, _ in row)
    gradients = []
    for row in window:
        theta = torch.zeros((), dtype=torch.float64, requires_grad=True)
        held = sum(n for n, _, _ in row)
        for n, g, _ in row:
            mask = torch.tensor([1.0] * n + [0.0], dtype=torch.float64)
            losses = g * theta * mask
            match scheme:
                case "replica_mean_then_ddp_mean":
                    loss = losses.sum() / torch.tensor(float(held))
                case "microstep_mean_div_K_then_ddp_mean":
                    loss = losses.sum() / mask.sum() / len(row)
                case "microstep_mean_summed_then_ddp_mean":
                    loss = losses.sum() / mask.sum()
                case "P_over_N_then_ddp_mean" | "P_over_N_then_sum":
                    loss = losses.sum() * len(window) / total
                case "P_over_N_extra_div_K":
                    loss = losses.sum() * len(window) / total / len(row)
                case _:
                    loss = losses.sum() / total
            loss.backward()  # type: ignore[no-untyped-call]
        assert theta.grad is not None
        gradients.append(theta.grad.item())
    return sum(gradients) / (1 if scheme.endswith("_sum") else len(window))


@given(windows)
def test_every_named_scheme_is_what_autograd_gets(window: list[list[tuple[int, float, float]]]) -> None:
    got = answer(**body(window))
    for name, scheme in got["schemes"].items():
        if not any(n for row in window for n, _, _ in row):
            assert scheme["reason"] == "zero_count"
            continue
        if scheme["defined"]:
            assert scheme["grad"] == pytest.approx(autograd(window, name), rel=1e-9, abs=1e-9)
        else:
            assert np.isnan(autograd(window, name))
            assert scheme["reason"] == "empty_cell"


@given(windows, st.randoms())
def test_the_order_of_replicas_changes_nothing(window: list[list[tuple[int, float, float]]], random: Any) -> None:
    shuffled = random.sample(window, len(window))
    assert answer(**body(window))["schemes"] == answer(**body(shuffled))["schemes"]


@given(st.integers(1, 40), st.lists(st.lists(values, min_size=3, max_size=3), min_size=1, max_size=4))
def test_with_equal_counts_all_mean_rules_agree_and_double_division_does_not(n: int, g: list[list[float]]) -> None:
    got = answer(microsteps={"n": [[n] * 3 for _ in g], "g": g})
    assert all(got["schemes"][name]["matches_reference"] for name in MEAN_RULES)
    if got["reference"]["grad"]:
        assert got["schemes"]["P_over_N_extra_div_K"]["ratio_to_reference"] == pytest.approx(1 / 3)
        assert got["schemes"]["microstep_mean_summed_then_ddp_mean"]["ratio_to_reference"] == pytest.approx(3)


def test_equal_counts_per_replica_do_not_save_means_per_microstep() -> None:
    """Replicas of 4 tokens each, split 1+3: the replica's own mean is right, the mean of its microsteps is not."""
    got = view(counts="1,3;1,3", gradients="1,0;1,0")
    assert got["schemes"]["replica_mean_then_ddp_mean"]["matches_reference"]
    assert not got["schemes"]["microstep_mean_div_K_then_ddp_mean"]["matches_reference"]


@given(windows, st.data())
def test_splitting_a_cell_leaves_the_reference(window: list[list[tuple[int, float, float]]], data: Any) -> None:
    r = data.draw(st.integers(0, len(window) - 1))
    k = data.draw(st.integers(0, len(window[r]) - 1))
    n, g, loss = window[r][k]
    part = data.draw(st.integers(0, n))
    split = [list(row) for row in window]
    split[r][k : k + 1] = [(part, g, loss), (n - part, g, loss)]
    before, after = answer(**body(window))["reference"], answer(**body(split))["reference"]
    assert (before["grad_exact"], before["loss"]) == (after["grad_exact"], after["loss"])


@given(windows, st.integers(1, 9), st.fractions(-5, 5, max_denominator=7))
def test_scaling_counts_changes_no_mean_and_scaling_gradients_scales_all(
    window: list[list[tuple[int, float, float]]], times: int, factor: Fraction
) -> None:
    plain = answer(**body(window))
    more = answer(**body([[(n * times, g, loss) for n, g, loss in row] for row in window]))
    scaled = answer(**body([[(n, str(Fraction(g) * factor), loss) for n, g, loss in row] for row in window]))
    for name, scheme in plain["schemes"].items():
        assert more["schemes"][name]["grad_exact"] == scheme["grad_exact"]
        if scheme["defined"]:
            assert Fraction(scaled["schemes"][name]["grad_exact"]) == Fraction(scheme["grad_exact"]) * factor


@given(windows)
def test_large_windows_in_float64_agree_with_small_ones_in_fractions(
    window: list[list[tuple[int, float, float]]],
) -> None:
    sizes = tuple(map(len, window))
    n, g, loss = (np.array([cell[i] for row in window for cell in row], dtype=float) for i in range(3))
    inexact = Window(sizes, n, n * g, n * loss)
    for name, scheme in answer(**body(window))["schemes"].items():
        (group,) = alike([replica_ledger.NAMED_SCHEMES[name]], inexact)
        weight = weights(group, inexact)
        assert (weight.scale is not None) == scheme["defined"]
        if scheme["defined"]:
            assert weight.gradient(inexact) == pytest.approx(scheme["grad"], rel=1e-12, abs=1e-12)
            assert weight.loss(inexact) == pytest.approx(scheme["reported_loss"], rel=1e-12, abs=1e-12)


def test_a_window_above_the_limits_of_lists_answers_without_them() -> None:
    rows = [[1.0] * 101 for _ in range(100)]
    got = answer(microsteps={"n": rows, "g": rows, "loss": rows})
    assert got["reference"]["cell_weights"] is None
    assert got["reference"]["grad_exact"] is None
    assert got["reference"]["grad"] == 1.0
    assert got["schemes"]["P_over_N_then_ddp_mean"]["matches_reference"]


def test_4096_cells_are_exact_with_denominators_that_share_nothing() -> None:
    n = [[str(Fraction(10**15 + 2 * k + 1, 10**15)) for k in range(1024)] for _ in range(4)]
    got = answer(microsteps={"n": n, "g": [["1/3"] * 1024] * 4}, schemes=[{"name": "s", "denominator": "cell"}])
    assert Fraction(got["schemes"]["s"]["grad_exact"]) == Fraction(1024, 3)
    assert got["reference"]["grad_exact"] == "1/3"


def test_rows_of_the_panel_at_its_defaults() -> None:
    got = view()
    assert [row["name"] for row in got["rows"]] == ["A", "B"]
    assert [row["weight"] for row in got["rows"]] == [0.2, 0.8]
    assert [row["current_weight"] for row in got["rows"]] == [0.5, 0.5]
    assert got["current"] == got["schemes"]["replica_mean_then_ddp_mean"]
    assert (got["reference"]["theta_after_sgd"], got["current"]["theta_after_sgd"]) == (-0.04, 0.05)
    assert got["decision"] == "update"


def test_an_empty_replica_is_undefined_under_local_means_and_keeps_its_gradient() -> None:
    got = view(a="0")
    assert (got["current"]["defined"], got["current"]["reason"]) == (False, "empty_cell")
    assert got["current"]["grad"] is None
    assert got["rows"][0]["gradient"] == -2
    assert got["rows"][0]["gradient_sum"] == 0
    assert got["reference"]["grad"] == 1
    assert got["decision"] == "undefined"


def test_a_window_without_tokens_has_no_objective() -> None:
    got = view(a="0", b="0")
    assert got["decision"] == "skip_all_replicas"
    assert (got["reference"]["grad"], got["reference"]["reason"]) == (None, "zero_count")


REFUSED_FIELDS = {
    "counts": [{"gradients": "1,2"}, {"counts": "-1", "gradients": "1"}],
    "gradients": [{"counts": "1,2", "gradients": "1"}],
    "losses": [{"counts": "1", "gradients": "1", "losses": "1,1"}],
    "target_a": [{"target_a": "1e300", "target_b": "1"}],
    "gradients.0.0": [{"counts": "10", "gradients": "1e308"}],
}


REFUSED_BODIES = [
    ({"microsteps": [[{"n": 1}, {"n": 1, "g": 1}]]}, "microsteps.0.0.g"),
    ({"microsteps": [[{"g": 1}]]}, "microsteps.0.0.n"),
    ({"microsteps": [[{"n": -1, "g": 1}]]}, "microsteps.0.0.n"),
    ({"microsteps": [[{"n": 1, "g": 1, "G": 1}]]}, "microsteps.0.0.G"),
    ({"microsteps": [[{"n": 1, "g": [1, 2]}], [{"n": 1, "g": 1}]]}, "microsteps"),
    ({"microsteps": [[{"items": []}]]}, "microsteps.0.0.items"),
    ({"microsteps": [[{"n": 1, "items": [{"g": 1}]}]]}, "microsteps.0.0.n"),
    ({"microsteps": {"n": [[1, 2], [3]], "g": [[1, 2], [3, 4]]}}, "microsteps.g"),
    ({"microsteps": {"n": [[1, 2], [-3]], "g": [[1, 2], [3]]}}, "microsteps.n.1.0"),
    ({"microsteps": {"n": [[1, 2], ["x"]], "g": [[1, 2], [3]]}}, "microsteps.n.1.0"),
    ({"microsteps": [[{"n": 0, "G": 1, "S": 0}]]}, "microsteps.0.0.G"),
    ({"microsteps": [[{"n": 0, "G": 0, "S": 1}]]}, "microsteps.0.0.S"),
    ({"microsteps": {"n": [[1], [0]], "G": [[1], [1]]}}, "microsteps.G.1.0"),
]


def test_columns_may_stand_in_place_of_microsteps() -> None:
    inside = answer(microsteps={"n": [[2], [8]], "g": [[-2], [1]], "loss": [[2], ["1/2"]]})
    assert inside == answer(n=[[2], [8]], g=[[-2], [1]], loss=[[2], ["1/2"]])


def test_a_replica_without_microsteps_weighs_nothing() -> None:
    got = answer(microsteps=[[], [{"n": 2, "g": 3, "loss": 1}]])
    assert got["reference"]["grad"] == 3
    assert not got["schemes"]["replica_mean_then_ddp_mean"]["defined"]
    assert got["schemes"]["P_over_N_then_ddp_mean"]["matches_reference"]


@pytest.mark.parametrize("denominator", [0, [[0], [1]]])
@pytest.mark.parametrize("policy", ["undefined", "skip", "clamp1"])
def test_a_denominator_of_zero_under_something_is_undefined_whatever_empty_cells_do(
    denominator: Any, policy: str
) -> None:
    scheme = {"name": "s", "denominator": denominator, "empty_cell": policy}
    got = answer(microsteps=[[{"n": 1, "g": 1}], [{"n": 2, "g": 1}]], schemes=[scheme])
    assert got["schemes"]["s"]["defined"] is False
    empty = answer(microsteps=[[{"n": 0, "g": 1}], [{"n": 2, "g": 1}]], schemes=[scheme])
    assert empty["schemes"]["s"]["defined"] is (policy != "undefined" and denominator != 0)


def cross_entropy_mean(counts: list[list[int]], grads: list[list[float]]) -> tuple[float, bool]:
    """DDP's mean over replicas of PyTorch's own `cross_entropy` means: the gradient of θ, and whether a loss is NaN.

    Two classes, the first with the logit −2·g·θ: at θ = 0 the derivative of the loss by that logit is −½, so that a
    label's gradient is g. One ignored label stands in every cell.
    """
    per_replica, is_nan = [], False
    for row, slopes in zip(counts, grads, strict=True):
        theta = torch.zeros((), dtype=torch.float64, requires_grad=True)
        total = theta * 0
        for n, g in zip(row, slopes, strict=True):
            logits = torch.stack([(-2 * g * theta).expand(n + 1), torch.zeros(n + 1, dtype=torch.float64)], dim=1)
            labels = torch.tensor([0] * n + [-100])
            loss = torch.nn.functional.cross_entropy(logits, labels)
            is_nan |= bool(loss.isnan())
            total = total + loss / len(row)
        total.backward()
        assert theta.grad is not None
        per_replica.append(theta.grad.item())
    return sum(per_replica) / len(per_replica), is_nan


@pytest.mark.parametrize(
    ("counts", "grads"),
    [
        ([[0], [5], [3]], [[0.0], [2.0], [-1.0]]),
        ([[2, 0], [4, 1]], [[1.0, 0.0], [-2.0, 3.0]]),
        ([[3, 1], [2, 2]], [[1.0, 0.5], [-2.0, 3.0]]),
        ([[0, 0], [0, 0]], [[0.0, 0.0], [0.0, 0.0]]),
    ],
)
def test_an_empty_cell_as_pytorchs_cross_entropy_has_it_is_a_nan_to_log_and_no_gradient(
    counts: list[list[int]], grads: list[list[float]]
) -> None:
    scheme = {"name": "torch", "denominator": "cell", "accumulation_divisor": "K_r", "empty_cell": "zero_gradient"}
    losses = [[0.5 for _ in row] for row in counts]
    shown = answer(n=counts, g=grads, loss=losses, schemes=[scheme])["schemes"]["torch"]
    expected, is_nan = cross_entropy_mean(counts, grads)
    assert shown["defined"]
    assert shown["grad"] == pytest.approx(expected, abs=1e-15)
    assert (shown["reported_loss"] is None) is is_nan
    assert (shown["loss_reason"] is not None) is is_nan


def test_the_panel_treats_empty_cells_in_four_ways() -> None:
    """counts 0, 5, 3: g* = 7/8; the mean of replica means is 1/3 with the empty one in P, 1/2 would be without it."""
    state = {"counts": "0;5;3", "gradients": "4;2;-1", "losses": "1;1;2"}
    shown = {way: view(**state, empty_cell=way)["current"] for way in ("undefined", "skip", "clamp1", "zero_gradient")}
    assert not shown["undefined"]["defined"]
    assert [shown[way]["grad_exact"] for way in ("skip", "clamp1", "zero_gradient")] == ["1/3"] * 3
    assert shown["undefined"]["reason"] == "empty_cell"
    assert (shown["zero_gradient"]["reported_loss"], shown["zero_gradient"]["loss_reason"]) == (None, "empty_cell")
    assert shown["skip"]["reported_loss"] is not None


def test_numbers_that_coincide_are_not_weights_that_agree() -> None:
    """Equal targets: every average of equal gradients is the same number, whatever it weighs them by."""
    alike = view(a="2", b="8", target_a="1", target_b="1")["current"]
    assert (alike["matches_reference"], alike["weights_match"]) == (True, False)
    right = view(a="2", b="8", target_a="1", target_b="1", scheme="P_over_N_then_ddp_mean")["current"]
    assert (right["matches_reference"], right["weights_match"]) == (True, True)
    equal = view(a="5", b="5")["current"]
    assert (equal["matches_reference"], equal["weights_match"]) == (True, True)


@given(windows)
def test_weights_match_where_every_token_weighs_one_over_n(
    window: list[list[tuple[int, float, float]]],
) -> None:
    counts = [[n for n, _, _ in row] for row in window]
    total = sum(map(sum, counts))
    shown = answer(body(window))
    for name, scheme in shown["schemes"].items():
        if not scheme["matches_reference"]:
            assert not scheme["weights_match"]
            continue
        made = replica_ledger.NAMED_SCHEMES[name]
        (group,) = alike([made], Window.shaped(tuple(map(len, counts))))
        exact_window = Window(
            tuple(map(len, counts)),
            np.array([Fraction(n) for row in counts for n in row], dtype=object),
            np.array([Fraction(0) for row in counts for _ in row], dtype=object),
            None,
        )
        cells = weights(group, exact_window).over_cells(exact_window)
        filled = [weight for weight, n in zip(cells, [n for row in counts for n in row], strict=True) if n]
        assert scheme["weights_match"] == all(weight == pytest.approx(1 / total, rel=1e-9) for weight in filled)


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    dimensions = source.choice([0, 0, 2, 3])
    shape = (dimensions,) if dimensions else ()
    sizes = [source.randint(1, 3) for _ in range(source.randint(1, 4))]

    def cell() -> Body:
        n = source.choice([0, 1, 2, 5, "1/3"])
        if source.random() < 0.3:
            items = [{"w": source.randint(1, 3), "g": quarters(source, *shape), "loss": 2} for _ in range(2)]
            return {"items": items}
        if source.random() < 0.3 and n:
            return {"n": n, "G": quarters(source, *shape), "S": quarters(source)}
        return {"n": n, "g": quarters(source, *shape), "loss": quarters(source)}

    def table() -> list[list[int]]:
        return [[source.randint(1, 5) for _ in range(size)] for size in sizes]

    def scheme(name: str) -> Body:
        return {
            "name": name,
            "denominator": source.choice(["one", "cell", "replica", "global", 3, "0.3", table()]),
            "multiplier": source.choice([1, "P", "1/3", table()]),
            "accumulation_divisor": source.choice([1, "K_r", "K_max", 4]),
            "reduction": source.choice(["mean", "sum", 3]),
            "empty_cell": source.choice(["undefined", "skip", "clamp1"]),
            "regularizer_per": source.choice(["microstep", "replica", "none"]),
        }

    more: Body = {}
    if source.random() < 0.5:
        more = {"theta0": source.choice([0, quarters(source, *shape)]), "sgd_lr": source.choice(["0.1", "-0.5"])}
    if source.random() < 0.5:
        more["regularizer"] = {"g": quarters(source, *shape), "value": "0.7"}
    cells = [[cell() for _ in range(size)] for size in sizes]
    return {"microsteps": cells, "schemes": [scheme(f"s{i}") for i in range(5)], **more}


PROGRAM = Program(
    prints=["N", "reference.grad", "reference.loss", "schemes.replica_mean_then_ddp_mean.ratio_to_reference"],
    planted=("[8, 1, 0.5]", "[7, 1, 0.5]"),
    bodies=any_body,
)
