"""What every term of a loss weighs, against float64 autograd of the loop that each recipe stands for."""

import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.kit import Answer, Asked, Body, Program

asked = Asked("loss_terms")
answer, view = asked.answer, asked.view
Tensor = torch.Tensor


# --- an independent run: every unit's loss is a leaf; DDP's mean is what divides by P


class Rank:
    """What one rank knows in one microstep: its own cell of each term, its own counts, and two reduced ones."""

    def __init__(self, counts: Tensor, t: int, r: int, k: int) -> None:
        self.ranks, self.microsteps = counts.shape[1:]
        self.own, self.main = counts[t], counts[0]
        self.here, self.is_main = (r, k), t == 0


LOOPS: dict[str, Callable[[Tensor, Rank], Tensor]] = {
    "own_global_count": lambda units, at: units.sum() / (at.own.sum() / at.ranks),
    "own_cell_mean": lambda units, at: units.mean() / at.microsteps,
    "own_cell_mean_summed": lambda units, at: units.mean(),
    "own_replica_mean": lambda units, at: units.sum() / at.own[at.here[0]].sum(),
    "first_terms_count": lambda units, at: units.sum() / (at.main.sum() / at.ranks),
    "first_terms_cell": lambda units, at: units.sum() / at.main[at.here] / at.microsteps,
    "global_count_without_P": lambda units, at: units.sum() / at.own.sum(),
    "per_token_loss": lambda units, at: (units.sum() if at.is_main else units.mean()) * at.ranks / at.main.sum(),
    "per_token_loss_corrected": lambda units, at: (
        (units.sum() if at.is_main else units.mean() * at.main[at.here]) * at.ranks / at.main.sum()
    ),
}


def run(body: Body, t: int, recipe: str) -> tuple[float, list[list[list[float]]]]:
    """The term's part of the reduced loss, and what every unit of every cell weighs in it."""
    term = body["terms"][t]
    counts = torch.tensor([one["counts"] for one in body["terms"] if "counts" in one], dtype=torch.float64)
    ranks, microsteps = counts.shape[1:]
    leaves = [
        [torch.full((n,), float(Fraction(s) / max(n, 1)), dtype=torch.float64, requires_grad=True) for n, s in row]
        for row in (zip(*rows, strict=True) for rows in zip(term["counts"], term["sums"], strict=True))
    ]
    coefficient = float(Fraction(term.get("coefficient", 1)))
    loss = torch.zeros((), dtype=torch.float64)
    for r in range(ranks):
        for k in range(microsteps):
            loss = loss + coefficient * LOOPS[recipe](leaves[r][k], Rank(counts, t, r, k)) / ranks
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), [[(leaf.grad if leaf.grad is not None else leaf).tolist() for leaf in row] for row in leaves]


def rectangle(draw: st.DrawFn, ranks: int, microsteps: int, lowest: int) -> list[list[int]]:
    row = st.lists(st.integers(lowest, 6), min_size=microsteps, max_size=microsteps)
    return draw(st.lists(row, min_size=ranks, max_size=ranks))


@st.composite
def bodies(draw: st.DrawFn, lowest: int = 1) -> Body:
    ranks, microsteps = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    terms = []
    for name in ("main", "second", "third")[: draw(st.integers(1, 3))]:
        counts = rectangle(draw, ranks, microsteps, lowest)
        sums = [[n * draw(st.integers(-8, 8)) for n in row] for row in counts]
        coefficient = draw(st.sampled_from(["1", "0.1", "-1/3", "2"]))
        terms.append({"name": name, "coefficient": coefficient, "counts": counts, "sums": sums})
    return {"terms": terms}


@given(bodies())
@settings(max_examples=25, deadline=None)
def test_every_unit_weighs_what_autograd_gives_it(body: Body) -> None:
    schemes = answer(body)["schemes"]
    for name, scheme in schemes.items():
        for t, term in enumerate(scheme["terms"]):
            value, weights = run(body, t, name)
            assert term["value"] == pytest.approx(value, rel=1e-10, abs=1e-12)
            for row, expected in zip(term["weights"], weights, strict=True):
                for weight, units in zip(row, expected, strict=True):
                    assert [weight] * len(units) == pytest.approx(units, rel=1e-12)
            every = [weight for row in weights for units in row for weight in units]
            assert term["total_weight"] == pytest.approx(sum(every), rel=1e-10)
            assert term["uniform"] is (max(every) - min(every) < 1e-12)


