"""InfoNCE against float64 autograd, with the graph of every rank built on its own, and the laws that must hold."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.nn import functional

from samestep.app.calculators import info_nce
from samestep.app.calculators.info_nce import tables
from tests.kit import Asked

Tensor = torch.Tensor
Body = dict[str, Any]

SCHEMES: list[dict[str, Any]] = [
    {"gather": gather, "loss": loss}
    for gather in ("grad_sum", "detach_keep_local", "detach_all_docs", "cached_accumulation")
    for loss in ("local", "global")
] + [{"gather": "none", "loss": "local"}]


@st.composite
def bodies(draw: st.DrawFn, *, equal: bool = False, hard: bool | None = None) -> Body:
    """Embeddings of a few ranks, with any shape and any kind of objective."""
    ranks = draw(st.integers(1, 4))
    size = st.integers(1, 3)
    counts = [draw(size)] * ranks if equal else draw(st.lists(size, min_size=ranks, max_size=ranks))
    dimensions = draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    body: Body = {name: [rng.standard_normal((n, dimensions)).tolist() for n in counts] for name in ("q", "d")}
    if draw(st.booleans()) if hard is None else hard:
        shipped = draw(st.lists(st.integers(0, 2), min_size=ranks, max_size=ranks))
        body["hard_negatives"] = [rng.standard_normal((n, dimensions)).tolist() for n in shipped]
    scale = draw(st.floats(-1.0, 2.0))
    body |= {"logit_scale_log": scale} if draw(st.booleans()) else {"tau": float(np.exp(-scale))}
    body["similarity"] = draw(st.sampled_from(["dot", "cosine"]))
    body["direction"] = draw(st.sampled_from(["q2d", "bidirectional"]))
    if body["direction"] == "q2d" and "hard_negatives" not in body and draw(st.booleans()):
        body |= {"loss_form": "sigmoid", "logit_bias": draw(st.sampled_from([0, -10, 1.5]))}
    return body


@st.composite
def schemes(draw: st.DrawFn) -> dict[str, Any]:
    """Any way of computing it."""
    return {
        "name": "it",
        **draw(st.sampled_from(SCHEMES)),
        "multiplier": draw(st.sampled_from([1, "P", "1/3", -2])),
        "normalization": draw(st.sampled_from(["local_mean", "P_over_global_count", "sum"])),
        "labels": draw(st.sampled_from(["correct", "global_query_index"])),
        "reduction": draw(st.sampled_from(["mean", "sum"])),
        "divide_by": draw(st.sampled_from([1, "P", 4])),
    }


class World:
    """All ranks' leaves: their vectors, and their own copies of the shared weights and of the log scale."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.ranks = len(body["q"])
        self.dimensions = len(body["q"][0][0])
        log_scale = body["logit_scale_log"] if "logit_scale_log" in body else -np.log(body["tau"])
        self.log_scales = [self._leaf(log_scale) for _ in range(self.ranks)]
        self.biases = [self._leaf(float(body.get("logit_bias", 0))) for _ in range(self.ranks)]
        self.wq, self.wd = ([self._leaf([1.0] * self.dimensions) for _ in range(self.ranks)] for _ in "qd")
        # zero leaves added to the vectors catch the gradient of the vector itself
        hard = body.get("hard_negatives", [[]] * self.ranks)
        self.shifts: dict[str, list[Tensor]] = {}
        self.vectors: dict[str, list[Tensor]] = {}
        for name, rows, weights in (("q", body["q"], self.wq), ("d", body["d"], self.wd), ("h", hard, self.wd)):
            values = [torch.tensor(row, dtype=torch.float64).reshape(-1, self.dimensions) for row in rows]
            self.shifts[name] = [torch.zeros_like(value).requires_grad_() for value in values]
            self.vectors[name] = [
                value * weight + shift for value, weight, shift in zip(values, weights, self.shifts[name], strict=True)
            ]

    @staticmethod
    def _leaf(value: Any) -> Tensor:
        return torch.tensor(value, dtype=torch.float64, requires_grad=True)

    def seen(self, name: str, alive: Callable[[int], bool], owners: range | list[int]) -> list[Tensor]:
        return [self.vectors[name][o] if alive(o) else self.vectors[name][o].detach() for o in owners]

    def logits(self, rows: Tensor, columns: Tensor, rank: int) -> Tensor:
        if self.body["similarity"] == "cosine":
            rows, columns = (functional.normalize(side, dim=1, eps=0.0) for side in (rows, columns))
        return self.log_scales[rank].exp() * rows @ columns.T

    def cross_entropy(
        self, rank: int, rows: list[int], owners: range | list[int], scheme: dict[str, Any], alive: dict[str, Any]
    ) -> Tensor:
        """The summed loss of the queries of `rows`, as rank `rank` computes it from what it has of `owners`."""
        q, d, h = (dict(zip(owners, self.seen(name, alive[name], owners), strict=True)) for name in "qdh")
        starts, offset = {}, 0
        for owner in owners:
            starts[owner] = offset
            offset += len(d[owner]) + len(h[owner])
        firsts = {owner: sum(len(d[o]) for o in owners if o < owner) for owner in owners}
        begin = firsts if scheme["labels"] == "global_query_index" else starts
        labels = torch.tensor([begin[o] + b for o in rows for b in range(len(q[o]))])
        candidates = torch.cat([side[o] for o in owners for side in (d, h)])
        queries = torch.cat([q[o] for o in rows])
        if self.body.get("loss_form") == "sigmoid":
            own = functional.one_hot(labels, len(candidates)).to(torch.float64)
            logits = self.logits(queries, candidates, rank) + self.biases[rank]
            return functional.binary_cross_entropy_with_logits(logits, own, reduction="sum")
        loss = functional.cross_entropy(self.logits(queries, candidates, rank), labels, reduction="sum")
        if self.body["direction"] == "q2d":
            return loss
        labels = torch.tensor([firsts[o] + b for o in rows for b in range(len(q[o]))])
        logits = self.logits(torch.cat([d[o] for o in rows]), torch.cat([q[o] for o in owners]), rank)
        return (loss + functional.cross_entropy(logits, labels, reduction="sum")) / 2


