"""Facts about clipping by one global norm; the independent methods are torch in float64 and 60-digit decimals."""

import json
import math
import random
from decimal import Decimal, localcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from samestep.app.contract.limits import MAX_LISTED_CELLS
from tests.kit import Asked, Body, Program, agrees, cases, changed, quarters

asked = Asked("clip_ownership")
answer, view, refusal = asked.answer, asked.view, asked.refusal

NOT_DEMANDED = {"value_if_raised_to_1_over_inf", "norm_if_experts_omitted"}
"""Story fields of one case each: the first is a mistake of one library, the second needs ids marked as experts."""


@pytest.mark.parametrize("case", cases("clip").values(), ids=lambda case: case["id"])
def test_every_worked_case_is_met_at_its_tolerance(case: dict[str, Any]) -> None:
    expected = {name: value for name, value in case["expected"].items() if name not in NOT_DEMANDED}
    got = answer(case["inputs"])
    agrees(got, expected, **case["tolerance"])
    assert "norm_if_experts_omitted" not in got  # no id of the cases is marked


def test_there_are_thirteen_worked_cases_and_seven_of_them_update_parameters() -> None:
    assert len(cases("clip").values()) == 13
    assert sum("param_after" in case["expected"] for case in cases("clip").values()) == 7


def test_marked_experts_left_out_give_the_norm_of_the_rest() -> None:
    case = cases()["C-06"]
    body = json.loads(json.dumps(case["inputs"]))
    for copy in (copy for rank in body["ranks"] for copy in rank):
        copy["expert"] = copy["id"].startswith("expert")
    got = answer(body)
    assert got["norm_if_experts_omitted"] == case["expected"]["norm_if_experts_omitted"] == 6
    assert got["global_norm"] == 10  # and the right norm still counts them


@pytest.mark.parametrize(
    ("gradients", "same", "direction"),
    [("24;32", False, False), ("24;24", False, True), ("24;0", True, True), ("1;2", True, True), ("0;0", True, True)],
)
def test_a_rank_that_clips_by_itself_keeps_the_direction_only_if_all_that_is_not_zero_is_shortened_alike(
    gradients: str, same: bool, direction: bool
) -> None:
    got = view(gradients=gradients, scheme="per_rank")["current"]
    assert (got["matches_reference"], got["keeps_direction"]) == (same, direction)


# --- the state machine's edges


def _ranks(*ranks: list[tuple[str, list[Any], bool]], param: float | None = None) -> list[list[Body]]:
    body: list[list[Body]] = [
        [{"id": name, "grad": grad, "owner": owner} for name, grad, owner in rank] for rank in ranks
    ]
    if param is not None:
        for copy in (copy for rank in body for copy in rank):
            copy["param"] = [param] * len(copy["grad"])
    return body


NON_FINITE = [("inf", "inf"), ("-inf", "inf"), ("nan", "nan")]


@pytest.mark.parametrize(("value", "norm"), NON_FINITE)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_non_finite_value_on_one_rank_makes_all_ranks_skip(value: str, norm: str, rank: int) -> None:
    grads: list[list[Any]] = [[24, 0], [32, 0]]
    grads[rank][1] = value
    body = {"ranks": _ranks([("a", grads[0], True)], [("b", grads[1], True)], param=1), "loss_scale": 8}
    got = answer(body | {"max_norm": 1, "lr": "0.1"})
    assert (got["decision"], got["defined"], got["reason"]) == ("skip_all_ranks", False, "non_finite")
    assert got["global_norm"] == got["local_norms"][rank] == got["norm_if_every_copy_counted"] == norm
    assert got["norm_if_local_norms_averaged"] == got["sum_of_local_norms"] == got["max_of_local_norms"] == norm
    for field in ("coefficient", "clipped_norm", "applied", "norm_after_per_rank_clipping"):
        assert got[field] is None
    assert got["torch_clip_grad_norm_coefficient"] is None
    assert got["local_coefficients"][1 - rank] in (1 / 3, 1 / 4)  # the healthy rank alone would have stepped
    assert got["local_coefficients"][rank] is None
    assert got["schemes"]["per_rank"]["coefficient"] == [None, None]  # but nobody does
    assert got["param_after"] == [[{"id": "a", "param": [1, 1]}], [{"id": "b", "param": [1, 1]}]]
    assert all(scheme["applied"] is None for scheme in got["schemes"].values())


