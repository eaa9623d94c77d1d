"""InfoNCE against the worked cases, the sources' numbers, and everything that must be refused."""

import json
import math
import random
import tracemalloc
from decimal import Decimal, localcontext
from itertools import chain
from typing import Any

import numpy as np
import pytest

from samestep.app.calculators import info_nce
from tests.kit import Asked, Body, Program, agrees, cases

asked = Asked("info_nce")
answer, view, refusal, view_refusal = asked.answer, asked.view, asked.refusal, asked.view_refusal

PAIR: dict[str, Any] = {"q": [[[1]], [[2]]], "d": [[[1]], [[-1]]]}
DETACHED = "local_loss_remote_detached"


@pytest.mark.parametrize("case", cases("infonce").values(), ids=lambda case: case["id"])
def test_worked_cases_come_out_within_their_tolerance(case: dict[str, Any]) -> None:
    got = answer(**case["inputs"])
    agrees(got, case["expected"], **case["tolerance"])
    assert list(got["schemes"]) == list(case["expected"]["schemes"])


@pytest.mark.parametrize("case", cases("infonce").values(), ids=lambda case: case["id"])
def test_an_answer_holds_the_fields_of_the_cases_and_the_verdict_on_the_log_scale(case: dict[str, Any]) -> None:
    got = answer(**case["inputs"])
    assert set(got["reference"]) == set(case["expected"]["reference"])
    for name, scheme in case["expected"]["schemes"].items():
        assert set(got["schemes"][name]) == {*scheme, "log_scale_matches_reference"}


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_summing_backward_gives_p_times_the_own_slice_and_the_loss_times_p_repairs_it(ranks: int) -> None:
    gather = cases()["N-11"]["expected"][f"P={ranks}"]
    rows = np.random.default_rng(ranks).standard_normal((2, ranks, 1, 3)).tolist()
    schemes = answer(q=rows[0], d=rows[1])["schemes"]
    summed, own = schemes["global_loss_gather_with_grad"], schemes["global_loss_remote_detached"]
    ratio = gather["after_ddp_mean_sum_backward"] / gather["after_ddp_mean_own_slice"]
    assert ratio == ranks
    assert summed["matches_reference"]
    assert not own["matches_reference"]
    for field in ("grad_wq", "grad_wd"):
        assert summed[field] == pytest.approx(ratio * own[field], rel=1e-13)
        assert schemes["global_loss_remote_detached_times_P"][field] == pytest.approx(summed[field], rel=1e-13)


def test_the_default_panel_shows_the_sources_numbers() -> None:
    shown = view()
    assert shown["selected"] == DETACHED
    assert shown["current"] == shown["schemes"][DETACHED]
    assert shown["reference"]["loss"] == pytest.approx(2.072539, abs=5e-7)
    assert shown["current"]["mean_rank_loss"] == pytest.approx(2.072539, abs=5e-7)
    assert shown["current"]["max_abs_diff_grad_d"] == pytest.approx(0.982014, abs=5e-7)
    agrees(
        shown["documents"],
        [{"kept": -0.059601, "full": 0.922412}, {"kept": -0.982014, "full": -0.922412}],
        rtol=0,
        atol=5e-7,
    )
    probabilities = [row["probabilities"] for row in shown["table"]]
    agrees(probabilities, [[0.880797, 0.119203], [0.982014, 0.017986]], rtol=0, atol=5e-7)
    assert [row["logits"] for row in shown["table"]] == [[1, -1], [2, -2]]


def test_the_panel_shows_the_weight_gradients_before_the_mean() -> None:
    for scheme, wd in (("local_loss_gather_with_grad", [1.844825, 1.844825]), (DETACHED, [-0.119203, 1.964028])):
        shown = view(scheme=scheme)
        ranks = shown["ranks"]
        agrees([rank["loss"] for rank in ranks], [0.126928, 4.018150], rtol=0, atol=5e-7)
        agrees([rank["grad_wq"] for rank in ranks], [-0.238406, 3.928055], rtol=0, atol=5e-7)
        agrees([rank["grad_wd"] for rank in ranks], wd, rtol=0, atol=5e-7)
        assert shown["current"]["grad_wd"] == pytest.approx(sum(wd) / 2, abs=1e-6)
        assert shown["current"]["grad_wq"] == pytest.approx(1.844825, abs=5e-7)