def rank_loss(world: World, rank: int, scheme: dict[str, Any]) -> Tensor:
    """What one rank (or one chunk) calls backward on."""
    everyone, gather = range(world.ranks), scheme["gather"]
    whole = scheme["loss"] == "global" or gather == "cached_accumulation"
    own = {name: lambda owner: owner == rank for name in "qdh"}
    alive: dict[str, Any] = {
        "grad_sum": {name: lambda owner: True for name in "qdh"},
        "detach_all_docs": own | {name: lambda owner: False for name in "dh"},
    }.get(gather, own)
    rows = list(everyone) if whole else [rank]
    total = world.cross_entropy(rank, rows, [rank] if gather == "none" else everyone, scheme, alive)
    sizes = [len(queries) for queries in world.body["q"]]
    norm = {
        "local_mean": 1 / sum(sizes[r] for r in rows),
        "P_over_global_count": world.ranks / sum(sizes),
        "sum": 1.0,
    }[scheme["normalization"]]
    multiplier, divisor = (
        {"P": world.ranks, "1/3": 1 / 3}.get(scheme[factor], scheme[factor]) for factor in ("multiplier", "divide_by")
    )
    loss: Tensor = total * norm * multiplier / divisor
    return loss


def simulate(body: Body, scheme: dict[str, Any]) -> dict[str, Any]:
    """Every rank's backward, then the reduction. An owner receives from every graph in which it is alive."""
    world = World(body)
    losses = [rank_loss(world, rank, scheme) for rank in range(world.ranks)]
    torch.autograd.backward(losses)
    mean = scheme["reduction"] == "mean" and scheme["gather"] != "cached_accumulation"
    divisor = world.ranks if mean else 1

    def reduced(leaves: list[Tensor]) -> Any:
        return (sum(map(gradient, leaves), torch.zeros(())) / divisor).tolist()

    answer: dict[str, Any] = {
        "rank_losses": [loss.item() for loss in losses],
        "mean_rank_loss": sum(loss.item() for loss in losses) / world.ranks,
        "grad_wq_per_dim": reduced(world.wq),
        "grad_wd_per_dim": reduced(world.wd),
        "grad_log_scale": reduced(world.log_scales),
        **({"grad_bias": reduced(world.biases)} if body.get("loss_form") == "sigmoid" else {}),
        "before": [[gradient(w).sum().item() for w in weights] for weights in (world.wq, world.wd)],
    }
    for name in "qdh" if "hard_negatives" in body else "qd":
        answer[f"grad_{name}"] = [(gradient(shift) / divisor).tolist() for shift in world.shifts[name]]
    return answer | {f"grad_w{name}": sum(answer[f"grad_w{name}_per_dim"]) for name in "qd"}


def gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


FULL = {
    "gather": "cached_accumulation",
    "loss": "global",
    "multiplier": 1,
    "normalization": "local_mean",
    "labels": "correct",
    "reduction": "sum",
    "divide_by": 1,
}