def test_nan_prevails_over_inf() -> None:
    got = answer({"ranks": _ranks([("a", ["inf", 1], True)], [("b", ["nan"], True)]), "max_norm": 1})
    assert got["local_norms"] == ["inf", "nan"]
    assert got["global_norm"] == "nan"


def test_a_bad_copy_that_is_not_the_owners_also_makes_all_skip() -> None:
    body = {"ranks": _ranks([("a", [3], True)], [("a", ["inf"], False)]), "max_norm": 1}
    got = answer(body)
    assert got["decision"] == "skip_all_ranks"
    assert got["global_norm"] == "inf"
    assert got["copies_agree"] is False


def test_the_worked_non_finite_example_is_skipped_and_its_negative_threshold_refused() -> None:
    case = next(iter(cases("clip_nonfinite").values()))
    given_, expected = case["inputs"], case["expected"]
    got = answer({"ranks": _ranks([("w", given_["grad"], True)]), "max_norm": given_["max_norm"]})
    assert (got["global_norm"], got["decision"]) == (expected["norm"], expected["correct_decision"])
    second = given_["second"]
    values = [second["value"]] * second["count"]
    got = answer({"ranks": _ranks([("w", values, True)]), "max_norm": second["max_norm"]})
    assert got["global_norm"] == pytest.approx(expected["second"]["norm_float64"], rel=1e-12)
    assert got["coefficient"] == pytest.approx(expected["second"]["coefficient_float64"], rel=1e-12)
    negative = given_["negative_threshold"]
    error = refusal({"ranks": _ranks([("w", negative["grad"], True)]), "max_norm": negative["max_norm"]})
    assert error.path == ("max_norm",)


def test_threshold_zero_applies_zero_and_zero_norm_keeps_the_coefficient_one() -> None:
    ranks = _ranks([("a", [3], True)], [("b", [4], True)], param=1)
    got = answer({"ranks": ranks, "max_norm": 0, "lr": 1})
    assert (got["coefficient"], got["clipped_norm"]) == (0, 0)
    assert got["param_after"][0][0]["param"] == [1]
    zero = answer({"ranks": _ranks([("a", [0], True)]), "max_norm": 0, "eps": "1e-6"})
    assert (zero["global_norm"], zero["coefficient"]) == (0, 1)


def test_a_rank_may_hold_nothing() -> None:
    got = answer({"ranks": _ranks([], [("a", [3, 4], True)], []), "max_norm": 1})
    assert got["local_norms"] == [0, 5, 0]
    assert got["applied"] == [[], [{"id": "a", "grad": pytest.approx([0.6, 0.8])}], []]
    assert answer({"ranks": [[]], "max_norm": 1})["global_norm"] == 0
    assert answer({"ranks": _ranks([("a", [], True)], [("b", [2], True)]), "max_norm": 1})["global_norm"] == 2


def test_disagreeing_copies_are_reported_and_the_owners_counts() -> None:
    got = answer({"ranks": _ranks([("a", [3], False)], [("a", [4], True)]), "max_norm": 1})
    assert got["copies_agree"] is False
    assert (got["global_norm"], got["norm_if_every_copy_counted"]) == (4, 5)


def test_lists_are_left_out_above_the_limit_and_numbers_stay() -> None:
    count = MAX_LISTED_CELLS + 1
    body = {"ranks": _ranks([("a", [1] * count, True)], param=0), "max_norm": 1, "lr": 1}
    got = answer(body)
    assert got["global_norm"] == pytest.approx(math.sqrt(count), rel=1e-12)
    assert got["applied"] is got["param_after"] is got["squares"] is got["unscaled"] is None
    assert got["clipped_norm"] == pytest.approx(1, rel=1e-12)


# --- refusals name the field


