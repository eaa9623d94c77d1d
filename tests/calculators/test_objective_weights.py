"""The weights against autograd: losses of single tokens as leaves, the objectives written out as loops over cells."""

from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings, strategies as st
from starlette.testclient import TestClient

from samestep.app.calculators.objective_weights import SCHEMES, Inputs, SchemeName, present
from tests.kit import Answer, Asked, Body, Program

asked = Asked("objective_weights")
view = asked.view

Lengths = list[list[list[int]]]
Losses = list[list[list[torch.Tensor]]]

NAMES = get_args(SchemeName)


def answer(sequences: Lengths | str, **fields: Any) -> Answer:
    return asked.answer(sequences=sequences, **fields)


# --- autograd: every mean as one would write it


def token_mean(cells: list[list[torch.Tensor]], _constant: float) -> torch.Tensor:
    return torch.cat([losses for cell in cells for losses in cell]).mean()


def sequence_mean(cells: list[list[torch.Tensor]], _constant: float) -> torch.Tensor:
    return torch.stack([losses.mean() for cell in cells for losses in cell]).mean()


def constant(cells: list[list[torch.Tensor]], constant: float) -> torch.Tensor:
    return torch.stack([losses.sum() / constant for cell in cells for losses in cell]).mean()


def sample_weighted(cells: list[list[torch.Tensor]], _constant: float) -> torch.Tensor:
    samples = sum(len(cell) for cell in cells)
    return torch.stack([torch.cat(cell).mean() * (len(cell) / samples) for cell in cells]).sum()


MEANS: dict[str, Callable[[list[list[torch.Tensor]], float], torch.Tensor]] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "constant": constant,
    "sample_weighted": sample_weighted,
}


def groups(cells: Losses, placement: str) -> list[list[list[torch.Tensor]]]:
    """The cells that each mean is taken over."""
    if placement == "window":
        return [[cell for row in cells for cell in row]]
    if placement == "replica":
        return cells
    if placement == "microstep":
        return [list(column) for column in zip(*cells, strict=True)]
    return [[cell] for row in cells for cell in row]


def gradients(sequences: Lengths, objective: str, placement: str, c: float) -> list[list[float]]:
    """The derivative of the reduced objective with respect to every token's loss, sequence by sequence."""
    leaves: Losses = [
        [[torch.rand(n, dtype=torch.float64, requires_grad=True) for n in cell] for cell in row] for row in sequences
    ]
    parts = [MEANS[objective](group, c) for group in groups(leaves, placement)]
    torch.stack(parts).mean().backward()
    return [losses.grad.tolist() for row in leaves for cell in row for losses in cell if losses.grad is not None]


@st.composite
def windows(draw: st.DrawFn, lowest: int = 1) -> Lengths:
    replicas, microsteps = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    cell = st.lists(st.integers(1, 6), min_size=lowest, max_size=3)
    return [[draw(cell) for _ in range(microsteps)] for _ in range(replicas)]


@settings(deadline=None, max_examples=25)
@given(windows(), st.integers(1, 9))
def test_a_tokens_weight_is_the_gradient_of_the_objective_by_its_loss(sequences: Lengths, c: int) -> None:
    got = answer(sequences, constant=c)["schemes"]
    lengths = [n for row in sequences for cell in row for n in cell]
    for name, (objective, placement) in SCHEMES.items():
        per_token = gradients(sequences, objective, placement, c)
        for i, (weight, found) in enumerate(zip(got[name]["token_weights"], per_token, strict=True)):
            assert found == pytest.approx([weight] * lengths[i], rel=1e-12)
            assert got[name]["sequence_weights"][i] == pytest.approx(sum(found), rel=1e-12)
            assert float(Fraction(got[name]["token_weights_exact"][i])) == pytest.approx(weight, rel=1e-15)
            exact = Fraction(got[name]["sequence_weights_exact"][i])
            assert exact == lengths[i] * Fraction(got[name]["token_weights_exact"][i])
        assert got[name]["total"] == pytest.approx(sum(map(sum, per_token)), rel=1e-12)