def full_objective(body: Body) -> dict[str, Any]:
    """The whole loss in one process."""
    world = World(body)
    alive = {name: lambda owner: True for name in "qdh"}
    everyone = list(range(world.ranks))
    loss = world.cross_entropy(0, everyone, everyone, FULL, alive) / sum(map(len, body["q"]))
    torch.autograd.backward(loss)
    answer: dict[str, Any] = {"loss": loss.item(), "grad_log_scale": gradient(world.log_scales[0]).item()}
    if body.get("loss_form") == "sigmoid":
        answer["grad_bias"] = gradient(world.biases[0]).item()
    for name in "qdh" if "hard_negatives" in body else "qd":
        answer[f"grad_{name}"] = [gradient(shift).tolist() for shift in world.shifts[name]]
    for name, weights in (("q", world.wq), ("d", world.wd)):
        answer[f"grad_w{name}_per_dim"] = sum(map(gradient, weights), torch.zeros(())).tolist()
    return answer


def compute(body: Body, *chosen: dict[str, Any]) -> dict[str, Any]:
    inputs = info_nce.Inputs.model_validate({**body, **({"schemes": list(chosen)} if chosen else {})})
    return info_nce.compute(inputs).model_dump(mode="json")


def agree(got: dict[str, Any], expected: dict[str, Any], rtol: float = 1e-9, atol: float = 1e-11) -> None:
    for field, value in expected.items():
        by_rank = field in ("grad_q", "grad_d", "grad_h")  # ranks may differ in shape
        for one, other in zip(got[field], value, strict=True) if by_rank else [(got[field], value)]:
            np.testing.assert_allclose(one, other, rtol=rtol, atol=atol, err_msg=field)


@settings(deadline=None, max_examples=40)
@given(bodies())
def test_the_reference_is_the_whole_loss_of_one_process(body: Body) -> None:
    agree(compute(body)["reference"], full_objective(body))


@settings(deadline=None, max_examples=250)
@given(bodies(), schemes())
def test_every_scheme_gives_what_its_ranks_graphs_give(body: Body, scheme: dict[str, Any]) -> None:
    expected = simulate(body, scheme)
    del expected["before"]
    agree(compute(body, scheme)["schemes"]["it"], expected)


@pytest.mark.parametrize("block", [1, 7, 40])
@pytest.mark.parametrize(
    ("counts", "shipped"), [([1] * 9, []), ([2, 2, 2, 3, 3, 1], [0, 1, 1, 2, 2, 0]), ([5, 4], [3, 0])]
)
def test_blocks_that_cut_ranks_change_nothing(
    monkeypatch: pytest.MonkeyPatch, block: int, counts: list[int], shipped: list[int]
) -> None:
    rng = np.random.default_rng(5)
    body: Body = {name: [rng.standard_normal((n, 2)).tolist() for n in counts] for name in ("q", "d")}
    body |= {"tau": 0.5, "similarity": "dot", "direction": "bidirectional"}
    if shipped:
        body["hard_negatives"] = [rng.standard_normal((n, 2)).tolist() for n in shipped]
    monkeypatch.setattr(tables, "BLOCK", block)
    chosen = [{**FULL, "reduction": "mean", **scheme, "name": str(i)} for i, scheme in enumerate(SCHEMES)]
    answer = compute(body, *chosen)
    agree(answer["reference"], full_objective(body))
    for scheme in chosen:
        expected = simulate(body, scheme)
        del expected["before"]
        agree(answer["schemes"][scheme["name"]], expected)


