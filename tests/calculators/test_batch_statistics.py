"""Statistics of a batch against torch: its autograd, its var, its BatchNorm with running statistics, its GroupNorm."""

import random
from fractions import Fraction
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.kit import Asked, Body, Program

asked = Asked("batch_statistics")
answer, view = asked.answer, asked.view
Tensor = torch.Tensor


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# --- load_balance: tokens one by one, each a row of probabilities, and autograd


@st.composite
def routed(draw: st.DrawFn, lowest: int = 1) -> Body:
    ranks, microsteps, experts = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    top_k = draw(st.integers(1, experts))
    cells = []
    for _ in range(ranks):
        row = []
        for _ in range(microsteps):
            picks = draw(
                st.lists(st.permutations(range(experts)), min_size=lowest, max_size=4)
            )  # each token's experts in order of preference
            assigned = [sum(expert in pick[:top_k] for pick in picks) for expert in range(experts)]
            share = [draw(st.integers(0, 8)) / 8 for _ in range(experts)]
            row.append({"tokens": len(picks), "assigned": assigned, "probability": share})
        cells.append(row)
    return {"term": "load_balance", "top_k": top_k, "cells": cells}


GROUPS = {
    "global": lambda r, k: 0,
    "per_microstep": lambda r, k: k,
    "per_rank": lambda r, k: r,
    "per_microbatch": lambda r, k: (r, k),
}


@given(routed())
@settings(max_examples=15, deadline=None)
def test_the_balancing_loss_and_its_derivatives_are_those_of_the_tokens(body: Body) -> None:
    cells = body["cells"]
    places = [(r, k) for r, row in enumerate(cells) for k in range(len(row))]
    tokens = {(r, k): tensor([cells[r][k]["probability"]] * cells[r][k]["tokens"]).requires_grad_() for r, k in places}

    def f(members: list[tuple[int, int]]) -> Tensor:
        assigned = sum(tensor(cells[r][k]["assigned"]) for r, k in members)
        return assigned / (body["top_k"] * sum(cells[r][k]["tokens"] for r, k in members))

    def loss(groups: list[list[tuple[int, int]]], counted: list[list[tuple[int, int]]]) -> Tensor:
        values = [
            len(cells[0][0]["assigned"]) * (f(by) * torch.cat([tokens[place] for place in members]).mean(0)).sum()
            for members, by in zip(groups, counted, strict=True)
        ]
        return torch.stack(values).mean()

    alone = [[place] for place in places]
    expected = {
        "global_f_local_p": loss(alone, [places] * len(places)),
        "f_so_far": loss(alone, [[(s, j) for s, j in places if j <= k] for _, k in places]),
    }
    for name, key in GROUPS.items():
        keys = sorted({key(*place) for place in places}, key=str)
        groups = [[place for place in places if key(*place) == one] for one in keys]
        expected[name] = loss(groups, groups)
    schemes = answer(body)["schemes"]
    assert set(schemes) == set(expected)
    for name, value in expected.items():
        gradients = torch.autograd.grad(value, list(tokens.values()))
        assert schemes[name]["value"] == pytest.approx(value.item(), rel=1e-12)
        found = list(chain.from_iterable(schemes[name]["probability_gradients"]))
        for cell, gradient in zip(found, gradients, strict=True):
            torch.testing.assert_close(tensor([cell] * len(gradient)), gradient, rtol=1e-12, atol=1e-15)


def test_an_equal_loss_may_have_other_derivatives() -> None:
    cells = [
        [{"tokens": 4, "assigned": [4, 0], "probability": ["1/2", "1/2"]}],
        [{"tokens": 4, "assigned": [0, 4], "probability": ["1/2", "1/2"]}],
    ]
    schemes = answer(cells=cells)["schemes"]
    assert schemes["per_rank"]["ratio_to_reference"] == 1
    assert schemes["per_rank"]["matches_reference"] is False
    assert schemes["global_f_local_p"]["matches_reference"] is True