@pytest.mark.parametrize("direction", ["q2d", "bidirectional"])
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_what_queries_send_adds_up_to_the_full_document_gradient(direction: str, similarity: str) -> None:
    shown = view(
        q="1,2;0.5,-1;-1,0.3", d="0.4,1;2,-1;-0.5,-0.5", ranks="2,1", direction=direction, similarity=similarity
    )
    sums = np.sum(shown["contributions"], axis=1)
    full = [document["full"] for document in shown["documents"]]
    np.testing.assert_allclose(sums, full, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(np.concatenate(shown["reference"]["grad_d"]), full, rtol=1e-15)
    np.testing.assert_allclose([sum(row["probabilities"]) for row in shown["table"]], 1, rtol=1e-14)


def test_the_panel_and_a_body_with_the_same_numbers_agree() -> None:
    shown = view(q="1,2;0.5,-1;-1,0.3", d="0.4,1;2,-1;-1/2,-0.5", ranks="2,1", tau="0.3")
    body = answer(q=[[[1, 2], [0.5, -1]], [[-1, "0.3"]]], d=[[["0.4", 1], [2, -1]], [["-1/2", -0.5]]], tau="0.3")
    assert {name: shown[name] for name in body} == body


def test_large_states_leave_out_the_single_queries_with_the_reason() -> None:
    rows = ";".join(str(k % 7) for k in range(65))
    shown = view(q=rows, d=rows)
    assert shown["table"] is None
    assert shown["contributions"] is None
    assert shown["documents"] is None
    assert shown["reason"] == "too_large"
    assert len(shown["ranks"]) == 65


def test_a_state_reads_back_from_its_own_text() -> None:
    query = info_nce.Query.model_validate({"q": "1,1/3\n2,0", "d": "1,2;3,4", "ranks": "1,1"})
    text = query.model_dump(mode="json")
    assert text["q"] == "1,1/3;2,0"
    assert text["ranks"] == "1,1"
    assert info_nce.Query.model_validate(text) == query


def test_equal_loss_and_query_gradients_do_not_prove_the_document_gradients() -> None:
    asymmetric = answer(q=[[[1, 0.2]], [[2, -1]], [[0.3, 1]]], d=[[[1, 0]], [[-1, 0.5]], [[0.2, 0.8]]])
    reference, detached = asymmetric["reference"], asymmetric["schemes"][DETACHED]
    assert detached["mean_rank_loss"] == pytest.approx(reference["loss"], rel=1e-14)
    assert detached["max_abs_diff_grad_q"] == 0
    assert not detached["matches_reference"]
    # on the sources' fixture the detached wd is exactly half the right one, because d0 = −d1; not here
    assert abs(detached["grad_wd"] / reference["grad_wd"] - 1 / 3) > 0.05


def test_of_the_named_schemes_these_are_right_and_those_are_wrong() -> None:
    rng = np.random.default_rng(1)
    schemes = answer(q=rng.standard_normal((3, 2, 4)).tolist(), d=rng.standard_normal((3, 2, 4)).tolist())["schemes"]
    right = {name for name, scheme in schemes.items() if scheme["matches_reference"]}
    right_scale = {name for name, scheme in schemes.items() if scheme["log_scale_matches_reference"]}
    assert right == {
        "local_loss_gather_with_grad",
        "global_loss_gather_with_grad",
        "global_loss_remote_detached_times_P",
    }
    assert right_scale == {
        "local_loss_gather_with_grad",
        "local_loss_remote_detached",
        "global_loss_gather_with_grad",
        "global_loss_remote_detached",
    }


def test_with_unequal_counts_only_the_global_count_gives_the_full_objective() -> None:
    body = {"q": [[[1, 0], [0, 1]], [[1, 1]]], "d": [[[1, 0.5], [0.5, 1]], [[-1, 1]]]}
    schemes = answer(
        **body,
        schemes=[
            {"name": "means", "gather": "grad_sum", "loss": "local"},
            {"name": "count", "gather": "grad_sum", "loss": "local", "normalization": "P_over_global_count"},
            {"name": "sums", "gather": "grad_sum", "normalization": "sum", "multiplier": "1/3", "reduction": "sum"},
            {"name": "sums_mean", "gather": "grad_sum", "normalization": "sum", "multiplier": "1/3"},
        ],
    )["schemes"]
    assert {name: scheme["matches_reference"] for name, scheme in schemes.items()} == {
        "means": False,
        "count": True,
        "sums": True,
        "sums_mean": False,
    }


def test_the_running_query_number_points_to_a_wrong_column_once_ranks_ship_hard_negatives() -> None:
    schemes = [
        {"name": labels, "gather": "grad_sum", "loss": "local", "labels": labels}
        for labels in ("correct", "global_query_index")
    ]
    body: dict[str, Any] = {"q": [[[1, 0]], [[0, 1]]], "d": [[[1, 0]], [[0, 1]]], "schemes": schemes}
    without = answer(**body)["schemes"]
    assert without["correct"]["matches_reference"]
    assert without["global_query_index"]["matches_reference"]
    shipped = answer(**body, hard_negatives=[[[0.5, 0.5]], []])
    assert shipped["schemes"]["correct"]["matches_reference"]
    assert not shipped["schemes"]["global_query_index"]["matches_reference"]
    # rank 1's query takes column 1, the hard negative of rank 0, for its document
    assert shipped["schemes"]["global_query_index"]["rank_losses"][0] == shipped["schemes"]["correct"]["rank_losses"][0]
    assert shipped["schemes"]["global_query_index"]["rank_losses"][1] > shipped["schemes"]["correct"]["rank_losses"][1]


def test_hard_negatives_have_gradients_of_their_own_and_none_that_is_not_shipped() -> None:
    got = answer(**PAIR, hard_negatives=[[[0.5], [0.25]], []])
    assert [len(rank) for rank in got["reference"]["grad_h"]] == [2, 0]
    assert got["schemes"][DETACHED]["max_abs_diff_grad_h"] > 1e-3
    shared = sum(
        value[0] * weight
        for gradient, weights in (("grad_d", [1, -1]), ("grad_h", [0.5, 0.25]))
        for value, weight in zip(chain.from_iterable(got["reference"][gradient]), weights, strict=True)
    )
    assert got["reference"]["grad_wd"] == pytest.approx(shared, rel=1e-14)
    assert "grad_h" not in answer(**PAIR)["reference"]


def test_cached_accumulation_is_right_for_vectors_and_counts_the_log_scale_once_a_chunk() -> None:
    rng = np.random.default_rng(2)
    body = {"q": rng.standard_normal((4, 2, 3)).tolist(), "d": rng.standard_normal((4, 2, 3)).tolist()}
    cached = {"gather": "cached_accumulation", "loss": "global"}
    got = answer(**body, schemes=[{"name": "whole", **cached}, {"name": "divided", "divide_by": "P", **cached}])
    reference, whole, divided = got["reference"], got["schemes"]["whole"], got["schemes"]["divided"]
    assert whole["matches_reference"]
    assert not whole["log_scale_matches_reference"]
    assert whole["grad_log_scale"] == pytest.approx(4 * reference["grad_log_scale"], rel=1e-13)
    assert not divided["matches_reference"]
    assert divided["grad_wq"] == pytest.approx(reference["grad_wq"] / 4, rel=1e-13)
    assert divided["log_scale_matches_reference"]
    assert divided["rank_losses"] == pytest.approx([reference["loss"] / 4] * 4, rel=1e-14)


def test_microbatches_of_one_pair_have_no_negatives_and_exactly_no_gradient() -> None:
    scheme = answer(**PAIR)["schemes"]["local_negatives_only"]
    numbers = [scheme["mean_rank_loss"], scheme["grad_wq"], scheme["grad_log_scale"], *scheme["rank_losses"]]
    assert numbers == [0.0] * len(numbers)
    assert "-0.0" not in json.dumps(scheme)


def test_a_gradient_of_1e_minus_12_keeps_its_digits() -> None:
    got = answer(**PAIR, tau="0.07")
    with localcontext() as context:  # ∂L/∂q0 = (1/2τ)·(p − 1)·2 with p = 1/(1 + e^(−2/τ))
        context.prec = 60
        scale = 1 / Decimal("0.07")
        exact = -scale / (1 + (2 * scale).exp())
    assert got["reference"]["grad_q"][0][0][0] == pytest.approx(float(exact), rel=1e-13, abs=0)
    assert got["schemes"][DETACHED]["rank_losses"][0] == pytest.approx(float((-2 * scale).exp()), rel=1e-12, abs=0)


def test_gradients_that_are_nothing_beside_one_term_match_whatever_made_them() -> None:
    # at τ = 0.01 a term of ∂L/∂d is of the size 1/τ = 100 and the gradient of the size 1e-84: the schemes differ in
    # what they make of it, and no step could tell
    got = answer(q=[[[1]], [[-1]]], d=[[[1]], [[-1]]], tau="0.01")
    schemes = got["schemes"]
    assert 0 < abs(got["reference"]["grad_d"][0][0][0]) < 1e-16
    assert schemes[DETACHED]["max_abs_diff_grad_d"] > 0.1 * abs(got["reference"]["grad_d"][0][0][0])
    for scheme in schemes.values():
        assert scheme["matches_reference"]
        assert scheme["log_scale_matches_reference"]


def test_small_gradients_are_still_told_apart_far_above_the_rounding() -> None:
    got = answer(q=[[[1]], [[-1]]], d=[[[1]], [[-1]]], tau="0.1")  # gradients of 2e-8, terms of 10
    assert abs(got["reference"]["grad_d"][0][0][0]) < 1e-7
    assert got["schemes"]["local_loss_gather_with_grad"]["matches_reference"]
    assert not got["schemes"][DETACHED]["matches_reference"]


@pytest.mark.parametrize(("multiplier", "same"), [("1.0000001", False), ("0.9999999", False), ("1.0000000001", True)])
@pytest.mark.parametrize("tau", [0.5, 1, 1e6])
def test_a_difference_counts_from_1e_minus_8_of_the_gradient(multiplier: str, same: bool, tau: float) -> None:
    scheme = {"name": "s", "gather": "grad_sum", "multiplier": multiplier}
    found = answer(q=[[[1]], [[-1]]], d=[[[1]], [[-1]]], tau=tau, schemes=[scheme])["schemes"]["s"]
    assert found["matches_reference"] is same
    assert found["log_scale_matches_reference"] is same


def test_duplicates_whose_gradients_cancel_match_only_where_nothing_is_left_over() -> None:
    same = [[[1.0, 0.1]], [[1.0, 0.1]], [[1.0, 0.1]]]
    schemes = answer(q=same, d=same, tau=0.05)["schemes"]
    assert schemes["local_loss_gather_with_grad"]["matches_reference"]
    assert not schemes[DETACHED]["matches_reference"]


def test_logits_of_8e6_stay_finite_and_exact() -> None:
    got = answer(q=[[[20]], [[40]]], d=[[[20]], [[-20]]], tau=1e-4)
    # query 1 has the logits 8e6 and −8e6, the second being its own: loss 1.6e7, p = (1, 0)
    scheme = got["schemes"][DETACHED]
    assert scheme["rank_losses"] == [0.0, 1.6e7]
    assert got["reference"]["loss"] == 8e6
    assert got["reference"]["grad_q"] == [[[0.0]], [[1e4 * 40 / 2]]]
    assert got["reference"]["grad_d"] == [[[1e4 * 40 / 2]], [[-1e4 * 40 / 2]]]


def test_small_differences_between_logits_of_8e6_keep_their_digits() -> None:
    # similarities 800 + 2^-13 and 800 are exact; so is their difference, 1.220703125 after the scale
    got = answer(q=[[[1]], [[1]]], d=[[[800 + 2**-13]], [[800]]], tau="0.0001")
    difference = 2**-13 * 1e4
    expected = [math.log1p(math.exp(-difference)), math.log1p(math.exp(difference))]
    assert got["schemes"][DETACHED]["rank_losses"] == pytest.approx(expected, rel=1e-13)


def test_a_logit_1e4_below_the_largest_has_its_loss_although_its_probability_is_0() -> None:
    got = answer(q=[[[1]], [[1]]], d=[[[0]], [[1e4]]])
    assert got["schemes"][DETACHED]["rank_losses"] == [1e4, 0.0]


def test_the_temperature_and_its_log_scale_say_the_same() -> None:
    by_tau = answer(**PAIR, tau=0.25)
    by_log = answer(**PAIR, logit_scale_log=math.log(4))
    agrees(by_log, by_tau, rtol=1e-14, atol=1e-15)
    agrees(answer(**PAIR), answer(**PAIR, tau=1), rtol=0, atol=0)


def test_squares_beyond_float64_do_not_spoil_a_cosine() -> None:
    small, large = [[[3, 4]], [[-1, 2]]], [[[3e200, 4e200]], [[-1e200, 2e200]]]
    one, other = (answer(q=q, d=small, similarity="cosine") for q in (small, large))
    assert other["reference"]["loss"] == pytest.approx(one["reference"]["loss"], rel=1e-14)
    assert other["reference"]["grad_q"][0][0][0] == pytest.approx(
        one["reference"]["grad_q"][0][0][0] * 1e-200, rel=1e-13, abs=0
    )


def test_the_largest_finite_losses_have_a_finite_mean() -> None:
    scheme = {"name": "huge", "gather": "grad_sum", "loss": "global", "multiplier": 280_000_000}
    huge = answer(q=[[[1]], [[1]]], d=[[[0]], [[1e300]]], schemes=[scheme])["schemes"]["huge"]
    assert huge["rank_losses"] == pytest.approx([1.4e308, 1.4e308])
    assert huge["mean_rank_loss"] == pytest.approx(1.4e308)


NAN, INF = math.nan, math.inf
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "ragged dimensions in q": ({"q": [[[1, 2]], [[2]]]}, "q"),
    "ragged dimensions in d": ({"d": [[[1]], [[-1, 3]]]}, "d"),
    "other dimensions in d": ({"d": [[[1, 0]], [[-1, 0]]]}, "d"),
    "other dimensions in hard negatives": ({"hard_negatives": [[[1, 0]], []]}, "hard_negatives"),
    "too few documents on a rank": ({"q": [[[1], [3]], [[2]]]}, "d.0"),
    "too many documents on a rank": ({"d": [[[1]], [[-1], [2]]]}, "d.1"),
    "too few ranks in d": ({"d": [[[1]]]}, "d"),
    "too many ranks in hard negatives": ({"hard_negatives": [[], [], []]}, "hard_negatives"),
    "no rank": ({"q": [], "d": []}, "q"),
    "no query": ({"q": [[], []], "d": [[], []]}, "q"),
    "a rank without queries": ({"q": [[[1]], []], "d": [[[1]], []]}, "q.1"),
    "no dimension": ({"q": [[[]], [[]]], "d": [[[]], [[]]]}, "q"),
    "a flat list": ({"q": [1, 2]}, "q"),
    "a number": ({"q": 1}, "q"),
    "true": ({"q": [[[True]], [[2]]]}, "q"),
    "null": ({"d": [[[None]], [[2]]]}, "d"),
    "NaN": ({"d": [[[NAN]], [[2]]]}, "d"),
    "the text nan": ({"d": [[["nan"]], [[2]]]}, "d"),
    "infinity": ({"hard_negatives": [[[INF]], []]}, "hard_negatives"),
    "an integer beyond float64": ({"q": [[[10**400]], [[2]]]}, "q"),
    "a text that is no number": ({"q": [[["1,5"]], [[2]]]}, "q"),
    "tau 0": ({"tau": 0}, "tau"),
    "tau below 0": ({"tau": "-0.1"}, "tau"),
    "tau true": ({"tau": True}, "tau"),
    "tau NaN": ({"tau": NAN}, "tau"),
    "the smallest tau": ({"tau": 5e-324}, "tau"),
    "a tau near float64's limit": ({"tau": 1e308}, "tau"),
    "a log scale beyond float64": ({"logit_scale_log": 1e6}, "logit_scale_log"),
    "both scales": ({"tau": 1, "logit_scale_log": 0}, "logit_scale_log"),
    "logits beyond float64": ({"tau": 1e-200, "q": [[[1e200]], [[2]]]}, "tau"),
    "similarities beyond float64": ({"q": [[[1e200]], [[2]]], "d": [[[1e200]], [[-1]]]}, "tau"),
    "gradients beyond float64": ({"logit_scale_log": 600, "q": [[[1e-100]], [[1e-100]]], "d": [[[1]], [[1e100]]]}, ""),
    "a zero vector under cosine": ({"similarity": "cosine", "d": [[[1]], [[0]]]}, "d.1.0"),
    "a zero hard negative under cosine": (
        {"similarity": "cosine", "hard_negatives": [[], [[1], [0]]]},
        "hard_negatives.1.1",
    ),
    "a name twice": (
        {"schemes": [{"name": "a", "gather": "grad_sum"}, {"name": "a", "gather": "none"}]},
        "schemes.1.name",
    ),
    "the global loss without a gather": (
        {"schemes": [{"name": "a", "gather": "none", "loss": "global"}]},
        "schemes.0.loss",
    ),
    "a divisor 0": ({"schemes": [{"name": "a", "gather": "grad_sum", "divide_by": 0}]}, "schemes.0.divide_by"),
    "a multiplier true": (
        {"schemes": [{"name": "a", "gather": "grad_sum", "multiplier": True}]},
        "schemes.0.multiplier",
    ),
    "a scheme beyond float64": (
        {"schemes": [{"name": "a", "gather": "grad_sum", "multiplier": 1e308, "divide_by": 1e-308}]},
        "schemes.0",
    ),
    "too many queries": ({"q": [[[1]] * 4097], "d": [[[1]] * 4097]}, "q"),
    "too many ranks": ({"q": [[[1]]] * 4097, "d": [[[1]]] * 4097}, "q"),
    "too many dimensions": ({"q": [[[1] * 257]], "d": [[[1] * 257]]}, "q"),
    "too many hard negatives": ({"hard_negatives": [[[1]] * 12_289, []]}, "hard_negatives"),
    "a gradient list beyond the limit": (
        {
            "q": [[[1.0] * 256] * 4096],
            "d": [[[1.0] * 256] * 4096],
            "schemes": [{"name": str(k), "gather": "grad_sum"} for k in range(9)],
        },
        "schemes",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_computed_is_refused_by_the_name_of_its_field(what: str) -> None:
    change, field = REFUSED[what]
    error = refusal({**PAIR, **change})
    assert ".".join(map(str, error.path)) == (field or "logit_scale_log")
    assert error.en
    assert error.zh
    assert error.en != error.zh
    assert any("一" <= letter <= "鿿" for letter in error.zh)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"q": [[[1, 2]], [[2]]]}, "[1][0] "),
        ({"q": [[[1]], [[2], [3], [True]]]}, "[1][2][0] "),
        ({"d": [[[1, 2]], [[3, "x"]]]}, "[1][0][1] "),
        ({"d": [[[1, 2]], [[10**400, 1]]]}, "[1][0][0] "),
    ],
)
def test_a_wrong_number_is_named_by_its_place(change: dict[str, Any], place: str) -> None:
    error = refusal({**PAIR, **change})
    assert error.en.startswith(place)
    assert error.zh.startswith(place)


