"""Weights against autograd through losses written as TRL and verl write them; advantages against torch's std."""

from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from samestep.app.calculators.rl_weights import SCHEMES
from tests.kit import Asked, Body, Program

asked = Asked("rl_weights")
answer, view = asked.answer, asked.view
Tensor = torch.Tensor
Lengths = list[list[list[int]]]


def body(lengths: Lengths, group: Callable[[int], int] = lambda i: 0, rewards: list[Any] | None = None) -> Body:
    """A body of these lengths; groups and rewards by the flat number of a completion."""
    numbers = iter(range(10**6))

    def one(length: int) -> Body:
        i = next(numbers)
        return {"length": length, "group": group(i)} | ({} if rewards is None else {"reward": rewards[i]})

    return {"completions": [[[one(length) for length in cell] for cell in row] for row in lengths]}


# --- autograd: one microbatch's loss as the trainer writes it, padded and masked


class Batch:
    """A microbatch as both frameworks hold it: losses of tokens (B, T), their mask, and the numbers of the update."""

    def __init__(self, lengths: list[int], width: int, shape: tuple[int, int], **of_update: int) -> None:
        self.losses = torch.rand(len(lengths), width, dtype=torch.float64).requires_grad_()
        self.mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).double()
        self.P, self.K = shape
        self.tokens, self.completions = of_update["tokens"], of_update["completions"]
        self.of_rank, self.constant, self.counted = of_update["of_rank"], of_update["constant"], of_update["counted"]

    @property
    def of_tokens(self) -> Tensor:
        return self.losses * self.mask

    @property
    def lengths(self) -> Tensor:
        return self.mask.sum(-1)


LOSSES: dict[str, Callable[[Batch], Tensor]] = {
    "trl_grpo": lambda b: (b.of_tokens.sum(-1) / b.lengths.clamp(min=1.0)).mean() / b.K,
    "trl_bnpo": lambda b: b.of_tokens.sum() / b.mask.sum().clamp(min=1.0) / b.K,
    "trl_dr_grpo": lambda b: b.of_tokens.sum() / (b.losses.size(0) * b.constant) / b.K,
    "trl_dapo": lambda b: b.of_tokens.sum() / (max(b.counted, 1) / b.P),
    "trl_luspo": lambda b: b.of_tokens.sum(-1).mean() / b.K,
    "verl_token_mean": lambda b: b.of_tokens.sum() / b.tokens * b.P,
    "verl_seq_mean_token_sum": lambda b: b.of_tokens.sum(-1).sum() / b.completions * b.P,
    "verl_seq_mean_token_mean": lambda b: (b.of_tokens.sum(-1) / (b.lengths + 1e-300)).sum() / b.completions * b.P,
    "verl_seq_mean_token_sum_norm": lambda b: b.of_tokens.sum(-1).sum() / b.completions * b.P / b.constant,
    "verl_token_sum": lambda b: b.of_tokens.sum() * b.P,
    "verl_seq_mean_token_sum_norm_before_5366": lambda b: b.of_tokens.sum(-1).sum() / b.constant,
    "verl_token_mean_per_microbatch": lambda b: b.of_tokens.sum() / b.mask.sum() / b.K,
    "verl_token_mean_dynamic": lambda b: b.of_tokens.sum() / b.mask.sum() * (b.losses.size(0) / b.of_rank),
}


def gradients(lengths: Lengths, name: str, constant: int, counted: int | None) -> list[float]:
    """The gradient of each completion's first token after accumulation and DDP's mean; 0 where it has none."""
    flat = [n for row in lengths for cell in row for n in cell]
    shape = len(lengths), len(lengths[0])
    update = {"tokens": sum(flat), "completions": len(flat), "constant": constant}
    update["counted"] = sum(flat) if counted is None else counted
    found: list[float] = []
    for row in lengths:
        for cell in row:
            batch = Batch(cell, max(*flat, 1), shape, of_rank=sum(map(len, row)), **update)
            (LOSSES[name](batch) / shape[0]).backward()  # type: ignore[no-untyped-call]
            assert batch.losses.grad is not None
            assert torch.equal(batch.losses.grad != 0, batch.mask != 0)
            found += batch.losses.grad[:, 0].tolist()
    return found