def test_an_empty_cell_leaves_the_schemes_that_need_its_own_statistics_undefined() -> None:
    cells = [
        [
            {"tokens": 2, "assigned": [2, 0], "probability": ["0.9", "0.1"]},
            {"tokens": 0, "assigned": [0, 0], "probability": [0, 0]},
        ],
        [
            {"tokens": 2, "assigned": [1, 1], "probability": ["0.5", "0.5"]},
            {"tokens": 2, "assigned": [0, 2], "probability": ["0.2", "0.8"]},
        ],
    ]
    schemes = answer(cells=cells)["schemes"]
    undefined = {name for name, scheme in schemes.items() if not scheme["defined"]}
    assert undefined == {"global_f_local_p", "f_so_far", "per_microbatch"}
    assert {schemes[name]["reason"] for name in undefined} == {"empty_cell"}
    empty = [[{"tokens": 0, "assigned": [0], "probability": [0]}]]
    assert {scheme["reason"] for scheme in answer(cells=empty)["schemes"].values()} == {"zero_count"}


# --- whiten and batch_norm


def windows(lowest: int = 2) -> st.SearchStrategy[list[list[list[float]]]]:
    value = st.integers(-40, 40).map(lambda n: n / 4)

    def of(shape: tuple[int, int]) -> st.SearchStrategy[list[list[list[float]]]]:
        cell = st.lists(value, min_size=lowest, max_size=4)
        row = st.lists(cell, min_size=shape[1], max_size=shape[1])
        return st.lists(row, min_size=shape[0], max_size=shape[0])

    return st.tuples(st.integers(1, 3), st.integers(1, 3)).flatmap(of)


@given(windows(), st.booleans(), st.sampled_from(["inside", "outside"]))
@settings(max_examples=15, deadline=None)
def test_whitened_values_are_torchs_mean_and_var_of_the_group(
    values: list[list[list[float]]], unbiased: bool, place: str
) -> None:
    eps = 0.25
    schemes = answer(term="whiten", values=values, unbiased=unbiased, eps=eps, eps_place=place)["schemes"]
    flat = {
        "global": [list(chain.from_iterable(chain.from_iterable(values)))],
        "per_rank": [list(chain.from_iterable(row)) for row in values],
        "per_microbatch": [cell for row in values for cell in row],
    }
    moments = {
        name: [(tensor(g).mean(), tensor(g).var(correction=int(unbiased))) for g in groups]
        for name, groups in flat.items()
    }
    moments["averaged_moments"] = [
        (
            torch.stack([m for m, _ in moments["per_rank"]]).mean(),
            torch.stack([v for _, v in moments["per_rank"]]).mean(),
        )
    ]
    flat["averaged_moments"] = flat["global"]
    for name, groups in flat.items():
        expected = torch.cat(
            [
                (tensor(g) - m) / ((v + eps).sqrt() if place == "inside" else v.sqrt() + eps)
                for g, (m, v) in zip(groups, moments[name], strict=True)
            ]
        )
        found = tensor(list(chain.from_iterable(chain.from_iterable(schemes[name]["whitened"]))))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
        assert schemes[name]["means"] == pytest.approx([m.item() for m, _ in moments[name]], abs=1e-12)


def layer(body: Body) -> torch.nn.BatchNorm1d:
    module = torch.nn.BatchNorm1d(1, eps=body["eps"], momentum=body["momentum"], affine=False, dtype=torch.float64)
    module.running_mean = tensor([body["running_mean"]])
    module.running_var = tensor([body["running_var"]])
    return module.train()


@given(windows())
@settings(max_examples=15, deadline=None)
def test_batch_norm_is_torchs_in_training_with_its_running_statistics(values: list[list[list[float]]]) -> None:
    body = {"eps": 0.125, "momentum": 0.25, "running_mean": 0.5, "running_var": 2.0}
    schemes = answer(term="batch_norm", values=values, **body)["schemes"]
    ranks, microsteps = len(values), len(values[0])
    whole, sync, local = layer(body), layer(body), [layer(body) for _ in values]
    expected = {"whole_window": [], "sync_batch_norm": [], "local": []}
    expected["whole_window"] = whole(tensor(list(chain.from_iterable(chain.from_iterable(values))))[:, None])[
        :, 0
    ].tolist()
    per_step = [sync(tensor([x for row in values for x in row[k]])[:, None])[:, 0].tolist() for k in range(microsteps)]
    taken = [iter(step) for step in per_step]
    parts = {(r, k): [next(taken[k]) for _ in values[r][k]] for r in range(ranks) for k in range(microsteps)}
    expected["sync_batch_norm"] = [x for r in range(ranks) for k in range(microsteps) for x in parts[r, k]]
    expected["local"] = [
        x
        for r in range(ranks)
        for k in range(microsteps)
        for x in local[r](tensor(values[r][k])[:, None])[:, 0].tolist()
    ]
    modules = {"whole_window": [whole] * ranks, "sync_batch_norm": [sync] * ranks, "local": local}
    for name, normalised in expected.items():
        found = list(chain.from_iterable(chain.from_iterable(schemes[name]["normalised"])))
        assert found == pytest.approx(normalised, rel=1e-9, abs=1e-9)
        for statistic in ("running_mean", "running_var"):
            after = [getattr(module, statistic).item() for module in modules[name]]
            assert schemes[name][statistic] == pytest.approx(after, rel=1e-10, abs=1e-12)


