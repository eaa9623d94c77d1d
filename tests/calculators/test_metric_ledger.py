"""Metrics of batches and ranks against exact fractions, and against torch on the items one by one."""

import random
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from samestep.app.calculators.metric_ledger.results import METRICS
from samestep.app.contract.limits import MAX_EXACT_CELLS
from tests.kit import Answer, Asked, Body, Program

asked = Asked("metric_ledger")
answer, view, view_refusal = asked.answer, asked.view, asked.view_refusal
Cells = list[list[dict[str, Any]]]


def schemes(cells: Cells, **more: Any) -> Answer:
    got: Answer = answer(cells=cells, **more)["schemes"]
    return got


# --- against the items one by one


@st.composite
def filled(draw: st.DrawFn) -> Cells:
    """Batches that all hold something, ranks with different numbers of them."""

    def cell() -> dict[str, Any]:
        n, repeats = draw(st.integers(1, 6)), draw(st.integers(0, 3))
        return {
            "n": n,
            "loss": draw(st.integers(-8, 24)) / 8,
            "correct": draw(st.integers(0, n)),
            "tp": draw(st.integers(0, 4)),
            "fp": draw(st.integers(0, 4)),
            "fn": draw(st.integers(1, 4)),
            "repeated_n": repeats,
            "repeated_loss": draw(st.integers(0, 24)) / 8,
            "repeated_correct": draw(st.integers(0, repeats)),
        }

    return [[cell() for _ in range(draw(st.integers(1, 3)))] for _ in range(draw(st.integers(1, 4)))]


def losses_of(cell: dict[str, Any], repeats: bool = True) -> list[Fraction]:
    new = [Fraction(cell["loss"])] * cell["n"]
    return new + [Fraction(cell["repeated_loss"])] * cell["repeated_n"] if repeats else new


def hits_of(cell: dict[str, Any], repeats: bool = True) -> list[Fraction]:
    def hits(right: int, n: int) -> list[Fraction]:
        return [Fraction(1)] * right + [Fraction(0)] * (n - right)

    new = hits(cell["correct"], cell["n"])
    return new + hits(cell["repeated_correct"], cell["repeated_n"]) if repeats else new


