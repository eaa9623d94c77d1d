"""Gradients, norms and label counts on a mesh against autograd of one process and sums over explicit ranks."""

import math
import random
from fractions import Fraction
from itertools import product

import pytest
import torch
from hypothesis import given, settings, strategies as st

from samestep.app.calculators.mesh_ledger.mesh import CLASSES, Mesh
from tests.kit import Asked, Body, Program, quarters

asked = Asked("mesh_ledger")
answer, view = asked.answer, asked.view
LOSSES = ["local_mean", "cp_group_mean", "global_count"]
Tensor = torch.Tensor


# --- gradients: every rank's own autograd against one process's


def tokens_of(dp: int, fsdp: int, cp: int, tp: int, length: int = 4) -> Tensor:
    """One sequence a batch rank, cut over cp and again over tp: (dp, fsdp, cp, tp, length)."""
    return torch.randn(dp, fsdp, cp, tp, length, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def local_divisor(x: Tensor, loss: str) -> int:
    """What a rank's sum over its tokens is divided by; a data rank counts those of all its tp ranks."""
    _, _, cp, tp, length = x.shape
    return {"local_mean": tp * length, "cp_group_mean": cp * tp * length, "global_count": x.numel()}[loss]


def gradients(x: Tensor, divisor: int) -> Tensor:
    """The gradient of a norm's weight on each rank by autograd: a copy a rank, which has seen its own tokens."""
    weight = torch.full(x.shape[:4], 0.5, dtype=torch.float64, requires_grad=True)
    ((weight[..., None] * x).exp().sum() / divisor).backward()
    assert weight.grad is not None
    return weight.grad


def one_process(x: Tensor) -> float:
    weight = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    (weight * x).exp().mean().backward()
    assert weight.grad is not None
    return weight.grad.item()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape", [(2, 1, 1, 4), (1, 2, 2, 2), (2, 2, 3, 1)])
def test_a_norm_under_sequence_parallelism_is_the_sum_of_its_ranks_own_gradients(
    loss: str, shape: tuple[int, int, int, int]
) -> None:
    x = tokens_of(*shape)
    own = gradients(x, local_divisor(x, loss))
    got = answer(
        **dict(zip(("dp", "fsdp", "cp", "tp"), shape, strict=True)),
        loss=loss,
        contributions={"norm": own.flatten().tolist()},
    )["values"]
    right = one_process(x)
    assert got["norm_right"] == pytest.approx(right, rel=1e-12)
    assert got["norm_averaged_over_tp"] == pytest.approx(right / shape[3], rel=1e-12)
    assert sum(got["norm_not_reduced_over_tp"]) == pytest.approx(right, rel=1e-12)
    assert (got["norm_averaged_over_tp"] == pytest.approx(right, rel=1e-6)) is (shape[3] == 1)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("tp", [1, 3])
def test_a_weight_that_sees_the_whole_sequence_is_added_over_data_ranks_alone(loss: str, tp: int) -> None:
    x = tokens_of(2, 2, 2, 1)
    own = gradients(x, local_divisor(x, loss)).flatten().tolist()
    body: Body = {"dp": 2, "fsdp": 2, "cp": 2, "tp": tp, "loss": loss, "sequence_parallel": False}
    got = answer(**body, contributions={"dense": own, "norm": own, "replicated": own, "expert": own})["values"]
    right = one_process(x)
    for name in ("dense_right", "norm_right", "replicated_right", "expert_right", "norm_averaged_over_tp"):
        assert got[name] == pytest.approx(right, rel=1e-12)
    for name in ("replicated_summed_over_tp", "norm_summed_over_tp"):
        assert got[name] == pytest.approx(tp * right, rel=1e-12)
    assert sum(got["dense_context_not_reduced"]) == pytest.approx(right, rel=1e-12)
    assert len(got["dense_context_not_reduced"]) == 2


def test_an_expert_has_the_tokens_of_all_data_ranks_whichever_rank_holds_it() -> None:
    """Sixteen tokens on four data ranks, two experts, ep 2: the all-to-all brings each token to a holder of its expert;
    the router alternates, so that both experts have tokens everywhere."""
    x = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    mine = torch.arange(4) % 2 == 0
    sent = torch.where(mine, x, 0)  # of expert 0
    weight = torch.full((4, 1), 0.5, dtype=torch.float64, requires_grad=True)
    (torch.where(mine, (weight * x).exp(), 0).sum() / 4).backward()  # each data rank: mean over its own four tokens
    assert weight.grad is not None
    by_data_rank = weight.grad.flatten()
    by_holder = by_data_rank.reshape(2, 2).sum(1)  # data ranks 0, 1 send to rank 0; 2, 3 to rank 2
    alone = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    (torch.where(mine, (alone * x).exp(), 0).sum() / 16).backward()
    assert alone.grad is not None
    assert sent.count_nonzero() == 8
    for given_list in (by_data_rank, by_holder):
        got = answer(dp=4, ep=2, contributions={"expert": given_list.tolist()})["values"]
        assert got["expert_right"] == pytest.approx(alone.grad.item(), rel=1e-12)
        assert got["expert_divided_by_its_own_group"] == pytest.approx(2 * alone.grad.item(), rel=1e-12)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.sampled_from(LOSSES))