def test_a_scheme_with_an_unknown_word_is_refused() -> None:
    for change in ({"gather": "all"}, {"loss": "both"}, {"extra": 1}, {"labels": "none"}, {"normalization": "mean"}):
        body = {**PAIR, "schemes": [{"name": "a", "gather": "grad_sum", **change}]}
        assert refusal(body).path[:2] == ("schemes", 0)


REFUSED_FIELDS = {
    "q": ["1;2,3", "1;", "nan;1"],
    "d": [{"q": "1;2;3"}, {"q": "1,2;3,4"}],
    "tau": [
        "0",
        "",
        "5e-324",
        {"q": "1e200;1", "d": "1e200;1"},
        {"q": "1e150;1e150", "d": "1e150;1e150", "tau": "1e-10"},
    ],
    "ranks": ["3", "1.5,0.5", "2,0"],
    "q.0.0": [{"similarity": "cosine", "q": "0;1"}],
}


def test_logits_beyond_float64_are_refused_with_the_temperature_even_where_all_results_are_finite() -> None:
    # all logits are 1e310, so every loss is ln 2 and no gradient is left; but nobody could say what rounding is there,
    # and a panel would have to show the logits
    same = [[[1e150], [1e150]]]
    assert refusal({"q": same, "d": same, "tau": "1e-10"}).path == ("tau",)
    assert view_refusal(q="1e150;1e150", d="1e150;1e150", tau="1e-10", ranks="2").path == ("tau",)
    assert answer(q=same, d=same, tau="1e-7")["reference"]["loss"] == pytest.approx(math.log(2))