@given(bodies(lowest=0))
@settings(max_examples=30, deadline=None)
def test_a_recipe_is_undefined_exactly_where_its_loop_divides_by_nothing(body: Body) -> None:
    schemes = answer(body)["schemes"]
    for name, scheme in schemes.items():
        for t, term in enumerate(scheme["terms"]):
            if not sum(map(sum, body["terms"][t]["counts"])) and name in ("own_global_count", "global_count_without_P"):
                assert (term["value"], term["reason"]) == (0, "zero_count")
                continue
            value, _ = run(body, t, name)
            assert term["defined"] is (value == value and abs(value) != float("inf"))
            assert term["reason"] in (["empty_cell", "zero_count"] if not term["defined"] else [None, "zero_count"])


@given(bodies())
@settings(max_examples=25, deadline=None)
def test_the_reference_is_the_sum_of_the_terms_own_means_and_the_first_scheme_meets_it(body: Body) -> None:
    found = answer(body)
    means = [
        Fraction(sum(map(sum, term["sums"])), sum(map(sum, term["counts"]))) * Fraction(term["coefficient"])
        for term in body["terms"]
    ]
    assert Fraction(found["reference"]["value_exact"]) == sum(means)
    right = found["schemes"]["own_global_count"]
    assert right["value_exact"] == found["reference"]["value_exact"]
    assert right["matches_reference"] is True
    for name, scheme in found["schemes"].items():
        weights = [[Fraction(w) for row in term["weights_exact"] for w in row] for term in scheme["terms"]]
        wanted = [Fraction(term["coefficient"]) / sum(map(sum, term["counts"])) for term in body["terms"]]
        every = all(w == one for row, one in zip(weights, wanted, strict=True) for w in row)
        assert scheme["matches_reference"] is every, name


def test_a_multiple_of_one_with_uneven_weights_is_another_objective() -> None:
    body = {"terms": [{"name": "ce", "counts": [[2], [8]], "sums": [[2], [8]]}]}
    scheme = answer(body)["schemes"]["own_cell_mean"]
    assert scheme["ratio_to_reference"] == 1
    assert (scheme["terms"][0]["multiple_exact"], scheme["terms"][0]["uniform"]) == ("1", False)
    assert scheme["matches_reference"] is False


def term(name: str, counts: Any, sums: Any, **more: Any) -> Body:
    return {"name": name, "counts": counts, "sums": sums, **more}


def test_a_term_without_any_unit_has_no_mean_and_is_left_out() -> None:
    found = answer(terms=[term("ce", [[2, 2]], [[4, 4]]), term("kl", [[0, 0]], [[0, 0]])])
    assert found["reference"] | {"reason": None} == {
        "defined": True,
        "reason": None,
        "value": 2,
        "value_exact": "2",
        "means": [2, None],
        "means_exact": ["2", None],
    }
    assert found["schemes"]["own_global_count"]["matches_reference"] is True
    assert found["schemes"]["own_cell_mean"]["reason"] == "empty_cell"


def test_a_window_without_any_unit_has_no_objective() -> None:
    found = answer(terms=[term("ce", [[0], [0]], [[0], [0]])])
    assert (found["reference"]["value"], found["reference"]["reason"]) == (None, "zero_count")
    assert all(scheme["value"] is None and scheme["reason"] for scheme in found["schemes"].values())
    assert found["penalty"]["inside_the_global_count"]["reason"] == "zero_count"


def test_a_coefficient_of_zero_has_no_multiple() -> None:
    found = answer(terms=[term("ce", [[2]], [[4]]), term("kl", [[3]], [[6]], coefficient=0)])
    kl = found["schemes"]["first_terms_count"]["terms"][1]
    assert (kl["multiple"], kl["reason"], kl["total_weight"], kl["uniform"]) == (None, "zero_reference", 0, True)
    assert found["schemes"]["first_terms_count"]["matches_reference"] is True