@settings(deadline=None, max_examples=25)
@given(windows(lowest=0))
def test_a_mean_over_nothing_is_undefined_and_no_other(sequences: Lengths) -> None:
    got = answer(sequences)["schemes"]
    leaves: Losses = [[[torch.zeros(n) for n in cell] for cell in row] for row in sequences]
    for name, (objective, placement) in SCHEMES.items():
        parts = groups(leaves, placement)
        if objective == "sample_weighted":  # a token mean of every microbatch, however it is weighed
            filled = all(cell for part in parts for cell in part)
        else:
            filled = all(any(part) for part in parts)
        assert got[name]["defined"] == filled, name
        assert (got[name]["token_weights"] is None) == (not filled)


# --- another partition


def dealt(lengths: list[int], random: Any) -> str:
    """The sequences in any order, in a window of up to 2 × 2 cells none of which is empty."""
    shapes = [(rows, width) for rows in (1, 2) for width in (1, 2) if rows * width <= len(lengths)]
    rows, width = random.choice(shapes)
    cells: list[list[str]] = [[] for _ in range(rows * width)]
    for i, length in enumerate(random.sample(lengths, len(lengths))):
        cells[i if i < len(cells) else random.randrange(len(cells))].append(str(length))
    texts = ["+".join(cell) for cell in cells]
    return ";".join(",".join(texts[r * width : (r + 1) * width]) for r in range(rows))


def weights(got: Answer) -> dict[str, dict[int, Fraction]]:
    """Every scheme's weight of a token, by the length of its sequence."""
    return {
        name: dict(zip(got["lengths"], map(Fraction, scheme["token_weights_exact"]), strict=True))
        for name, scheme in got["schemes"].items()
    }


def test_a_counterexample_holds_and_an_invariant_mean_has_none_among_random_partitions() -> None:
    random = Random(7)
    for _ in range(12):
        lengths = random.sample(range(1, 10), random.randint(2, 5))
        got = answer(dealt(lengths, random))
        here, elsewhere = weights(got), [weights(answer(dealt(lengths, random))) for _ in range(3)]
        changed: dict[str, dict[str, dict[int, Fraction]]] = {}
        for name, scheme in got["schemes"].items():
            found = scheme["counterexample"]
            assert (found is None) == (scheme["stability"] == "invariant")
            if found is None:
                assert all(there[name] == here[name] for there in elsewhere), name
                continue
            cells = found["cells"]
            changed.setdefault(cells, weights(answer(cells)))
            there = changed[cells][name][found["length"]]
            assert there == Fraction(found["token_weight_there_exact"])
            assert there != Fraction(found["token_weight_here_exact"]) == here[name][found["length"]]


def test_only_the_first_three_means_over_the_window_survive() -> None:
    got = answer("4+2,7;8,3")["schemes"]
    survivors = {name for name, scheme in got.items() if scheme["stability"] == "invariant"}
    assert survivors == {"token_mean_over_window", "sequence_mean_over_window", "constant_over_window"}


def test_two_sequences_of_one_length_cannot_tell_the_means_apart() -> None:
    got = answer("4;4")["schemes"]
    assert {scheme["stability"] for scheme in got.values()} == {"invariant"}
    assert answer("4;4;4")["schemes"]["token_mean_over_replica"]["stability"] == "changes"


def test_a_mean_that_is_undefined_here_changes_with_the_partition() -> None:
    scheme = answer("4;0")["schemes"]["token_mean_over_replica"]
    assert (scheme["defined"], scheme["reason"], scheme["stability"]) == (False, "empty_cell", "changes")
    assert scheme["counterexample"]["token_weight_here"] is None
    assert scheme["counterexample"]["token_weight_there_exact"] == "1/4"
    whole = answer("4;0")["schemes"]["token_mean_over_window"]
    assert (whole["defined"], whole["stability"]) == (True, "invariant")


def test_a_window_without_sequences_has_no_objective() -> None:
    got = answer([[[]], [[]]])
    assert {scheme["reason"] for scheme in got["schemes"].values()} == {"zero_count"}
    assert {scheme["stability"] for scheme in got["schemes"].values()} == {None}