def test_numbers_may_be_decimal_texts_and_fractions() -> None:
    texts = {"q": [[["1"]], [["4/2"]]], "d": [[["1.0"]], [["-1e0"]]], "tau": "1/2"}
    assert answer(**texts) == answer(**PAIR, tau=0.5)


def test_one_array_a_rank_is_read_like_lists() -> None:
    rng = np.random.default_rng(3)
    q, d = (rng.standard_normal((3, 2, 4)) for _ in range(2))
    computed = info_nce.compute(info_nce.Inputs.model_validate({"q": list(q), "d": list(d)}))
    assert computed.model_dump(mode="json") == answer(q=q.tolist(), d=d.tolist())


def test_inputs_and_results_read_back_from_their_json() -> None:
    inputs = info_nce.Inputs.model_validate({**PAIR, "hard_negatives": [[], [[0.5]]], "tau": "1/3"})
    again = info_nce.Inputs.model_validate_json(inputs.model_dump_json(exclude_none=True))
    result = info_nce.compute(inputs)
    assert info_nce.compute(again).model_dump_json() == result.model_dump_json()
    assert info_nce.Result.model_validate_json(result.model_dump_json()).model_dump_json() == result.model_dump_json()


def test_gradients_can_be_walked_like_lists() -> None:
    gradients = info_nce.compute(info_nce.Inputs.model_validate({**PAIR, "hard_negatives": [[], [[0.5], [1]]]}))
    hard = gradients.reference.grad_h
    assert hard is not None
    assert [len(rank) for rank in hard] == [0, 2]
    assert hard[-1] == hard[1:][0] == hard.nested()[1]
    with pytest.raises(IndexError):
        hard[2]