@settings(max_examples=60, deadline=None)
def test_a_factor_is_what_equal_contributions_give(dp: int, fsdp: int, cp: int, tp: int, loss: str) -> None:
    ranks = dp * fsdp * cp
    for split in (True, False):
        body: Body = {"dp": dp, "fsdp": fsdp, "cp": cp, "tp": tp, "ep": cp, "loss": loss, "sequence_parallel": split}
        ones = {"dense": [1] * ranks, "replicated": [1] * ranks, "expert": [1] * ranks}
        got = answer(**body, contributions={**ones, "norm": [1] * ranks * (tp if split else 1)})
        for name, exact in got["values_exact"].items():
            right = Fraction(got["values_exact"][name.split("_")[0] + "_right"])
            for rank in exact if isinstance(exact, list) else [exact]:
                assert Fraction(rank) / right == Fraction(got["schemes"][name]["factor_exact"]), name


@pytest.mark.parametrize(("pp", "half"), [(1, 1), (2, 0.5), (5, 0.5)])
def test_a_tied_weight_has_half_its_gradient_on_each_of_two_ends(pp: int, half: float) -> None:
    schemes = answer(pp=pp)["schemes"]
    assert (schemes["tied_averaged"]["factor"], schemes["tied_not_summed"]["factor"]) == (half, half)
    assert schemes["tied_not_summed"]["copies_differ"] is (pp > 1)
    assert schemes["tied_not_summed"]["matches_reference"] is (pp == 1)


# --- norms: squares added over explicit ranks


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.lists(st.integers(0, 9), min_size=5, max_size=5))
@settings(max_examples=60, deadline=None)
def test_a_norm_is_what_the_ranks_squares_add_up_to(tp: int, pp: int, ep: int, squares: list[int]) -> None:
    dense, norm, replicated, expert, tied = map(Fraction, squares)
    ranks = list(product(range(ep), range(pp), range(tp)))

    def total(counts: object) -> Fraction:
        """Every rank's squares of its shards and copies, where `counts` says what of them is counted."""
        found = Fraction(0)
        for e, s, t in ranks:
            first = s == 0 and e == 0
            shards = [(dense / tp / pp if e == 0 else 0), expert / ep / tp / pp, tied / tp if first else 0]
            copies = (norm + replicated) / pp if e == 0 else Fraction(0)
            again = tied / tp if e == 0 and pp > 1 and s == pp - 1 else Fraction(0)
            found += counts(e, s, t, shards, copies, again)  # type: ignore[operator]
        return found

    got = answer(dp=ep, tp=tp, pp=pp, ep=ep, squares=dict(zip(CLASSES, squares, strict=True)))
    exact = dict(zip(got["norms"], map(Fraction, got["norms_squared_exact"]), strict=True))
    assert exact["right"] == total(lambda e, s, t, shards, copies, again: sum(shards) + (copies if t == 0 else 0))
    assert exact["copies_counted_tp_times"] == total(lambda e, s, t, shards, copies, again: sum(shards) + copies)
    assert exact["tp_shards_not_summed"] == total(
        lambda e, s, t, shards, copies, again: sum(shards) + copies if t == 0 else 0
    )
    assert exact["experts_left_out"] == total(
        lambda e, s, t, shards, copies, again: shards[0] + shards[2] + (copies if t == 0 else 0)
    )
    assert exact["own_experts_only"] == total(
        lambda e, s, t, shards, copies, again: sum(shards) + (copies if t == 0 else 0) if e == 0 else 0
    )
    assert exact["tied_counted_twice"] == total(
        lambda e, s, t, shards, copies, again: sum(shards) + (copies if t == 0 else 0) + again
    )
    assert exact["one_stage_only"] == exact["right"] / pp
    assert got["norms"]["right"] == pytest.approx(math.sqrt(sum(squares)), rel=1e-12)