def test_accumulation_never_pools_microsteps_even_under_sync_batch_norm() -> None:
    schemes = answer(term="batch_norm", values=[[[1, 3], [10, 14]], [[2, 4], [9, 13]]])["schemes"]
    assert schemes["sync_batch_norm"]["matches_reference"] is False
    one = answer(term="batch_norm", values=[[[1, 3]], [[10, 14, 18]]])["schemes"]
    assert one["sync_batch_norm"]["matches_reference"] is True
    assert one["sync_unweighted"]["matches_reference"] is False


def test_a_group_of_one_value_is_undefined_as_torch_refuses_it() -> None:
    values = [[[1]], [[2, 5]]]
    found = answer(term="batch_norm", values=values)["schemes"]
    assert {name: scheme["reason"] for name, scheme in found.items()} == {
        "whole_window": None,
        "sync_batch_norm": None,
        "local": "one_value",
        "sync_unweighted": "one_value",
    }
    assert found["local"]["normalised"] is None
    with pytest.raises(ValueError, match="more than 1 value"):
        layer({"eps": 1e-5, "momentum": 0.1, "running_mean": 0, "running_var": 1})(tensor([[1.0]]))
    whitened = answer(term="whiten", values=values)["schemes"]
    assert (whitened["per_rank"]["reason"], whitened["per_rank"]["whitened"][0]) == ("one_value", [None])
    assert whitened["per_rank"]["whitened"][1] == [pytest.approx([-(0.5**0.5), 0.5**0.5])]
    assert (whitened["per_rank"]["means"], whitened["per_rank"]["variances"]) == ([1, 3.5], [None, 4.5])
    assert whitened["averaged_moments"]["reason"] == "one_value"
    assert whitened["global"]["defined"] is True


def test_equal_values_have_no_deviation_unless_eps_is_added() -> None:
    values = [[[3, 3]], [[1, 2]]]
    plain = answer(term="whiten", values=values)["schemes"]["per_rank"]
    assert (plain["defined"], plain["reason"]) == (False, "zero_variance")
    assert (plain["variances"], plain["whitened"][0]) == ([0, 0.5], [None])
    added = answer(term="whiten", values=values, eps="1/100")["schemes"]["per_rank"]
    assert (added["defined"], added["whitened"][0]) == (True, [[0, 0]])
    nothing = answer(term="whiten", values=[[[3, 3]], [[3]]], unbiased=False)["schemes"]["global"]
    assert (nothing["reason"], nothing["whitened"], nothing["means"]) == ("zero_variance", None, [3])


def test_an_empty_cell_has_no_mean() -> None:
    found = answer(term="whiten", values=[[[1, 2], []], [[4], [9, 5]]], unbiased=False, eps=1)["schemes"]
    assert (found["per_microbatch"]["reason"], found["per_microbatch"]["means"][1]) == ("empty_cell", None)
    assert found["per_rank"]["defined"] is True
    assert {s["reason"] for s in answer(term="whiten", values=[[[]]])["schemes"].values()} == {"zero_count"}
    assert {s["reason"] for s in answer(term="batch_norm", values=[[[]]])["schemes"].values()} == {"zero_count"}