REFUSED_BODIES = [
    *(
        ({"ranks": ranks, "max_norm": 1}, *told)
        for ranks, *told in [
            (_ranks([("a", [1], True)], [("a", [1], True)]), "ranks.1.0.owner", "rank 1", "“a”"),
            (_ranks([("b", [1], True)], [("a", [1], False)]), "ranks.1.0.owner", "rank 1", "“a”"),
            (_ranks([("a", [1], True), ("a", [1], False)]), "ranks.0.1.id", "rank 0", "“a”"),
            (_ranks([("a", [1], True)], [("a", [1, 2], False)]), "ranks.1.0.grad", "rank 1", "“a”"),
            (_ranks([("a", [1, "1/0"], True)]), "ranks.0.0.grad.1", "denominator"),
            (_ranks([("a", [1, "x"], True)]), "ranks.0.0.grad.1", "not a number"),
            (_ranks([("a", [10**400], True)]), "ranks.0.0.grad.0", "float64"),
            (_ranks([("a", [True], True)]), "ranks.0.0.grad.0", "number"),
            (_ranks([("a", [math.inf], True)]), "ranks.0.0.grad.0", "finite"),
            ([], "ranks"),
            ([[{"id": "a", "grad": [1], "owner": 1}]], "ranks.0.0.owner"),
            ([[{"id": "a", "grad": [1], "owner": True, "extra": 1}]], "ranks.0.0.extra"),
            ([[{"id": "a", "grad": [1], "owner": True, "param": [1, 2]}]], "ranks.0.0.param", "“a”", "1 value"),
            ([[{"id": "a", "grad": [1], "owner": True, "param": ["nan"]}]], "ranks.0.0.param.0", "finite"),
        ]
    ),
    *changed(
        {"ranks": _ranks([("a", [1], True)]), "max_norm": 1},
        [
            ({"max_norm": -1}, "max_norm"),
            ({"loss_scale": 0}, "loss_scale"),
            ({"eps": "-1e-6"}, "eps"),
            ({"norm_type": 0}, "norm_type"),
            ({"norm_type": "-inf"}, "norm_type"),
            ({"norm_type": "two"}, "norm_type"),
            ({"lr": "nan"}, "lr"),
            ({"max_norm": True}, "max_norm"),
        ],
    ),
]


def test_param_is_given_for_all_copies_or_for_none() -> None:
    ranks = _ranks([("a", [1], True)], [("b", [1], True)], param=1)
    del ranks[1][0]["param"]
    assert refusal({"ranks": ranks, "max_norm": 1}).path == ("ranks", 1, 0, "param")


@pytest.mark.parametrize(
    ("grads", "change", "field"),
    [
        ([1e308], {"loss_scale": "1e-10"}, "loss_scale"),  # gradient too large
        ([1.7e308, 1.7e308], {}, "ranks"),  # its norm
        ([1.0, 1.0], {"norm_type": "1e-4"}, "ranks"),  # 2^10000
        ([1.7e308], {"eps": "1.7e308"}, "eps"),
        ([1e300], {"lr": "1e300", "max_norm": "1e308"}, "lr"),
    ],
)
def test_a_result_beyond_float64_is_refused_and_never_infinity(grads: list[float], change: Body, field: str) -> None:
    body = {"ranks": _ranks([("a", grads, True)], param=1), "max_norm": 1, "lr": 1}
    assert refusal(body | change).field == field


# --- the panel


def test_the_panels_defaults_show_the_sources_own_example() -> None:
    got = view()
    assert (got["selected"], got["decision"]) == ("global_owner", "update")
    assert (got["current"]["norm"], got["current"]["coefficient"]) == (5, 0.2)
    assert [row["gradient"] for row in got["rows"]] == [3, 4]
    assert [row["scaled"] for row in got["rows"]] == [24, 32]
    assert [row["applied"] for row in got["rows"]] == pytest.approx([0.6, 0.8], rel=1e-12)
    assert [row["param_after"] for row in got["rows"]] == pytest.approx([0.94, 0.92], rel=1e-12)
    assert ([row["param"] for row in got["rows"]], got["loss_scale"], got["lr"]) == ([1, 1], 8, 0.1)
    assert got["current"] == got["schemes"]["global_owner"]
    assert [square["square"] for square in got["squares"]] == [9, 16]