def test_the_tables_hold_every_scheme_rank_and_vector() -> None:
    view = asked.panel()
    tables = {table.header[:2]: table for table in view.tables()}
    assert [row[0] for row in tables["scheme", "mean_rank_loss"].rows] == ["reference", *view.schemes]
    assert len(tables["scheme", "rank"].rows) == 2 * len(view.schemes)
    assert len(tables["scheme", "gradient"].rows) == 4 * (1 + len(view.schemes))
    assert tables["query", "document"].rows[0][:3] == (0, 0, 1.0)
    assert tables["query", "document"].rows[0][3] == pytest.approx(0.8807970779778823)


def test_the_csv_of_a_panel_holds_what_every_query_sends_to_every_document() -> None:
    shown = asked.panel(q="1,2;3,4", d="5,6;7,8", tau="4")
    table = next(table for table in shown.tables() if table.header[:2] == ("document", "query"))
    assert table.header == ("document", "query", "contribution_0", "contribution_1")
    sent = view(q="1,2;3,4", d="5,6;7,8", tau="4")["contributions"]
    assert table.rows == [(j, i, *sent[j][i]) for j in range(2) for i in range(2)]
    full = view(q="1,2;3,4", d="5,6;7,8", tau="4")["reference"]["grad_d"]
    for j in range(2):
        parts = [row[2:] for row in table.rows if row[0] == j]
        assert [sum(column) for column in zip(*parts, strict=True)] == pytest.approx(full[j][0])