def mean(values: list[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)


def joined(lists: list[list[Fraction]]) -> list[Fraction]:
    return [value for values in lists for value in values]


@given(filled())
@settings(max_examples=60, deadline=None)
def test_losses_and_accuracies_are_means_of_lists_of_items(cells: Cells) -> None:
    got = schemes(cells)
    for of, pooled, repeated, batchwise, rankwise in (
        (losses_of, "token_mean", "token_mean_with_repeats", "mean_of_batch_means", "mean_of_rank_means"),
        (
            hits_of,
            "accuracy_pooled",
            "accuracy_with_repeats",
            "accuracy_mean_of_batches",
            "accuracy_mean_of_ranks",
        ),
    ):
        batches = [[of(cell) for cell in rank] for rank in cells]
        expected = {
            pooled: mean(joined([of(cell, False) for rank in cells for cell in rank])),
            repeated: mean(joined([joined(rank) for rank in batches])),
            batchwise: mean([mean(batch) for rank in batches for batch in rank]),
            rankwise: mean([mean(joined(rank)) for rank in batches]),
        }
        if of is losses_of:
            expected["mean_of_rank_batch_means"] = mean([mean([mean(batch) for batch in rank]) for rank in batches])
            expected["sum_of_rank_means"] = len(cells) * expected[rankwise]
            expected["sum_of_batch_means"] = sum(mean(batch) for rank in batches for batch in rank)
            expected["rank_zero"] = mean(joined(batches[0]))
        for name, value in expected.items():
            assert Fraction(got[name]["value_exact"]) == value
            assert got[name]["matches_reference"] is (value == expected[pooled])


@given(filled())
@settings(max_examples=60, deadline=None)
def test_perplexities_are_torchs_exponentials_of_items_in_these_groups(cells: Cells) -> None:
    batches = [[torch.tensor(list(map(float, losses_of(cell))), dtype=torch.float64) for cell in r] for r in cells]
    flat, ranks = [batch for rank in batches for batch in rank], [torch.cat(rank) for rank in batches]
    new = torch.tensor([float(x) for r in cells for cell in r for x in losses_of(cell, False)], dtype=torch.float64)
    of_batches, of_ranks = (torch.stack([group.mean() for group in groups]) for groups in (flat, ranks))
    expected = {
        "perplexity_of_token_mean": new.mean().exp(),
        "perplexity_of_batch_mean": of_batches.mean().exp(),
        "perplexity_of_rank_mean": of_ranks.mean().exp(),
        "mean_of_batch_perplexities": of_batches.exp().mean(),
        "mean_of_rank_perplexities": of_ranks.exp().mean(),
        "token_weighted_perplexity": torch.cat([batch.mean().exp().expand(len(batch)) for batch in flat]).mean(),
    }
    got = schemes(cells)
    for name, value in expected.items():
        assert got[name]["value"] == pytest.approx(value.item(), rel=1e-12)
        right = expected["perplexity_of_token_mean"].item()
        assert got[name]["matches_reference"] is (abs(value.item() - right) < 1e-9 * right)


@given(filled())
@settings(max_examples=40, deadline=None)
def test_f1_is_the_harmonic_mean_of_precision_and_recall_where_both_exist(cells: Cells) -> None:
    def score(counted: list[dict[str, Any]]) -> Fraction:
        tp, fp, fn = (sum(cell[name] for cell in counted) for name in ("tp", "fp", "fn"))
        if not tp:
            return Fraction(0)
        precision, recall = Fraction(tp, tp + fp), Fraction(tp, tp + fn)
        return 2 * precision * recall / (precision + recall)

    got = schemes(cells)
    flat = [cell for rank in cells for cell in rank]
    assert Fraction(got["f1_pooled"]["value_exact"]) == score(flat)
    assert Fraction(got["f1_mean_of_batches"]["value_exact"]) == mean([score([cell]) for cell in flat])
    assert Fraction(got["f1_mean_of_ranks"]["value_exact"]) == mean([score(rank) for rank in cells])


@given(filled(), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_only_the_right_ones_stay_when_the_batches_are_dealt_otherwise(cells: Cells, seed: int) -> None:
    flat = [cell for rank in cells for cell in rank]
    random.Random(seed).shuffle(flat)
    one, other = schemes(cells), schemes([flat])
    for names in METRICS.values():
        assert one[names[0]]["value"] == pytest.approx(other[names[0]]["value"], rel=1e-12)


def test_a_mean_of_perplexities_is_never_below_the_perplexity_and_differs_for_unequal_batches() -> None:
    got = schemes([[{"n": 4, "loss": 1}, {"n": 4, "loss": 2}]])
    assert got["mean_of_batch_means"]["matches_reference"] is True
    assert got["mean_of_batch_perplexities"]["matches_reference"] is False
    assert got["mean_of_batch_perplexities"]["ratio_to_reference"] > 1
    alike = schemes([[{"n": 4, "loss": "1/3"}], [{"n": 1, "loss": "1/3"}]])
    assert all(scheme["matches_reference"] for name, scheme in alike.items() if not name.startswith("sum_of_"))


# --- empty batches and ranks

HOLE: Cells = [[{"n": 2, "loss": 1, "correct": 1}, {"n": 0}], [{"n": 0}], [{"n": 2, "loss": 4, "correct": 2}]]


@pytest.mark.parametrize(
    ("empty", "expected"),
    [
        ("undefined", {}),
        (
            "skip",
            {
                "mean_of_batch_means": "5/2",
                "mean_of_rank_means": "5/2",
                "mean_of_rank_batch_means": "5/2",
                "sum_of_rank_means": "5",
                "sum_of_batch_means": "5",
                "accuracy_mean_of_batches": "3/4",
            },
        ),
        (
            "zero",
            {
                "mean_of_batch_means": "5/4",
                "mean_of_rank_means": "5/3",
                "mean_of_rank_batch_means": "3/2",
                "sum_of_rank_means": "5",
                "sum_of_batch_means": "5",
                "accuracy_mean_of_batches": "3/8",
            },
        ),
    ],
)
def test_an_empty_batch_is_undefined_left_out_or_zero_and_pooling_does_not_mind(
    empty: str, expected: dict[str, str]
) -> None:
    got = schemes(HOLE, empty=empty)
    for name in (
        "mean_of_batch_means",
        "mean_of_rank_means",
        "mean_of_rank_batch_means",
        "sum_of_rank_means",
        "sum_of_batch_means",
        "accuracy_mean_of_batches",
    ):
        assert (got[name]["value_exact"], got[name]["reason"]) == (
            (expected[name], None) if name in expected else (None, "empty_cell")
        )
    assert got["token_mean"]["value_exact"] == "5/2"
    assert got["accuracy_pooled"]["value_exact"] == "3/4"
    assert got["rank_zero"]["value_exact"] == "1"
    assert got["token_weighted_perplexity"]["defined"] is True


def test_a_rank_without_any_batch_is_an_empty_rank() -> None:
    got = schemes([[], [{"n": 2, "loss": 3}]])
    assert (got["rank_zero"]["reason"], got["mean_of_rank_means"]["reason"]) == ("empty_cell", "empty_cell")
    assert got["mean_of_batch_means"]["value"] == 3
    zero = schemes([[], [{"n": 2, "loss": 3}]], empty="zero")
    assert (zero["rank_zero"]["value"], zero["mean_of_rank_batch_means"]["value"]) == (0, 1.5)


@pytest.mark.parametrize("empty", ["undefined", "skip", "zero"])
def test_without_any_item_nothing_is_defined(empty: str) -> None:
    got = answer(cells=[[{"n": 0, "correct": 0, "tp": 0}], []], empty=empty)
    assert got["log_perplexity"] is None
    assert {(scheme["defined"], scheme["reason"]) for scheme in got["schemes"].values()} == {(False, "zero_count")}


def test_repeats_alone_have_a_mean_and_no_right_one_to_compare_with() -> None:
    got = schemes([[{"n": 0, "repeated_n": 2, "repeated_loss": 3}]])
    assert (got["token_mean"]["reason"], got["token_mean_with_repeats"]["value"]) == ("zero_count", 3)
    assert got["token_mean_with_repeats"]["ratio_to_reference"] is None
    assert got["token_mean_with_repeats"]["matches_reference"] is False


def test_a_batch_without_positives_has_no_f1_though_it_has_items() -> None:
    cells: Cells = [[{"n": 3, "tp": 1, "fp": 1, "fn": 0}], [{"n": 3, "tp": 0, "fp": 0, "fn": 0}]]
    assert schemes(cells)["f1_mean_of_ranks"]["reason"] == "empty_cell"
    assert schemes(cells, empty="skip")["f1_mean_of_ranks"]["value_exact"] == "2/3"
    assert schemes(cells, empty="zero")["f1_mean_of_ranks"]["value_exact"] == "1/3"


# --- the optimised loss, zero, and the ends of float64


def test_a_loss_is_also_compared_with_the_one_that_the_gradient_follows() -> None:
    cells: Cells = [[{"n": 12, "loss": "1/4"}], [{"n": 4, "loss": "3/4"}]]
    got = schemes(cells, optimised="mean_of_rank_means")
    assert got["token_mean"]["over_optimised"] == 0.75
    assert got["mean_of_rank_means"]["over_optimised"] == 1
    assert got["perplexity_of_token_mean"]["over_optimised"] is None


def test_a_right_value_of_zero_has_no_ratio() -> None:
    got = schemes([[{"n": 1, "loss": 1}], [{"n": 1, "loss": -1}]])
    assert (got["rank_zero"]["ratio_to_reference"], got["rank_zero"]["reason"]) == (None, "zero_reference")
    assert got["mean_of_rank_means"]["matches_reference"] is True


def test_a_perplexity_beyond_float64_is_null_and_its_logarithm_stays() -> None:
    got = answer(cells=[[{"n": 1, "loss": 2}], [{"n": 1, "loss": 1600}]])
    assert got["log_perplexity"] == 801
    for name in METRICS["perplexity"]:
        scheme = got["schemes"][name]
        assert (scheme["defined"], scheme["value"], scheme["reason"]) == (False, None, "non_finite")
    assert got["schemes"]["token_mean"]["value"] == 801


def test_many_batches_agree_with_torch_in_float64() -> None:
    source = random.Random(3)
    cells: Cells = [
        [{"n": source.randint(1, 9), "loss": source.random(), "correct": 1, "tp": 1, "fp": 2, "fn": 0}] * (1 + (r == 9))
        for r in range(MAX_EXACT_CELLS)
    ]
    got = schemes(cells)
    columns = [[float(cell[name]) for row in cells for cell in row] for name in ("n", "loss")]
    n, loss = torch.tensor(columns, dtype=torch.float64)
    assert got["token_mean"]["value_exact"] is None
    assert got["token_mean"]["value"] == pytest.approx(((n * loss).sum() / n.sum()).item(), rel=1e-12)
    assert got["mean_of_batch_perplexities"]["value"] == pytest.approx(loss.exp().mean().item(), rel=1e-12)
    assert got["token_mean_with_repeats"]["matches_reference"] is True
    assert got["mean_of_batch_means"]["matches_reference"] is False
    assert got["f1_mean_of_batches"]["value"] == pytest.approx(0.5)


# --- doors and refusals


def test_the_panel_and_the_body_agree() -> None:
    got = view(counts="2,3;1", losses="1/3,1;2", correct="1,2;0", repeated="0,1;0", repeated_losses="0,5;0")
    cells = [
        [{"n": 2, "loss": "1/3", "correct": 1}, {"n": 3, "loss": 1, "correct": 2, "repeated_n": 1, "repeated_loss": 5}],
        [{"n": 1, "loss": 2, "correct": 0}],
    ]
    posted = answer(cells=cells)
    assert {name: got[name] for name in posted} == posted
    assert (got["metrics"], got["ranks"], got["batches"]) == (["loss", "perplexity", "accuracy"], 2, 3)
    assert [row["items"] for row in got["rows"]] == [6, 1]


def test_a_body_opens_at_the_first_metric_that_it_gives() -> None:
    shown = asked.calculator.present(asked.calculator.inputs(cells=[[{"n": 3, "tp": 1}]]), None).model_dump()
    assert (shown["metrics"], shown["selected"]) == (["f1"], "f1_pooled")
    assert view_refusal(scheme="f1_pooled").field == "scheme"


REFUSED_BODIES = [
    ({"cells": []}, "cells"),
    ({"cells": [[{"loss": 1}]]}, "cells.0.0.n"),
    ({"cells": [[{"n": 1}], [{"n": 1}, {"n": -1}]]}, "cells.1.1.n"),
    ({"cells": [[{"n": 1.5}]]}, "cells.0.0.n"),
    ({"cells": [[{"n": 1, "loss": "inf"}]]}, "cells.0.0.loss"),
    ({"cells": [[{"n": 1, "loss": "x"}]]}, "cells.0.0.loss"),
    ({"cells": [[{"n": 1, "correct": 2}]]}, "cells.0.0.correct"),
    ({"cells": [[{"n": 9, "repeated_n": 1, "repeated_correct": 2}]]}, "cells.0.0.repeated_correct"),
    ({"cells": [[{"n": 1, "tp": "1/2"}]]}, "cells.0.0.tp"),
    ({"cells": [[{"n": 1, "weight": 1}]]}, "cells.0.0.weight"),
    ({"cells": [[{"n": 1}] * 5000 + [{"n": 0.5}]]}, "cells.0.5000.n"),
    ({"cells": [[{"n": 1}]] * 4097}, "cells"),
    ({"cells": [[{"n": 1, "loss": "1.7e308"}], [{"n": 1, "loss": "1.7e308"}]]}, "cells.0.0.loss"),
    ({"cells": [[{"n": 1}]], "empty": "nan"}, "empty"),
    ({"cells": [[{"n": 1}]], "optimised": "f1_pooled"}, "optimised"),
]


REFUSED_FIELDS = {
    "counts": ["1,x", "1;1.5", ""],
    "losses": ["1", "1;inf"],
    "correct": ["1,1;1"],
    "repeated": ["-1;0"],
    "scheme": ["median"],
}


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    empty = source.choice(["undefined", "skip", "zero"])
    least = 1 if empty == "undefined" else 0
    with_accuracy, with_f1 = source.random() < 0.5, source.random() < 0.5

    def cell() -> dict[str, Any]:
        n, repeats = source.randint(least, 4), source.randint(0, 2)
        made: dict[str, Any] = {"n": n, "loss": source.choice(["1/3", 0.5, 2, 0])}
        made |= {"repeated_n": repeats, "repeated_loss": source.choice([1, "0.1"])}
        if with_accuracy:
            made |= {"correct": source.randint(0, n), "repeated_correct": source.randint(0, repeats)}
        return made | ({name: source.randint(least, 3) for name in ("tp", "fp", "fn")} if with_f1 else {})

    ranks = [[cell() for _ in range(source.randint(least, 3))] for _ in range(source.randint(1, 3))]
    optimised = source.choice(["token_mean", "mean_of_rank_means", "rank_zero"])
    return {"cells": ranks, "empty": empty, "optimised": optimised}


PROGRAM = Program(
    prints=["count", "schemes.token_mean.value", "schemes.mean_of_rank_perplexities.ratio_to_reference"],
    planted=('[{"n": 2, "loss": 0}]', '[{"n": 2, "loss": 1}]'),
    bodies=any_body,
)