def test_what_a_mean_really_is_here() -> None:
    """One sequence a microbatch: weighing by samples is the sequence mean. All in one: the token mean."""
    assert answer("4,2,8")["schemes"]["sample_weighted_over_replica"]["equals"] == ["sequence_mean", "sample_weighted"]
    assert answer("4+2+8")["schemes"]["sample_weighted_over_replica"]["equals"] == ["token_mean", "sample_weighted"]
    assert answer("4+2,8")["schemes"]["sample_weighted_over_replica"]["equals"] == ["sample_weighted"]
    assert answer("4+2,8")["schemes"]["token_mean_over_replica"]["equals"] == ["token_mean"]
    assert "constant" in answer("4,4", constant=4)["schemes"]["sequence_mean_over_window"]["equals"]


def test_the_given_other_partition_is_looked_at_first_and_shown() -> None:
    got = view(sequences="4+2;8", other="4;2+8", scheme="token_mean_over_replica")
    assert got["current"]["counterexample"]["cells"] == "4;2+8"
    assert [row["compared_token_weight_exact"] for row in got["rows"]] == ["1/8", "1/20", "1/20"]
    assert [row["token_weight_exact"] for row in got["rows"]] == ["1/12", "1/12", "1/16"]
    assert [row["window_token_weight_exact"] for row in got["rows"]] == ["1/14", "1/14", "1/14"]
    assert got["compared"]["partition"] == "other"
    alone = view(sequences="4+2;8")
    assert alone["compared"]["partition"] == alone["current"]["counterexample"]["partition"] != "other"


def test_equal_lengths_are_matched_in_order() -> None:
    got = view(sequences="4+4;8", other="4;4+8")
    assert [row["compared_token_weight_exact"] for row in got["rows"]] == ["1/8", "1/24", "1/24"]


# --- what practitioners call them


def test_a_setting_weighs_what_rl_weights_reads_in_its_framework() -> None:
    """Two calculators, two readings of the same sources: each name that both know has the same weights."""
    lengths = [[[4, 2], [8]], [[3], [1, 5]]]
    completions = [[[{"length": n, "group": 0} for n in cell] for cell in row] for row in lengths]
    read = Asked("rl_weights").answer(completions=completions, constant=7)["schemes"]
    known = {
        ('loss_type="dapo", steps_per_generation=K', None): "trl_dapo",
        ('loss_type="bnpo"', None): "trl_bnpo",
        ('loss_type="grpo"', None): "trl_grpo",
        ('loss_type="dr_grpo"', None): "trl_dr_grpo",
        ('loss_agg_mode="token-mean"', None): "verl_token_mean",
        ('loss_agg_mode="token-mean" (dp_actor.py)', "0.7.1"): "verl_token_mean_per_microbatch",
        ('loss_agg_mode="token-mean", use_dynamic_bsz (dp_actor.py)', "0.7.1"): "verl_token_mean_dynamic",
        ('loss_agg_mode="seq-mean-token-mean"', None): "verl_seq_mean_token_mean",
        ('loss_agg_mode="seq-mean-token-sum-norm"', None): "verl_seq_mean_token_sum_norm",
    }
    found = {
        known[name["setting"], name["until"]]: scheme["token_weights_exact"]
        for scheme in answer(lengths, constant=7)["schemes"].values()
        for name in scheme["names"]
        if (name["setting"], name["until"]) in known
    }
    assert found == {name: read[name]["token_weights_exact"] for name in known.values()}


def test_a_name_says_in_which_releases_it_divides_so() -> None:
    names = [name for scheme in answer("4+2;8")["schemes"].values() for name in scheme["names"]]
    assert len(names) == 12
    assert all(name["since"] or name["until"] for name in names)
    page = asked.panel(scheme="token_mean_over_microbatch")
    assert "TRL 0.16.0-0.16.1 GRPO" in page.tables()[0].rows[3][2]  # type: ignore[operator]


# --- sizes, doors, refusals