# --- the sigmoid loss


RAGGED: dict[str, Any] = {"q": [[[1, 0.5]], [[2, -1], [0.3, 1]]], "d": [[[1, 1]], [[-1, 2], [0.5, 0.1]]]}


def test_a_sigmoid_exchange_is_right_for_ranks_of_equal_size_and_needs_the_global_count_for_others() -> None:
    local = {"name": "local", "gather": "grad_sum"}
    counted = {"name": "counted", "gather": "grad_sum", "normalization": "P_over_global_count"}
    body = {"loss_form": "sigmoid", "logit_bias": -1, "schemes": [local, counted]}
    equal, ragged = (answer(pairs, **body)["schemes"] for pairs in (PAIR, RAGGED))
    assert equal["local"]["matches_reference"]
    assert equal["counted"]["matches_reference"]
    assert not ragged["local"]["matches_reference"]
    assert ragged["counted"]["matches_reference"]


def test_pairs_that_are_told_apart_keep_all_digits_of_loss_and_gradient() -> None:
    got = answer(q=[[[1]]], d=[[[1]]], loss_form="sigmoid", tau="1/100")["reference"]
    assert got["loss"] == pytest.approx(math.exp(-100), rel=1e-12)
    assert got["grad_bias"] == pytest.approx(-math.exp(-100), rel=1e-12)
    far = answer(q=[[[1]]], d=[[[-1]]], loss_form="sigmoid", tau="1e-8")["reference"]
    assert (far["loss"], far["grad_bias"]) == (1e8, -1)