def test_the_panel_is_the_posted_case_with_and_without_the_copy() -> None:
    for case, fields in (("C-01", {}), ("C-02", {"replicated": "96"})):
        posted = answer(cases()[case]["inputs"])
        assert {name: view(**fields)[name] for name in posted} == posted


def test_clipping_each_rank_alone_gives_another_direction_and_norm_root_two() -> None:
    got = view(scheme="per_rank")
    assert got["current"]["norm"] == [3, 4]
    assert [row["applied"] for row in got["rows"]] == pytest.approx([1, 1], rel=1e-12)
    assert got["current"]["clipped_norm"] == pytest.approx(math.sqrt(2), rel=1e-12)


def test_counting_every_copy_of_the_replicated_gradient_gives_root_313_instead_of_13() -> None:
    got = view(replicated="96", scheme="every_copy")
    assert got["global_norm"] == 13
    assert got["current"]["norm"] == pytest.approx(math.sqrt(313), rel=1e-12)
    assert got["current"]["clipped_norm"] == pytest.approx(13 / math.sqrt(313), rel=1e-12)  # too strict: below 1
    assert [(s["rank"], s["id"], s["square"], s["counted_by_owner"]) for s in got["squares"]] == [
        (0, "a", 9, True),
        (0, "shared", 144, True),
        (1, "b", 16, True),
        (1, "shared", 144, False),
    ]
    assert sum(s["share"] for s in got["squares"]) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("scheme", ["global_owner", "per_rank", "every_copy"])
@pytest.mark.parametrize("rank", ["0", "1"])
def test_an_overflow_on_either_rank_stops_every_scheme(scheme: str, rank: str) -> None:
    got = view(scheme=scheme, overflow=rank, replicated="96")
    assert got["decision"] == "skip_all_ranks"
    assert got["global_norm"] == "inf"
    assert {row["applied"] for row in got["rows"]} == {row["coefficient"] for row in got["rows"]} == {None}
    assert {row["param_after"] for row in got["rows"]} == {1}
    shown = next(row for row in got["rows"] if row["rank"] == int(rank))
    assert (shown["scaled"], shown["gradient"], shown["reason"]) == ("inf", "inf", "non_finite")


def test_ranks_may_hold_several_values_and_non_finite_ones() -> None:
    got = view(gradients="8,-inf\n16", param="2")
    assert [(row["rank"], row["element"], row["scaled"]) for row in got["rows"]] == [
        (0, 0, 8),
        (0, 1, "-inf"),
        (1, 0, 16),
    ]
    assert got["decision"] == "skip_all_ranks"


REFUSED_FIELDS = {
    "overflow": [("2", "no_such_rank"), ("-1", "rank_type"), ("0.5", "rank_type")],
    "gradients": [
        ("24;", "blank"),
        ("", "blank"),
        ({"gradients": "1e308;1e308;1e308;1e308", "loss_scale": "1"}, "number_range"),
    ],
    "replicated": [("inf", "finite_number"), ("1;2", "too_long")],
    "loss_scale": [({"gradients": "1e308", "loss_scale": "1e-9"}, "number_range")],
    "lr": [("", "blank")],
}


@pytest.mark.parametrize("blank", ["", " ", "none"])
def test_blank_optional_fields_are_not_given(blank: str) -> None:
    assert view(overflow=blank, replicated="" if blank == "none" else blank) == view()


def test_the_tables_have_a_row_a_shard_and_the_global_norm() -> None:
    for result in [asked.panel(**fields) for fields in ({"replicated": "96"}, {"overflow": "0"})]:
        tables = result.tables()
        assert len(tables[0].rows) in (2, 4)
        assert ("global_norm", result.global_norm) in tables[1].rows


# --- properties

UNHURRIED = settings(deadline=None)
"""The first call into torch is slow."""