@pytest.mark.parametrize("name", [scheme.name for scheme in info_nce.NAMED_SCHEMES])
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_the_panel_shows_each_ranks_weight_gradients_before_the_reduction(name: str, similarity: str) -> None:
    rows: Body = {"q": [[[1, 2], [0.5, -1]], [[-1, 0.3]]], "d": [[[0.4, 1], [2, -1]], [[-0.5, -0.5]]]}
    text = {field: ";".join(",".join(map(str, row)) for rank in value for row in rank) for field, value in rows.items()}
    fields = {**text, "ranks": "2,1", "scheme": name, "similarity": similarity, "direction": "bidirectional"}
    view = Asked("info_nce").panel(**fields)
    scheme = next(scheme for scheme in info_nce.NAMED_SCHEMES if scheme.name == name)
    body = {**rows, "tau": 1.0, "similarity": similarity, "direction": "bidirectional"}
    expected = simulate(body, scheme.model_dump(mode="json"))
    before = [[rank.grad_wq for rank in view.ranks], [rank.grad_wd for rank in view.ranks]]
    np.testing.assert_allclose(before, expected["before"], rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose([rank.loss for rank in view.ranks], expected["rank_losses"], rtol=1e-12, atol=1e-15)


@settings(deadline=None, max_examples=60)
@given(bodies(), st.randoms())
def test_renaming_ranks_renames_their_gradients_and_nothing_else(body: Body, random: Any) -> None:
    order = list(range(len(body["q"])))
    random.shuffle(order)
    lists = [name for name in ("q", "d", "hard_negatives") if name in body]
    one, other = compute(body), compute(body | {name: [body[name][r] for r in order] for name in lists})
    for before, after in [(one["reference"], other["reference"])] + [
        (scheme, other["schemes"][name]) for name, scheme in one["schemes"].items()
    ]:
        expected = {field: value for field, value in before.items() if not field.startswith("max_abs")}
        for field in ("grad_q", "grad_d", "grad_h", "rank_losses"):
            if field in expected:
                expected[field] = [before[field][r] for r in order]
        agree(after, expected)


@settings(deadline=None, max_examples=60)
@given(bodies(equal=True))
def test_with_equal_counts_local_means_global_means_and_global_counts_agree(body: Body) -> None:
    chosen = [
        {"name": "local", "gather": "grad_sum", "loss": "local"},
        {"name": "global", "gather": "grad_sum", "loss": "global"},
        {"name": "count", "gather": "grad_sum", "loss": "local", "normalization": "P_over_global_count"},
        {"name": "times_P", "gather": "detach_keep_local", "loss": "global", "multiplier": "P"},
        {"name": "cached", "gather": "cached_accumulation", "loss": "global"},
    ]
    found = compute(body, *chosen)["schemes"]
    assert all(scheme["matches_reference"] for scheme in found.values())
    assert all(found[name]["log_scale_matches_reference"] for name in ("local", "global", "count"))
    alone = len(body["q"]) == 1
    several = abs(compute(body)["reference"]["grad_log_scale"]) > 1e-6 and not alone
    if several:
        assert not found["times_P"]["log_scale_matches_reference"]
        assert not found["cached"]["log_scale_matches_reference"]


@settings(deadline=None, max_examples=60)
@given(bodies())
def test_the_global_count_is_right_for_any_counts(body: Body) -> None:
    scheme = {"name": "count", "gather": "grad_sum", "loss": "local", "normalization": "P_over_global_count"}
    found = compute(body, scheme)["schemes"]["count"]
    assert found["matches_reference"]
    assert found["log_scale_matches_reference"]


@settings(deadline=None, max_examples=40)
@given(bodies(), st.sampled_from([1e-60, 1e-3, 7.0, 1e60]))
def test_the_verdict_does_not_depend_on_the_unit(body: Body, unit: float) -> None:
    scaled = body | {"q": [[[unit * x for x in row] for row in rank] for rank in body["q"]]}
    if body["similarity"] == "dot":
        scaled.pop("logit_scale_log", None)
        tau = body["tau"] if "tau" in body else float(np.exp(-body["logit_scale_log"]))
        scaled["tau"] = unit * tau
    one, other = compute(body), compute(scaled)
    np.testing.assert_allclose(other["reference"]["loss"], one["reference"]["loss"], rtol=1e-9, atol=1e-13)
    for name, scheme in one["schemes"].items():
        for verdict in ("matches_reference", "log_scale_matches_reference"):
            assert other["schemes"][name][verdict] is scheme[verdict]


@settings(deadline=None, max_examples=40)
@given(bodies(hard=False))
def test_one_weight_and_the_log_scale_feel_the_same_under_dot_products(body: Body) -> None:
    reference = compute(body | {"similarity": "dot"})["reference"]
    for weight in ("grad_wq", "grad_wd"):
        np.testing.assert_allclose(reference[weight], reference["grad_log_scale"], rtol=1e-9, atol=1e-12)
    cosine = compute(body | {"similarity": "cosine"})["reference"]
    assert cosine["grad_wq"] == 0.0
    np.testing.assert_allclose(sum(cosine["grad_wq_per_dim"]), 0.0, atol=1e-12)


@pytest.mark.parametrize("tau", [1e-4, 1e-2, 1e6, 1e12])
def test_extreme_temperatures_agree_with_autograd_over_a_stable_log_softmax(tau: float) -> None:
    rng = np.random.default_rng(6)
    body: Body = {name: (20 * rng.standard_normal((3, 2, 4))).tolist() for name in ("q", "d")}
    body |= {"tau": tau, "similarity": "dot", "direction": "bidirectional"}
    expected = full_objective(body)
    scale = max(np.abs(np.array(expected["grad_d"])).max(), np.abs(np.array(expected["grad_q"])).max())
    agree(compute(body)["reference"], expected, rtol=1e-8, atol=1e-12 * scale)