def test_a_bias_cancels_under_softmax_and_has_no_gradient_there() -> None:
    plain, moved = (answer(PAIR, logit_bias=bias) for bias in (0, -10))
    assert plain == moved
    assert "grad_bias" not in plain["reference"]


def test_the_panel_of_the_sigmoid_loss_shows_the_probability_of_every_pair() -> None:
    got = view(loss_form="sigmoid", logit_bias="-1")
    assert got["table"][0]["logits"] == [0, -2]
    assert got["table"][0]["probabilities"] == pytest.approx([0.5, 1 / (1 + math.exp(2))])
    sent = [sum(parts) for parts in got["contributions"]]
    assert sent == pytest.approx([got["reference"]["grad_d"][j][0][0] for j in range(2)])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"direction": "bidirectional"}, "direction"),
        ({"hard_negatives": [[[1]], []]}, "hard_negatives"),
        ({"loss_form": "hinge"}, "loss_form"),
        ({"logit_bias": "nan"}, "logit_bias"),
        ({"logit_bias": None}, "logit_bias"),
    ],
)
def test_what_the_sigmoid_loss_does_not_take_is_refused_by_name(change: Body, field: str) -> None:
    assert refusal({**PAIR, "loss_form": "sigmoid", **change}).field == field
    assert field == "hard_negatives" or change[field] is None or view_refusal(**{"loss_form": "sigmoid", **change})