def test_the_panel_and_the_body_agree() -> None:
    got, posted = (
        view(sequences="4+2,1;8,3", constant="5", scheme="constant_over_microstep"),
        answer([[[4, 2], [1]], [[8], [3]]], constant=5),
    )
    assert {name: got[name] for name in posted} == posted
    assert got["selected"] == "constant_over_microstep"
    assert got["current"] == posted["schemes"]["constant_over_microstep"]
    assert present(Inputs(sequences=((((4,),),)))).selected == NAMES[0]


def test_lists_and_exact_fractions_end_where_they_say() -> None:
    many = answer([[[1, 2]] * 200, [[3]] * 200])
    scheme = many["schemes"]["token_mean_over_window"]
    assert many["sequence_count"] == len(scheme["token_weights"]) == 600
    assert scheme["token_weights_exact"] is None
    assert many["partitions"][0]["cells"] is None
    more = answer([[[1] * 10_001]])
    assert more["lengths"] is None
    assert more["schemes"]["token_mean_over_window"]["token_weights"] is None
    assert more["schemes"]["token_mean_over_window"]["stability"] == "invariant"


def test_the_largest_window_stays_exact() -> None:
    """Denominators near 2^63: 4,096 replicas, 24 sequences each, 2^31 tokens in all."""
    long, short = 2**31 // 98_304, 3
    got = answer([[[long] * 24] for _ in range(4095)] + [[[short] * 24]])
    found = got["schemes"]["sample_weighted_over_replica"]["counterexample"]
    assert Fraction(found["token_weight_here_exact"]) == Fraction(1, 4096 * 24 * short)
    assert got["schemes"]["token_mean_over_window"]["total"] == pytest.approx(1, rel=1e-12)


REFUSED_FIELDS = {
    "sequences": [
        ("4+2;8,1", "as many cells"),
        ("4+0;8", "row 1, cell 1 holds a sequence without tokens"),
        ("4;8+x", "row 2, cell 1 “x” is not a number"),
        ("4;-8", "row 2, cell 1 must be 0 or more"),
        ("4;2.5", "whole number"),
        (" ", "blank"),
        ("10000000" + "+10000000" * 300, "tokens"),
    ],
    "constant": [("0", "1 or more")],
    "other": [("4;2", "very same lengths"), ("4;8+8", "very same lengths")],
    "scheme": [("token_mean", "must be")],
}


def test_its_tables_have_a_row_a_mean_and_a_row_a_sequence() -> None:
    means, sequences = asked.panel().tables()
    assert [f"{row[0]}_over_{row[1]}" for row in means.rows] == [*NAMES]
    assert sequences.header == ("sequence", "length", *NAMES)
    assert [row[1] for row in sequences.rows] == [4, 2, 8]


def test_a_result_of_many_sequences_stays_small(client: TestClient) -> None:
    cells = ";".join(",".join("3+5+7" for _ in range(16)) for _ in range(32))
    page = client.post("/en/calculators/objective_weights/result", data={"sequences": cells})
    assert page.status_code == 200
    assert len(page.text) < 90_000
    assert "shortest on a replica of its own" in page.text


VERDICTS = [
    ({}, "Depends on the partition: in the sequence of 2 labels a token weighs 1/12 here, and 1/4 as"),
    ({"scheme": "token_mean_over_window"}, "Independent of the partition: a token mean over the window"),
    ({"scheme": "token_mean_over_microstep"}, "happens to equal, over the window, the token mean"),
    ({"sequences": "4;4"}, "Unchanged for these sequences"),
    ({"sequences": "4;0"}, "Undefined: one of the means is over nothing"),
    ({"sequences": "0"}, "no sequence in the window"),
]


# --- the program that its page offers


def any_body(source: Random) -> Body:
    microsteps = source.randint(1, 3)
    cells = [
        [[source.randint(1, 9) for _ in range(source.randint(source.random() < 0.9, 3))] for _ in range(microsteps)]
        for _ in range(source.randint(1, 3))
    ]
    return {"sequences": cells, "constant": source.randint(1, 9)}


PROGRAM = Program(
    prints=["schemes.token_mean_over_replica.token_weights", "schemes.constant_over_window.total"],
    planted=("[4, 2]", "[4, 3]"),
    bodies=any_body,
)