def test_large_windows_agree_with_the_same_values_in_fractions() -> None:
    """4,097 values are float64, 4,096 of them exact; the last one is the mean, so that the means stay."""
    source = random.Random(5)
    values = [source.randint(-100, 100) / 4 for _ in range(4_095)]
    values.append(-sum(values))
    exact = answer(term="whiten", values=[[values]], unbiased=False)["schemes"]["global"]
    rounded = answer(term="whiten", values=[[[*values, 0]]], unbiased=False)["schemes"]["global"]
    assert Fraction(exact["means_exact"][0]) == 0
    assert rounded["means_exact"] is None
    assert rounded["means"][0] == pytest.approx(0, abs=1e-9)
    assert rounded["variances"][0] * 4_097 == pytest.approx(exact["variances"][0] * 4_096, rel=1e-12)


# --- group_norm


@pytest.mark.parametrize(("groups", "shards"), [(1, 2), (2, 2), (4, 2), (1, 1), (2, 4), (8, 4)])
def test_shards_normalise_their_own_groups_as_torchs_group_norm_does(groups: int, shards: int) -> None:
    x = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = answer(term="group_norm", samples=x.tolist(), groups=groups, shards=shards)
    own = max(1, groups // shards)
    assert found["groups_per_shard"] == own
    norm = torch.nn.functional.group_norm
    whole, split = norm(x, groups), torch.cat([norm(part, own) for part in x.chunk(shards, 1)], 1)
    schemes = found["schemes"]
    torch.testing.assert_close(tensor(schemes["whole"]["normalised"]), whole, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(tensor(schemes["channels_split"]["normalised"]), split, rtol=1e-10, atol=1e-12)
    assert schemes["channels_split"]["matches_reference"] is (groups % shards == 0)
    statistics = [[group["mean"] for group in sample] for sample in schemes["whole"]["statistics"]]
    torch.testing.assert_close(tensor(statistics), x.reshape(3, groups, -1).mean(-1))


def test_the_statistics_of_a_sample_do_not_depend_on_the_batch() -> None:
    rows = [[1, 2, 3, 10], [0, 0, 4, 8], [5, -1, 2, 2]]
    together = answer(term="group_norm", samples=rows)["schemes"]["channels_split"]
    for row, statistics in zip(rows, together["statistics"], strict=True):
        alone = answer(term="group_norm", samples=[row])["schemes"]["channels_split"]
        assert alone["statistics"] == [statistics]


def test_equal_channels_without_eps_cannot_be_normalised() -> None:
    found = answer(term="group_norm", samples=[[0, 0, 4, 8]], eps=0)["schemes"]
    assert (found["channels_split"]["reason"], found["channels_split"]["normalised"][0][:2]) == (
        "zero_variance",
        [None, None],
    )
    assert found["whole"]["defined"] is True


# --- refusals


def cell(**fields: Any) -> Body:
    return {"tokens": 2, "assigned": [1, 1], "probability": ["0.5", "0.5"]} | fields


REFUSED_BODIES = [
    ({"term": "layer_norm"}, "term"),
    ({"top_k": 0}, "top_k"),
    ({"cells": []}, "cells"),
    ({"cells": [[]]}, "cells"),
    ({"cells": [[cell()], [cell(), cell()]]}, "cells.1"),
    ({"cells": [[cell(assigned=[2, 1])]]}, "cells.0.0.assigned"),
    ({"cells": [[cell()]], "top_k": 2}, "cells.0.0.assigned"),
    ({"cells": [[cell(), cell(assigned=[2])]]}, "cells.0.1.assigned"),
    ({"cells": [[cell(assigned=[], probability=[])]]}, "cells.0.0.assigned"),
    ({"cells": [[cell(probability=[1])]]}, "cells.0.0.probability"),
    ({"cells": [[cell(probability=["0.5", "1.5"])]]}, "cells.0.0.probability.1"),
    ({"cells": [[cell(probability=["0.5", "nan"])]]}, "cells.0.0.probability.1"),
    ({"cells": [[cell(tokens=-2)]]}, "cells.0.0.tokens"),
    ({"cells": [[cell(tokens=1.5)]]}, "cells.0.0.tokens"),
    ({"cells": [[cell(assigned=[0.5, 1.5])]]}, "cells.0.0.assigned.0"),
    ({"cells": [[{"tokens": 2, "assigned": [1, 1]}]]}, "cells.0.0.probability"),
    ({"term": "whiten", "values": [[[1, 2]], [[3], [4]]]}, "values.1"),
    ({"term": "whiten", "values": [[[1, 2], [3, "inf"]]]}, "values.0.1.1"),
    ({"term": "whiten", "values": []}, "values"),
    ({"term": "whiten", "eps": -1}, "eps"),
    ({"term": "whiten", "eps_place": "under"}, "eps_place"),
    ({"term": "whiten", "unbiased": "maybe"}, "unbiased"),
    ({"term": "whiten", "values": [[["1e300", "-1e300"]]]}, "values.0.0.0"),
    ({"term": "whiten", "values": [[[0, "1e-200"]]]}, "values"),
    ({"term": "batch_norm", "eps": 0}, "eps"),
    ({"term": "batch_norm", "momentum": 2}, "momentum"),
    ({"term": "batch_norm", "running_var": -1}, "running_var"),
    ({"term": "group_norm", "samples": []}, "samples"),
    ({"term": "group_norm", "samples": [[1, 2], [3]]}, "samples.1"),
    ({"term": "group_norm", "groups": 3}, "groups"),
    ({"term": "group_norm", "shards": 3}, "shards"),
    ({"term": "group_norm", "samples": [[1] * 12], "groups": 3, "shards": 2}, "shards"),
    ({"term": "group_norm", "samples": [[1] * 12], "groups": 0}, "groups"),
    ({"layers": 2}, "layers"),
]


REFUSED_FIELDS = {
    "tokens": ["100;x"],
    "assigned": [{"tokens": "100,1;100"}, "100+1;0+100", "100+x;0+100"],
    "probability": ["0.9+0.1;0.1", "0.9+2;0.1+0.9", "0.9+0.1"],
    "values": [{"term": "whiten", "values": "1 2;x"}],
    "values.1": [{"term": "whiten", "values": "1 2;3,4"}],
    "eps": [{"term": "batch_norm", "eps": "0"}],
    "shards": [{"term": "group_norm", "shards": "3"}],
    "scheme": [{"term": "whiten", "scheme": "local"}, "mine"],
}


def test_the_panel_reads_members_of_a_cell_by_plus_or_blank() -> None:
    for text in ("0 1 2 3;4 5 6 7 8", "0+1+2+3;4+5+6+7+8", "0e+0 1 +2 3;4 5  6 7 8"):
        assert view(term="whiten", values=text)["current"]["max_abs_difference"] == pytest.approx(1.5270433755323358)


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    term = source.choice(["load_balance", "whiten", "batch_norm", "group_norm"])
    ranks, microsteps = source.randint(1, 3), source.randint(1, 2)
    if term == "group_norm":
        shards, own = source.choice([1, 2, 3]), source.choice([1, 2])
        channels = shards * own * source.choice([2, 3])
        samples = [[source.randint(-20, 20) / 4 for _ in range(channels)] for _ in range(2)]
        return {"term": term, "samples": samples, "shards": shards, "groups": source.choice([1, shards * own])}
    if term == "load_balance":
        experts = source.randint(1, 3)
        cells = []
        for _ in range(ranks):
            row = []
            for _ in range(microsteps):
                assigned = [source.randint(0, 4) for _ in range(experts)]
                share = [source.randint(0, 8) / 8 for _ in range(experts)]
                row.append({"tokens": sum(assigned), "assigned": assigned, "probability": share})
            cells.append(row)
        return {"term": term, "cells": cells}
    values = [
        [[source.randint(-20, 20) / 4 for _ in range(source.choice([1, 2, 2, 3]))] for _ in range(microsteps)]
        for _ in range(ranks)
    ]
    if term == "whiten":
        more = {"unbiased": source.random() < 0.5, "eps_place": source.choice(["inside", "outside"])}
        return {"term": term, "values": values, "eps": source.choice([0, 0.5]), **more}
    return {"term": term, "values": values, "eps": 0.125, "momentum": 0.25, "running_mean": 1, "running_var": 2}


PROGRAM = Program(
    prints=["schemes.global.value", "schemes.per_rank.value", "schemes.per_rank.probability_gradients"],
    planted=("[100, 0]", "[50, 50]"),
    bodies=any_body,
)