VALUES = st.one_of(st.just(0.0), st.floats(1e-4, 1e4), st.floats(-1e4, -1e-4))
NORM_TYPES = st.sampled_from([1, 2, 3, "1/2", "2.5", "inf"])
THRESHOLDS = st.one_of(st.just(0.0), st.floats(1e-3, 1e5))


COMPARABLE = st.one_of(st.floats(1, 9), st.floats(-9, -1))


@st.composite
def layouts(draw: st.DrawFn, values: Any = VALUES, copies_agree: bool = True, smallest: int = 0) -> list[list[Body]]:
    """One to four ranks with one to six gradients, each held by some of them and owned by one of these."""
    count = draw(st.integers(1, 4))
    ranks: list[list[Body]] = [[] for _ in range(count)]
    for index in range(draw(st.integers(1, 6))):
        holders = draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True))
        grad = draw(st.lists(values, min_size=smallest, max_size=5))
        for rank in holders:
            held = grad if copies_agree else draw(st.lists(values, min_size=len(grad), max_size=len(grad)))
            ranks[rank].append({"id": f"g{index}", "grad": held, "owner": rank == holders[0], "param": [1] * len(held)})
    return ranks


def owned(ranks: list[list[Body]]) -> list[tuple[str, list[float]]]:
    return [(copy["id"], copy["grad"]) for rank in ranks for copy in rank if copy["owner"]]


def p_norm(values: list[float], norm_type: Any) -> float:
    p = math.inf if norm_type == "inf" else {"1/2": 0.5}.get(norm_type) or float(norm_type)
    return float(torch.linalg.vector_norm(torch.tensor(values, dtype=torch.float64), ord=p)) if values else 0.0


@UNHURRIED
@given(layouts(copies_agree=False), NORM_TYPES)
def test_the_norms_are_those_of_one_vector_with_each_element_once_or_every_copy(
    ranks: list[list[Body]], p: Any
) -> None:
    got = answer({"ranks": ranks, "max_norm": 1, "norm_type": p})
    every = [value for rank in ranks for copy in rank for value in copy["grad"]]
    once = [value for _, grad in owned(ranks) for value in grad]
    assert got["global_norm"] == pytest.approx(p_norm(once, p), rel=1e-11)
    assert got["norm_if_every_copy_counted"] == pytest.approx(p_norm(every, p), rel=1e-11)
    for rank, norm in zip(ranks, got["local_norms"], strict=True):
        assert norm == pytest.approx(p_norm([value for copy in rank for value in copy["grad"]], p), rel=1e-11)


@UNHURRIED
@given(layouts(smallest=1), THRESHOLDS, st.sampled_from([1.0, 2.0, 3.0, math.inf]))
def test_with_eps_1e_6_the_update_is_that_of_clip_grad_norm(ranks: list[list[Body]], limit: float, p: float) -> None:
    parameters = []
    for _, grad in owned(ranks):
        parameters.append(torch.nn.Parameter(torch.ones(len(grad), dtype=torch.float64)))
        parameters[-1].grad = torch.tensor(grad, dtype=torch.float64)
    norm = torch.nn.utils.clip_grad_norm_(parameters, limit, norm_type=p)
    torch.optim.SGD(parameters, lr=0.5).step()
    body = {"ranks": ranks, "max_norm": limit, "norm_type": "inf" if p == math.inf else p, "eps": "1e-6", "lr": 0.5}
    got = answer(body)
    assert got["global_norm"] == pytest.approx(float(norm), rel=1e-11)
    shown = [
        (got["applied"][r][k]["grad"], got["param_after"][r][k]["param"])
        for r, rank in enumerate(ranks)
        for k, copy in enumerate(rank)
        if copy["owner"]
    ]
    for (applied, after), parameter in zip(shown, parameters, strict=True):
        assert parameter.grad is not None
        assert applied == pytest.approx(parameter.grad.tolist(), rel=1e-11)
        assert after == pytest.approx(parameter.tolist(), rel=1e-11, abs=1e-11)
    if got["global_norm"] > 0:
        assert got["torch_clip_grad_norm_coefficient"] == pytest.approx(got["coefficient"], rel=1e-14)