# --- labels


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.data())
@settings(max_examples=40, deadline=None)
def test_a_count_is_what_the_ranks_that_report_it_add_up_to(
    dp: int, cp: int, tp: int, pp: int, data: st.DataObject
) -> None:
    labels = data.draw(st.lists(st.integers(0, 5), min_size=dp * cp, max_size=dp * cp))
    got = answer(dp=dp, cp=cp, tp=tp, pp=pp, labels=labels)["labels"]
    batch = [sum(labels[d * cp : (d + 1) * cp]) for d in range(dp)]  # before the context is cut
    assert got["before_the_context_split"]["count"] == sum(batch[rank // cp] for rank in range(dp * cp))
    for name, times in (("right", 1), ("on_every_tp_rank", tp), ("on_every_stage", pp), ("on_every_rank", tp * pp)):
        assert got[name]["count"] == sum(labels) * times
        if sum(labels):
            assert Fraction(got[name]["gradient_factor_exact"]) == Fraction(1, times)
        else:
            assert (got[name]["gradient_factor"], got[name]["reason"]) == (None, "zero_count")


# --- the mesh


@given(
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 4),
    st.booleans(),
    st.integers(1, 12),
)
@settings(max_examples=80, deadline=None)
def test_as_many_ranks_are_coloured_as_are_added(
    dp: int, fsdp: int, cp: int, tp: int, pp: int, split: bool, ep: int
) -> None:
    ranks = dp * fsdp * cp
    mesh = Mesh(dp, fsdp, cp, tp, pp, ep if ranks % ep == 0 else 1, split, "local_mean")
    for name in CLASSES:
        places = product(range(ranks), range(pp), range(tp))
        kinds = [mesh.kind(name, *place) for place in places]
        assert kinds.count("summed") == mesh.ranks_summed(name), name


def test_a_mesh_of_the_largest_size_is_drawn_in_part() -> None:
    got = view(dp="8", fsdp="8", tp="8", pp="8", ep="64")
    assert (got["world"], got["whole_mesh_shown"], got["stages_shown"]) == (4096, False, [0, 7])
    assert len(got["grids"]["dense"]["kinds"]) == 12
    whole = view()
    assert whole["whole_mesh_shown"] is True
    assert whole["grids"]["norm"]["kinds"] == [["summed"] * 4] * 2
    assert view(sequence_parallel="false")["grids"]["norm"]["kinds"] == [["summed", "copy", "copy", "copy"]] * 2


def test_the_panel_is_the_body_that_its_fields_stand_for() -> None:
    got = view(tp="2", dp="1", norm_gradients="0.1,0.3", squares="16,9", labels="5")
    assert got["values"]["norm_averaged_over_tp"] == pytest.approx(0.2, rel=1e-12)
    assert got["norms"]["right"] == 5
    assert got["labels"]["on_every_tp_rank"]["count"] == 10
    assert got["current"]["factor_exact"] == "1/2"


REFUSED_BODIES = [
    ({"dp": 0}, "dp"),
    ({"tp": "1.5"}, "tp"),
    ({"pp": 5000}, "pp"),
    ({"dp": 64, "fsdp": 65}, "fsdp"),
    ({"dp": 8, "ep": 16}, "ep"),
    ({"cp": "x"}, "cp"),
    ({"loss": "mean"}, "loss"),
    ({"sequence_parallel": "maybe"}, "sequence_parallel"),
    ({"dp": 2, "labels": [1]}, "labels"),
    ({"labels": [-1]}, "labels"),
    ({"labels": ["1/2"]}, "labels"),
    ({"squares": {"dense": -1}}, "squares.dense"),
    ({"squares": {"norms": 1}}, "squares.norms"),
    ({"squares": {"dense": "1e308", "norm": "1e308"}}, "squares.dense"),
    ({"dp": 2, "contributions": {"dense": [1]}}, "contributions.dense"),
    ({"dp": 2, "tp": 2, "contributions": {"norm": [1, 2]}}, "contributions.norm"),
    ({"tp": 2, "sequence_parallel": False, "contributions": {"norm": [1, 2]}}, "contributions.norm"),
    ({"dp": 4, "ep": 2, "contributions": {"expert": [1, 2, 3]}}, "contributions.expert"),
    ({"contributions": {"dense": ["nan"]}}, "contributions.dense.0"),
    ({"contributions": {"tied": [1]}}, "contributions.tied"),
    ({"dp": 2, "contributions": {"dense": ["1e308", "1e308"]}}, "contributions.dense.0"),
    ({"mesh": 1}, "mesh"),
]
REFUSED_FIELDS = {
    "norm_gradients": ["1,2"],
    "squares": ["1,2,3,4,5,6"],
    "labels": ["1"],
    "ep": ["3"],
}


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    dp, fsdp, cp, tp = (source.choice([1, 2, 3]) for _ in range(4))
    ranks, split = dp * fsdp * cp, source.random() < 0.5
    ep = source.choice([size for size in range(1, ranks + 1) if ranks % size == 0])
    contributions = {
        "dense": quarters(source, ranks),
        "norm": quarters(source, ranks * (tp if split else 1)),
        "replicated": quarters(source, ranks),
        "expert": quarters(source, source.choice([ranks, ranks // ep])),
    }
    return {
        "dp": dp,
        "fsdp": fsdp,
        "cp": cp,
        "tp": tp,
        "pp": source.choice([1, 2, 4]),
        "ep": ep,
        "sequence_parallel": split,
        "loss": source.choice(LOSSES),
        "contributions": source.choice([None, contributions, {"norm": contributions["norm"]}]),
        "squares": source.choice([None, {name: source.randint(0, 9) for name in CLASSES}]),
        "labels": source.choice([None, [source.randint(0, 9) for _ in range(ranks)]]),
    }


PROGRAM = Program(
    prints=["schemes.norm_averaged_over_tp.factor", "schemes.expert_divided_by_its_own_group.factor", "world"],
    planted=("dp, fsdp, cp, tp, pp, ep = 2, 1, 1, 4, 1, 1", "dp, fsdp, cp, tp, pp, ep = 2, 1, 1, 3, 1, 1"),
    bodies=any_body,
)