def test_the_schema_carries_the_limits() -> None:
    schema = info_nce.Inputs.model_json_schema()["properties"]
    ranks = schema["q"]
    assert ranks["maxItems"] == 4096
    assert ranks["items"]["maxItems"] == 4096
    assert ranks["items"]["items"]["maxItems"] == 256
    for example in info_nce.Inputs.model_json_schema()["examples"]:
        answer(**example)


def test_the_table_of_logits_is_never_held_whole() -> None:
    queries = 2048
    rng = np.random.default_rng(4)
    q, d = (np.split(rng.standard_normal((queries, 8)), 64) for _ in range(2))
    inputs = info_nce.Inputs.model_validate({"q": q, "d": d})
    tracemalloc.start()
    info_nce.compute(inputs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < queries * queries * 8


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    counts = [source.randint(1, 3) for _ in range(source.randint(1, 3))]

    def some() -> list[float]:
        return [source.gauss(0, 1) for _ in range(3)]

    both = [[[some() for _ in range(count)] for count in counts] for _ in range(2)]
    more: Body = {}
    pairwise = source.random() < 0.4
    if not pairwise and source.random() < 0.6:
        more["hard_negatives"] = [
            [[source.gauss(0, 1) for _ in range(3)] for _ in range(r % 3)] for r in range(len(counts))
        ]
    more |= source.choice([{"tau": "0.2"}, {"logit_scale_log": "1.5"}, {}])

    def scheme(i: int) -> Body:
        gather = source.choice(["grad_sum", "detach_keep_local", "detach_all_docs", "none", "cached_accumulation"])
        return {
            "name": f"s{i}",
            "gather": gather,
            "loss": "local" if gather == "none" else source.choice(["local", "global"]),
            "multiplier": source.choice([1, "P", "1/3"]),
            "normalization": source.choice(["local_mean", "P_over_global_count", "sum"]),
            "labels": source.choice(["correct", "global_query_index"]),
            "reduction": source.choice(["mean", "sum"]),
            "divide_by": source.choice([1, "P", 7]),
        }

    return {
        "q": both[0],
        "d": both[1],
        "similarity": source.choice(["dot", "cosine"]),
        "direction": source.choice(["q2d", "bidirectional"]),
        "schemes": [scheme(i) for i in range(6)],
        **more,
        **({"loss_form": "sigmoid", "logit_bias": "-2", "direction": "q2d"} if pairwise else {}),
    }


PROGRAM = Program(
    prints=["reference.loss", "reference.grad_d", "schemes.local_loss_remote_detached.grad_wd"],
    planted=("[[-1]]", "[[-1.0001]]"),
    bodies=any_body,
)