@UNHURRIED
@given(layouts(), NORM_TYPES, st.randoms(use_true_random=False))
def test_the_order_of_ranks_and_the_choice_of_owner_change_nothing(
    ranks: list[list[Body]], p: Any, random: Any
) -> None:
    moved = json.loads(json.dumps(ranks))
    holders: dict[str, list[Body]] = {}
    for copy in (copy for rank in moved for copy in rank):
        holders.setdefault(copy["id"], []).append(copy)
    for copies in holders.values():
        chosen = random.choice(copies)
        for copy in copies:
            copy["owner"] = copy is chosen
    order = random.sample(range(len(ranks)), len(ranks))
    before = answer({"ranks": ranks, "max_norm": 1, "norm_type": p})
    after = answer({"ranks": [moved[r] for r in order], "max_norm": 1, "norm_type": p})
    assert before["copies_agree"]
    for field in ("global_norm", "coefficient", "clipped_norm", "norm_if_every_copy_counted"):
        assert after[field] == pytest.approx(before[field], rel=1e-12)
    assert [after["local_norms"][order.index(r)] for r in range(len(ranks))] == pytest.approx(before["local_norms"])


@UNHURRIED
@given(layouts(), NORM_TYPES)
def test_cutting_a_gradient_into_shards_changes_the_local_norms_only(ranks: list[list[Body]], p: Any) -> None:
    cut = [
        [{**copy, "id": f"{copy['id']}.{i}", "grad": [value], "param": [1]} for i, value in enumerate(copy["grad"])]
        for rank in ranks
        for copy in rank
    ]
    for before, shard in zip((copy for rank in ranks for copy in rank), cut, strict=True):
        assert len(shard) == len(before["grad"])
    whole, shards = (answer({"ranks": body, "max_norm": 1, "norm_type": p}) for body in (ranks, cut))
    for field in ("global_norm", "coefficient", "clipped_norm", "norm_if_every_copy_counted"):
        assert shards[field] == pytest.approx(whole[field], rel=1e-12)


@UNHURRIED
@given(layouts(), THRESHOLDS, st.integers(-200, 200))
def test_the_loss_scale_cancels_and_a_common_factor_carries_over(
    ranks: list[list[Body]], limit: float, power: int
) -> None:
    factor = 2.0**power
    scaled = [[{**copy, "grad": [value * factor for value in copy["grad"]]} for copy in rank] for rank in ranks]
    plain = answer({"ranks": ranks, "max_norm": limit})
    under_scale = answer({"ranks": scaled, "max_norm": limit, "loss_scale": factor})
    assert under_scale["applied"] == plain["applied"]
    larger = answer({"ranks": scaled, "max_norm": limit * factor})
    assert larger["coefficient"] == plain["coefficient"]
    assert larger["clipped_norm"] == plain["clipped_norm"] * factor


@UNHURRIED
@given(layouts(), st.floats(1e-3, 1e5))
def test_the_clipped_norm_is_the_smaller_of_norm_and_threshold(ranks: list[list[Body]], limit: float) -> None:
    got = answer({"ranks": ranks, "max_norm": limit})
    assert got["clipped_norm"] == pytest.approx(min(got["global_norm"], limit), rel=1e-12)
    assert 0 < got["coefficient"] <= 1


@UNHURRIED
@given(layouts(COMPARABLE, smallest=1), st.lists(COMPARABLE, min_size=1, max_size=3))
def test_every_copy_counted_is_wrong_as_soon_as_there_is_a_copy(ranks: list[list[Body]], copied: list[float]) -> None:
    copies = [[{"id": "copied", "grad": copied, "owner": r == 0, "param": copied}] for r in range(2)]
    got = answer({"ranks": [*ranks, *copies], "max_norm": "1e-3"})
    assert got["norm_if_every_copy_counted"] > got["global_norm"]
    assert got["coefficient_if_every_copy_counted"] < got["coefficient"]
    assert got["schemes"]["every_copy"]["clipped_norm"] < got["clipped_norm"]