@st.composite
def windows(draw: st.DrawFn, shortest: int = 1) -> Lengths:
    replicas, microsteps = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    cell = st.lists(st.integers(shortest, 6), min_size=1, max_size=3)
    return [[draw(cell) for _ in range(microsteps)] for _ in range(replicas)]


@settings(deadline=None, max_examples=25)
@given(windows(), st.integers(1, 9), st.none() | st.integers(0, 50))
def test_a_tokens_weight_is_the_gradient_of_the_trainers_own_loss(
    lengths: Lengths, constant: int, counted: int | None
) -> None:
    got = answer(body(lengths), constant=constant, counted_tokens=counted)["schemes"]
    flat = [n for row in lengths for cell in row for n in cell]
    assert set(LOSSES) == set(SCHEMES) == set(got)
    for name, scheme in got.items():
        weights = gradients(lengths, name, constant, counted)
        assert scheme["token_weights"] == pytest.approx(weights, rel=1e-12), name
        assert [float(Fraction(w)) for w in scheme["token_weights_exact"]] == pytest.approx(weights, rel=1e-12)
        assert scheme["sequence_weights"] == pytest.approx([w * n for w, n in zip(weights, flat, strict=True)])
        assert float(Fraction(scheme["total_exact"])) == pytest.approx(scheme["total"], rel=1e-12)


@settings(deadline=None, max_examples=40)
@given(windows(shortest=0), st.integers(1, 9))
def test_a_name_matches_exactly_where_its_weights_are_its_objectives(lengths: Lengths, constant: int) -> None:
    got = answer(body(lengths, group=lambda i: i % 2), constant=constant)
    for name, scheme in got["schemes"].items():
        right = got["objectives"][scheme["objective"]]
        if scheme["defined"] and right["defined"]:
            equal = scheme["token_weights_exact"] == right["token_weights_exact"]
            assert scheme["matches_reference"] is equal, name
        else:
            assert scheme["matches_reference"] is None


@pytest.mark.parametrize("name", list(SCHEMES))
def test_only_names_that_count_the_whole_update_survive_another_split(name: str) -> None:
    """Seven completions, dealt to ranks and microsteps in two ways: the weight of each length moves, or it does not."""
    one, other = [[[4, 2], [8]], [[3, 6], [1, 5]]], [[[4, 8], [2]], [[3, 1, 5], [6]]]
    whole = name not in {"trl_grpo", "trl_bnpo", "trl_dr_grpo", "trl_luspo"} and "microbatch" not in name
    whole = whole and name != "verl_token_mean_dynamic"
    weights = []
    for lengths in (one, other):
        scheme = answer(body(lengths), constant=8)["schemes"][name]
        flat = [n for row in lengths for cell in row for n in cell]
        weights.append(dict(zip(flat, scheme["token_weights_exact"], strict=True)))
    assert (weights[0] == weights[1]) is whole


def test_equal_numbers_of_completions_make_the_sequence_means_right_and_equal_tokens_the_token_means() -> None:
    by_completions = answer(body([[[4, 2]], [[8, 1]]]), constant=8)["schemes"]
    assert by_completions["trl_grpo"]["matches_reference"] is True
    assert by_completions["trl_dr_grpo"]["matches_reference"] is True
    assert by_completions["trl_bnpo"]["matches_reference"] is False
    by_tokens = answer(body([[[4, 2], [6]], [[1, 5], [3, 3]]]))["schemes"]
    assert by_tokens["trl_bnpo"]["matches_reference"] is True
    assert by_tokens["verl_token_mean_dynamic"]["matches_reference"] is False
    assert by_tokens["trl_grpo"]["matches_reference"] is False


def test_a_count_of_another_window_scales_every_token_alike() -> None:
    scheme = answer(body([[[10, 6]]]), counted_tokens=33)["schemes"]["trl_dapo"]
    assert scheme["token_weights_exact"] == ["1/33", "1/33"]
    assert (scheme["total_exact"], scheme["matches_reference"]) == ("16/33", False)


# --- empty cells, empty completions