@pytest.mark.parametrize(("ranks", "microsteps"), [(1, 1), (3, 2), (2, 5)])
def test_a_penalty_counts_as_often_as_a_loop_adds_it(ranks: int, microsteps: int) -> None:
    """A walk over replicas and microsteps that adds the penalty where each way says so."""
    counts = [[r + k + 1 for k in range(microsteps)] for r in range(ranks)]
    body = {"terms": [term("ce", counts, counts), {"name": "l2", "coefficient": "1/4", "value": 6}]}
    total = sum(map(sum, counts))
    added = {
        "once": 1.5,
        "every_microstep_divided_by_K": sum(sum(1.5 / microsteps for _ in range(microsteps)) for _ in counts) / ranks,
        "every_microstep_then_ddp_mean": sum(sum(1.5 for _ in range(microsteps)) for _ in counts) / ranks,
        "every_replica_then_sum": sum(1.5 for _ in counts),
        "every_microstep_then_sum": sum(1.5 for row in counts for _ in row),
        "inside_the_global_count": sum(1.5 for row in counts for _ in row) / total,
    }
    found = answer(body)["penalty"]
    assert {name: way["value"] for name, way in found.items()} == pytest.approx(added)
    assert {name for name, way in found.items() if way["matches_reference"]} >= {"once", "every_microstep_divided_by_K"}


def test_recipes_may_be_mixed_one_for_each_term() -> None:
    terms = [term("ce", [[4], [4]], [[8], [4]]), term("balance", [[4], [4]], [[2], [6]], coefficient="0.5")]
    mixed = [{"name": "mine", "recipes": ["own_global_count", "global_count_without_P"]}]
    found = answer(terms=terms, mixed=mixed)["schemes"]
    assert found["mine"]["terms"][0] == found["own_global_count"]["terms"][0]
    assert found["mine"]["terms"][1]["multiple_exact"] == "1/2"
    assert found["mine"]["matches_reference"] is False
    shown = asked.calculator.present(asked.calculator.inputs.model_validate({"terms": terms, "mixed": mixed}), "mine")
    assert shown.model_dump()["current"]["recipes"] == mixed[0]["recipes"]


def test_a_large_window_agrees_with_the_same_one_in_fractions() -> None:
    """4,097 cells are float64, the first 4,096 of them exact; a last cell without units changes no term."""
    source = random.Random(7)
    counts = [source.randint(1, 9) for _ in range(4_096)]
    sums = [n * source.randint(-8, 8) / 4 for n in counts]

    def body(extra: list[int]) -> Body:
        return {
            "terms": [
                term("ce", [counts + extra], [sums + extra]),
                term("kl", [[2 * n for n in counts] + extra], [sums + extra], coefficient="0.1"),
            ]
        }

    exact, rounded = answer(body([])), answer(body([0]))
    assert exact["reference"]["value_exact"] is not None
    assert rounded["reference"]["value_exact"] is None
    for name in ("own_global_count", "first_terms_count", "global_count_without_P"):
        expected, got = exact["schemes"][name], rounded["schemes"][name]
        assert got["value"] == pytest.approx(expected["value"], rel=1e-12)
        assert [t["uniform"] for t in got["terms"]] == [t["uniform"] for t in expected["terms"]]
        assert got["matches_reference"] is expected["matches_reference"]
    full = answer(terms=[term("ce", [[n] * 2 for n in counts], [[s] * 2 for s in sums])])["schemes"]
    assert full["own_cell_mean"]["value"] == pytest.approx(
        sum(s / n for s, n in zip(sums, counts, strict=True)) / 4_096
    )
    assert full["own_cell_mean"]["terms"][0]["multiple"] == pytest.approx(1, rel=1e-12)
    assert full["own_cell_mean"]["terms"][0]["uniform"] is False


def test_the_panel_shows_the_body_that_its_fields_stand_for() -> None:
    shown: Answer = view(
        penalty="6", coefficient="1/2", counts="2,4;1,3", sums="1,2;3,4", second_counts="", second_sums=""
    )
    assert (shown["names"], shown["penalty_names"], shown["penalties"]) == (["main"], ["penalty"], 6)
    assert view()["current"]["terms"][1]["multiple_exact"] == "256"


ONE = term("ce", [[2]], [[4]])