@UNHURRIED
@given(st.lists(st.lists(COMPARABLE, min_size=1, max_size=4), min_size=2, max_size=5))
def test_clipping_each_of_m_ranks_alone_exceeds_the_threshold_by_root_m(shards: list[list[float]]) -> None:
    ranks = _ranks(*([(f"s{r}", grad, True)] for r, grad in enumerate(shards)))
    got = answer({"ranks": ranks, "max_norm": "1e-4"})
    assert got["norm_after_per_rank_clipping"] == pytest.approx(1e-4 * math.sqrt(len(shards)), rel=1e-12)
    assert got["clipped_norm"] == pytest.approx(1e-4, rel=1e-12)


def decimal_norm(values: list[float], p: int) -> Decimal:
    with localcontext() as context:
        context.prec = 60
        context.Emin, context.Emax = -(10**6), 10**6
        total = sum((abs(Decimal(value)) ** p for value in values), Decimal(0))
        return total ** (Decimal(1) / p) if total else total


EXTREME = st.builds(lambda digits, power: digits * 10.0**power, st.floats(1, 9), st.integers(-307, 306))


@UNHURRIED
@given(st.lists(EXTREME, min_size=1, max_size=5), st.sampled_from([1, 2, 3, 7]))
def test_squares_beyond_float64_do_not_spoil_the_norm(values: list[float], p: int) -> None:
    expected = decimal_norm(values, p)
    got = answer({"ranks": _ranks([("a", values, True)]), "max_norm": 1, "norm_type": p})
    assert got["global_norm"] == pytest.approx(float(expected), rel=1e-12)
    assert got["coefficient"] == pytest.approx(min(1.0, float(1 / expected)), rel=1e-12)
    assert got["clipped_norm"] == pytest.approx(min(1.0, float(expected)), rel=1e-12)


@pytest.mark.parametrize("size", [1e300, 1e-300, 5e-324])
def test_gradients_near_the_ends_of_float64_are_clipped_to_the_threshold(size: float) -> None:
    ranks = _ranks([("a", [3 * size, 0], True)], [("b", [4 * size], True)])
    got = answer({"ranks": ranks, "max_norm": size})
    assert got["global_norm"] == pytest.approx(5 * size, rel=1e-15)
    assert got["coefficient"] == pytest.approx(0.2, rel=1e-15)
    tiny = answer({"ranks": _ranks([("a", [3e300], True)], [("b", [4e300], True)]), "max_norm": "5e-20"})
    assert tiny["applied"][0][0]["grad"] == pytest.approx([3e-20], rel=1e-12)  # although c = 1e-320 has lost digits


@pytest.mark.parametrize("p", ["1e-3", "1e-300", "1000", "1e300"])
def test_a_single_value_is_its_own_norm_for_every_p(p: str) -> None:
    assert answer({"ranks": _ranks([("a", [-3], True)]), "max_norm": 1, "norm_type": p})["global_norm"] == 3


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    ranks = source.randint(1, 4)
    held: list[list[Body]] = [[] for _ in range(ranks)]
    for i in range(source.randint(1, 6)):
        holders = source.sample(range(ranks), source.randint(1, ranks))
        size = source.randint(1, 3)
        for r in holders:
            grad = [
                source.choice(["inf", "nan", -1]) if source.random() < 0.02 else quarters(source) for _ in range(size)
            ]
            held[r].append({"id": f"p{i}", "grad": grad, "owner": r == holders[0], "param": quarters(source, size)})
    return {
        "ranks": held,
        "max_norm": source.choice([0, 1, "0.5", 1000]),
        "loss_scale": source.choice([1, 8, "0.3"]),
        "norm_type": source.choice([1, 2, 3, "2.5", "inf"]),
        "eps": source.choice([0, "1e-6", 1]),
        "lr": source.choice(["0.1", "-0.1", 0]),
    }


PROGRAM = Program(
    prints=["global_norm", "coefficient", "decision", "schemes.per_rank.param_after.1.0.param"],
    planted=("[24]", "[25]"),
    bodies=any_body,
)