def test_an_empty_cell_undoes_the_means_over_cells_and_no_other() -> None:
    schemes = answer(body([[[4], []], [[2], [8]]]))["schemes"]
    undone = {name for name, scheme in schemes.items() if not scheme["defined"]}
    means = {"trl_grpo", "trl_dr_grpo", "trl_luspo"}
    assert undone == means | {"verl_token_mean_per_microbatch", "verl_token_mean_dynamic"}
    assert {schemes[name]["reason"] for name in undone} == {"empty_cell"}
    assert schemes["trl_bnpo"]["token_weights_exact"] == ["1/16", "1/8", "1/32"]


def test_a_completion_without_tokens_counts_among_completions_and_weighs_nothing() -> None:
    schemes = answer(body([[[4, 0]], [[0]]]))["schemes"]
    assert schemes["trl_grpo"]["token_weights_exact"] == ["1/16", "0", "0"]
    assert schemes["verl_seq_mean_token_sum"]["token_weights_exact"] == ["1/3", "0", "0"]
    assert schemes["verl_token_sum"]["token_weights_exact"] == ["1", "0", "0"]
    assert schemes["verl_token_mean_per_microbatch"]["reason"] == "empty_cell"
    assert schemes["trl_bnpo"]["sequence_weights_exact"] == ["1/2", "0", "0"]


def test_a_window_without_tokens_has_no_token_mean() -> None:
    got = answer(body([[[0]], [[0]]]))
    assert got["objectives"]["token_mean"]["reason"] == "zero_count"
    assert got["schemes"]["verl_token_mean"]["reason"] == "zero_count"
    assert got["schemes"]["trl_bnpo"]["total"] == 0
    assert got["schemes"]["trl_bnpo"]["matches_reference"] is None
    nothing = answer({"completions": [[[]], [[]]]})
    assert nothing["schemes"]["trl_grpo"]["reason"] == "zero_count"
    assert (nothing["completions"], nothing["groups"]) == (0, 0)


# --- advantages


def by_torch(rewards: list[float], members: list[Any], scope: list[Any], scaling: str, eps: float) -> list[float]:
    values, found = torch.tensor(rewards, dtype=torch.float64), []
    for i, reward in enumerate(rewards):
        mine = values[[m == members[i] for m in members]]
        around = mine if scaling == "group" else values[[s == scope[i] for s in scope]]
        std = around.std().item() if len(around) > 1 else 0.0
        centred = reward - mine.mean().item()
        found.append(centred if scaling == "none" else centred / (std + eps))
    return found