REFUSED_BODIES = [
    ({"terms": []}, "terms"),
    ({"terms": [{"name": "l2", "value": 6}]}, "terms"),
    ({"terms": [{"name": "ce", "counts": [[2]]}]}, "terms.0.sums"),
    ({"terms": [{"name": "ce", "sums": [[2]]}]}, "terms.0.counts"),
    ({"terms": [{"counts": [[2]], "sums": [[2]]}]}, "terms.0.name"),
    ({"terms": [ONE | {"name": ""}]}, "terms.0.name"),
    ({"terms": [ONE | {"value": 3}]}, "terms.0.value"),
    ({"terms": [ONE, ONE]}, "terms.1.name"),
    ({"terms": [ONE | {"coefficient": "nan"}]}, "terms.0.coefficient"),
    ({"terms": [term("ce", [], [])]}, "terms.0.counts"),
    ({"terms": [term("ce", [[2, 3], [4]], [[1, 2], [3]])]}, "terms.0.counts"),
    ({"terms": [term("ce", [[2]], [[1, 2]])]}, "terms.0.sums"),
    ({"terms": [ONE, term("kl", [[2, 1]], [[1, 1]])]}, "terms.1.counts"),
    ({"terms": [term("ce", [[1, -2]], [[1, 1]])]}, "terms.0.counts.0.1"),
    ({"terms": [term("ce", [[1, 1.5]], [[1, 1]])]}, "terms.0.counts.0.1"),
    ({"terms": [term("ce", [[1], [10**13]], [[1], [1]])]}, "terms.0.counts.1.0"),
    ({"terms": [term("ce", [[1], [10**30]], [[1], [1]])]}, "terms.0.counts.1.0"),
    ({"terms": [term("ce", [[1], [2]], [[1], ["inf"]])]}, "terms.0.sums.1.0"),
    ({"terms": [term("ce", [[1], [0]], [[1], [3]])]}, "terms.0.sums.1.0"),
    ({"terms": [term("ce", [[1]] * 4097, [[1]] * 4097)]}, "terms.0.counts"),
    ({"terms": [term("ce", [[1]], [["1e308"]], coefficient="1e10")]}, "terms.0.sums.0.0"),
    ({"mixed": [{"name": "mine", "recipes": ["own_global_count"]}]}, "mixed.0.recipes"),
    ({"mixed": [{"name": "mine", "recipes": ["own_global_count", "half"]}]}, "mixed.0.recipes.1"),
    ({"mixed": [{"name": "own_cell_mean", "recipes": ["own_global_count"] * 2}]}, "mixed.0.name"),
    ({"penalty": 3}, "penalty"),
]


REFUSED_FIELDS = {
    "counts": ["8;8,1", "8;x", "8;-8"],
    "sums": ["1", "nan;1"],
    "second_counts": ["1.5;2", ""],
    "second_sums": ["", "1;2;3", {"second_counts": "0;2"}],
    "coefficient": [""],
    "penalty": ["x"],
    "scheme": ["half"],
}


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    ranks, microsteps = source.randint(1, 3), source.randint(1, 3)
    terms: list[Body] = []
    for name in ("ce", "kl", "z")[: source.randint(1, 3)]:
        counts = [[source.choice([0, 1, 2, 3, 5]) for _ in range(microsteps)] for _ in range(ranks)]
        sums = [[n * source.randint(-8, 8) / 4 for n in row] for row in counts]
        terms.append(term(name, counts, sums, coefficient=source.choice([1, 0.1, -0.5])))
    recipes = [source.choice(list(LOOPS)) for _ in terms]
    if source.random() < 0.5:
        terms.append({"name": "l2", "coefficient": 0.25, "value": source.randint(0, 9)})
    if all(not sum(map(sum, one["counts"])) for one in terms if "counts" in one):
        terms[0] = term("ce", [[1] * microsteps] * ranks, [[2] * microsteps] * ranks)
    return {"terms": terms, "mixed": [{"name": "mine", "recipes": recipes}]}


PROGRAM = Program(
    prints=["schemes.first_terms_count.value", "schemes.first_terms_count.terms.1.multiple", "reference.value"],
    planted=("[[2048], [2048]]", "[[2048], [1024]]"),
    bodies=any_body,
)