@settings(deadline=None, max_examples=40)
@given(windows(), st.sampled_from(["group", "batch", "none"]), st.integers(1, 3), st.randoms(use_true_random=False))
def test_an_advantage_is_torchs_over_the_members_that_the_scope_sees(
    lengths: Lengths, scaling: str, generations: int, random: Random
) -> None:
    cells = [(r, k) for r, row in enumerate(lengths) for k, cell in enumerate(row) for _ in cell]
    group = [random.randrange(3) for _ in cells]
    rewards = [random.randint(-8, 8) / 4 for _ in cells]
    given = body(lengths, group=lambda i: group[i], rewards=rewards)
    got = answer(given, scale_rewards=scaling, generations=generations, eps=0.01)["advantages"]
    whole, ranks = [0] * len(cells), [r for r, _ in cells]
    expected = {
        "gathered": by_torch(rewards, group, whole, scaling, 0.01),
        "per_rank": by_torch(rewards, list(zip(ranks, group, strict=True)), ranks, scaling, 0.01),
        "per_microbatch": by_torch(rewards, list(zip(cells, group, strict=True)), cells, scaling, 0.01),
    }
    if len(cells) % generations == 0:
        runs = [i // generations for i in range(len(cells))]
        expected["by_view"] = by_torch(rewards, runs, whole, scaling, 0.01)
    assert set(got) == set(expected)
    for name, values in expected.items():
        assert got[name] == pytest.approx(values, rel=1e-9, abs=1e-12), name


def test_a_group_that_is_split_over_ranks_is_compared_with_itself_alone() -> None:
    """Each rank has one completion of the prompt: its mean is its own reward, and nothing is learned."""
    got = answer(body([[[5]], [[5]]], rewards=[1, 0]), scale_rewards="none")["advantages"]
    assert got["gathered"] == [0.5, -0.5]
    assert got["per_rank"] == got["per_microbatch"] == [0, 0]


def test_equal_rewards_have_no_advantage_and_with_eps_zero_no_quotient() -> None:
    equal = body([[[5, 5]]], rewards=[2, 2])
    assert answer(equal)["advantages"]["gathered"] == [0, 0]
    without = answer(equal, eps=0)
    assert without["advantages"]["gathered"] == [None, None]
    assert without["advantages_reason"] == "zero_variance"


def test_large_rewards_close_together_keep_their_digits() -> None:
    got = answer(body([[[1, 1, 1]]], rewards=["1e15", "1000000000000001", "1e15"]), eps=0)["advantages"]["gathered"]
    assert got == pytest.approx([-(3**-0.5), 2 * 3**-0.5, -(3**-0.5)], rel=1e-15)
    huge = answer(body([[[1, 1]]], rewards=["1e308", "-1e308"]), eps=0)["advantages"]["gathered"]
    assert huge == pytest.approx([2**-0.5, -(2**-0.5)], rel=1e-15)


# --- sizes, doors, refusals


def test_lists_and_exact_fractions_end_where_they_say() -> None:
    many = answer(body([[[1, 2] * 1200], [[3] * 2000]], rewards=[0, 1] * 2200))
    scheme = many["schemes"]["trl_grpo"]
    assert len(scheme["token_weights"]) == len(many["advantages"]["gathered"]) == 4400
    assert scheme["token_weights_exact"] is scheme["total_exact"] is None
    more = answer(body([[[1] * 5000], [[3] * 5001]], rewards=[0.5] * 10_001))
    assert more["schemes"]["trl_bnpo"]["token_weights"] is None
    assert more["schemes"]["trl_bnpo"]["total"] == pytest.approx(1, rel=1e-12)
    assert more["schemes"]["trl_bnpo"]["matches_reference"] is False
    assert more["advantages"] is None


def test_two_counts_that_differ_by_one_in_a_million_million_are_told_apart() -> None:
    """As near as no float64 quotient could tell safely: 10¹² tokens in all, less one on a rank."""
    completions = 500
    even = [[[10**9] * completions], [[10**9] * completions]]
    odd = [[[10**9] * completions], [[*[10**9] * (completions - 1), 10**9 - 1]]]
    assert answer(body(even))["schemes"]["trl_bnpo"]["matches_reference"] is True
    assert answer(body(odd))["schemes"]["trl_bnpo"]["matches_reference"] is False


def test_the_panel_and_the_body_agree() -> None:
    got = view(lengths="4+2,8;3,1", groups="0+0,7;7,0", rewards="1+0,1;0,1/3", constant="8", scheme="trl_grpo")
    groups, rewards = [0, 0, 7, 7, 0], [1, 0, 1, 0, "1/3"]
    posted = answer(body([[[4, 2], [8]], [[3], [1]]], group=lambda i: groups[i], rewards=rewards), constant=8)
    assert {name: got[name] for name in posted} == posted
    assert got["current"] == posted["schemes"]["trl_grpo"]
    assert got["reference"] == posted["objectives"]["sequence_mean"]
    assert [row["group"] for row in got["rows"]] == [0, 0, 1, 1, 0]
    assert [row["advantages"]["per_microbatch"] for row in got["rows"]] == posted["advantages"]["per_microbatch"]


def test_a_blank_cell_is_empty_and_a_zero_is_a_completion() -> None:
    assert view(lengths="4,;2,8", groups="0,;1,1")["schemes"]["trl_grpo"]["reason"] == "empty_cell"
    assert view(lengths="4,0;2,8", groups="0,0;1,1")["completions"] == 4


REFUSED_BODIES = [
    ({"completions": []}, "completions", "at least 1"),
    ({"completions": [[]]}, "completions.0", "microsteps"),
    ({"completions": [[[], []], [[]]]}, "completions.1", "as many"),
    (body([[[-1]]]), "completions.0.0.0.length", "0 or more"),
    (
        {"completions": [[[{"length": 1, "group": 0}, {"length": "2.5", "group": 0}]]]},
        "completions.0.0.1.length",
        "whole number",
    ),
    (body([[[1], [10**19]]]), "completions.0.1.0.length", "at most"),
    (body([[[1]]], group=lambda i: -1), "completions.0.0.0.group", "0 or more"),
    (body([[[1]], [[1]]], rewards=[1, "nan"]), "completions.1.0.0.reward", "finite"),
    (body([[[1, 2]]], rewards=[1, None]), "completions.0.0.1.reward", "missing"),
    ({"completions": [[[{"length": 1}]]]}, "completions.0.0.0.group", "missing"),
    ({"completions": [[[{"length": 1, "group": 0, "tokens": 3}]]]}, "completions.0.0.0.tokens", "field"),
    (body([[[10**9] * 1001]]), "completions", "tokens"),
    ({**body([[[1]]]), "constant": 0}, "constant", "greater than 0"),
    ({**body([[[1]]]), "counted_tokens": -1}, "counted_tokens", "0 or more"),
    ({**body([[[1]]]), "generations": 0}, "generations", "1 or more"),
    ({**body([[[1]]]), "scale_rewards": "token"}, "scale_rewards", "group"),
    ({**body([[[1]]]), "eps": "-1"}, "eps", "0 or more"),
]


REFUSED_FIELDS = {
    "lengths": [
        ("10+x;3", "row 1, cell 1 “x” is not a number"),
        ({"lengths": "10;2.5", "groups": "0;0"}, "row 2, cell 1 must be a whole number"),
        (" ", "blank"),
    ],
    "groups": [("0;1", "one number for each completion"), ("0+0;1+-1", "row 2, cell 1 must be 0 or more")],
    "rewards": [("1+0;1", "one number for each completion")],
    "constant": [("0", "greater than 0")],
    "scheme": [("dapo", "must be")],
}


def test_its_tables_have_a_row_a_name_and_a_row_a_completion() -> None:
    names, completions, advantages = asked.panel(rewards="1+0;1+0").tables()
    assert [row[0] for row in names.rows] == list(SCHEMES)
    assert completions.header[1] == "trl_grpo"
    assert len(completions.rows) == len(advantages.rows) == 4
    assert advantages.header == ("completion", "gathered", "per_rank", "per_microbatch")


VERDICTS = [
    ({}, "Not the objective that it stands for (mean over all tokens). A token of the completion of 10 tokens"),
    ({"scheme": "trl_dapo"}, "On these ranks exactly the objective that it stands for: mean over all tokens."),
    ({"lengths": "4,;2,8", "groups": "0,;1,1", "scheme": "trl_grpo"}, "Undefined: a cell is empty"),
    ({"lengths": "0;0", "groups": "0;0"}, "there is no token in the window"),
    ({"lengths": "0;0", "groups": "0;0", "scheme": "verl_token_mean"}, "holds nothing"),
]


# --- the program that its page offers


def any_body(source: Random) -> Body:
    microsteps, rewarded = source.randint(1, 2), source.random() < 0.6
    lengths: Lengths = [
        [[source.randint(0, 6) for _ in range(source.randint(source.random() < 0.9, 3))] for _ in range(microsteps)]
        for _ in range(source.randint(1, 3))
    ]
    lengths[0][0].append(3)
    groups = [source.randrange(3) for _ in range(30)]
    rewards: list[Any] = [source.randint(-4, 4) / 4 for _ in range(30)]
    return body(lengths, group=lambda i: groups[i], rewards=rewards if rewarded else None) | {
        "constant": source.choice([8, "1/3"]),
        "counted_tokens": source.choice([None, 0, 33]),
        "generations": source.choice([None, 2]),
        "scale_rewards": source.choice(["group", "batch", "none"]),
        "eps": "0.0001",
    }


PROGRAM = Program(
    prints=["schemes.trl_bnpo.token_weights", "schemes.trl_dapo.total", "tokens"],
    planted=("[[10, 10]]", "[[10, 11]]"),
    bodies=any_body,
)
