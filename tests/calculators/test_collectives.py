"""Facts about collectives; the independent methods are real Gloo processes, autograd in one process, and messages
passed by hand along the ring and the tree."""

import json
import math
import random
from collections.abc import Iterator
from itertools import pairwise, product
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings, strategies as st

from samestep.app.calculators.collectives.traffic import Sent, pairwise as direct, ring, tree
from samestep.app.contract.limits import MAX_LISTED_CELLS
from samestep.app.evidence.bags import Json
from samestep.experiments.ranks.launch import Job, launch, workplace
from tests.kit import Asked, Body, Program, cases, changed, quarters

asked = Asked("collectives")
answer, view = asked.answer, asked.view

OPS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all")
REDUCES = ("sum", "avg", "max", "min", "product")
KINDS = [(op, reduce) for op in OPS[:2] for reduce in REDUCES] + [(op, "sum") for op in OPS[2:]]


def lengths(op: str, ranks: int, size: int) -> tuple[int, int]:
    """Elements of a rank's input and output, `size` slots of a rank or elements."""
    return {
        "all_gather": (size, size * ranks),
        "reduce_scatter": (size * ranks, size),
        "all_to_all": (size * ranks, size * ranks),
    }.get(op, (size, size))


def example(op: str, reduce: str, ranks: int, seed: int) -> Body:
    """A body with all fields, all values different."""
    numbers = random.Random(seed)
    inputs, outputs = lengths(op, ranks, 2)

    def rows(width: int) -> list[list[float]]:
        return [[round(numbers.uniform(-4, 4), 3) for _ in range(width)] for _ in range(ranks)]

    return {"op": op, "reduce": reduce, "root": ranks - 1, "values": rows(inputs), "output_grads": rows(outputs)}


# --- against real processes

REAL = [example(op, reduce, ranks, seed) for seed, ((op, reduce), ranks) in enumerate(product(KINDS, (2, 3)))]


@pytest.fixture(scope="module")
def real() -> Iterator[list[dict[str, Any]]]:
    """What torch did on 3 Gloo processes (2 of them for the cases of 2), one launch for all."""
    with workplace() as folder:
        launch(Job(["tests.calculators.gloo_collectives"], 3, options={"cases": cast(Json, REAL)}), folder)
        answers: list[dict[str, Any]] = json.loads((folder / "gloo_collectives" / "result.json").read_text("utf-8"))[
            "answers"
        ]
        yield answers


def name_of(body: Body) -> str:
    return f"{body['op']}-{body['reduce']}-{len(body['values'])}"


@pytest.mark.parametrize("number", range(len(REAL)), ids=[name_of(body) for body in REAL])
def test_outputs_and_backwards_are_those_of_real_gloo_processes(real: list[dict[str, Any]], number: int) -> None:
    body, found = REAL[number], real[number]
    got = answer(body)
    for name, ranks in found.items():
        scheme = got["schemes"][name]
        for r, rank in enumerate(ranks):
            assert rank["output"] == pytest.approx(got["outputs"][r], rel=1e-12, abs=1e-12)
            if scheme["defined"]:
                assert rank["error"] is None
                assert rank["gradient"] == pytest.approx(scheme["gradient"][r], rel=1e-12, abs=1e-12)
            else:
                assert rank["gradient"] is None
                assert (rank["error"] is not None) is (scheme["reason"] == "raises")


def test_the_real_backward_of_anything_but_a_sum_says_that_it_only_knows_sums(real: list[dict[str, Any]]) -> None:
    errors = {
        name_of(body): rank["error"]
        for body, found in zip(REAL, real, strict=True)
        for rank in found["functional"]
        if rank["error"]
    }
    assert {name.rsplit("-", 1)[0] for name in errors} == {f"{op}-{r}" for op in OPS[:2] for r in REDUCES[1:]}
    assert all("only supports 'sum'" in error for error in errors.values())


def test_the_gathers_without_a_gradient_do_not_warn_and_the_in_place_ones_do(real: list[dict[str, Any]]) -> None:
    for body, found in zip(REAL, real, strict=True):
        plain = [rank["warnings"] for rank in found["plain"]]
        if body["op"] in ("all_gather", "all_to_all"):
            assert all(seen == [] for seen in plain)
        if body["op"] in ("all_reduce", "broadcast") and body is REAL[0]:
            assert plain == [["UserWarning"]] * 2  # once a process and kernel: the first case shows it


# --- against autograd in one process


def in_one_process(body: Body) -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
    """Outputs, dL/dx and dL_r/dx_r, with every rank's input a leaf of one graph."""
    leaves = [torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in body["values"]]
    stacked = torch.stack(leaves)
    ranks = len(leaves)
    if body["op"] in OPS[:2]:
        how = {
            "sum": lambda x: x.sum(0),
            "avg": lambda x: x.mean(0),
            "max": lambda x: x.amax(0),
            "min": lambda x: x.amin(0),
            "product": lambda x: x.prod(0),
        }
        reduced = how[body["reduce"]](stacked)
        outputs = [reduced] * ranks if body["op"] == "all_reduce" else list(reduced.chunk(ranks))
    elif body["op"] == "all_gather":
        outputs = [stacked.flatten()] * ranks
    elif body["op"] == "broadcast":
        outputs = [leaves[body["root"]] * 1] * ranks
    else:
        outputs = [torch.cat([leaf.chunk(ranks)[r] for leaf in leaves]) for r in range(ranks)]
    losses = [
        (y * torch.tensor(u, dtype=torch.float64)).sum() for y, u in zip(outputs, body["output_grads"], strict=True)
    ]
    total = torch.stack(losses).sum()
    full = torch.autograd.grad(total, leaves, retain_graph=True, materialize_grads=True)
    own = [
        torch.autograd.grad(loss, leaves, retain_graph=True, materialize_grads=True)[r] for r, loss in enumerate(losses)
    ]
    return [y.tolist() for y in outputs], [g.tolist() for g in full], [g.tolist() for g in own]


@st.composite
def bodies(draw: st.DrawFn) -> Body:
    """Any collective; whole numbers, so that maxima are often held by several ranks."""
    op, reduce = draw(st.sampled_from(KINDS))
    ranks = draw(st.integers(1, 5))
    inputs, outputs = lengths(op, ranks, draw(st.integers(1, 3)))

    def rows(width: int) -> list[list[int]]:
        return draw(
            st.lists(st.lists(st.integers(-5, 5), min_size=width, max_size=width), min_size=ranks, max_size=ranks)
        )

    root = draw(st.integers(0, ranks - 1))
    return {"op": op, "reduce": reduce, "root": root, "values": rows(inputs), "output_grads": rows(outputs)}


@settings(deadline=None, max_examples=150)
@given(bodies())
def test_the_adjoint_and_the_local_gradient_are_autograds_ties_included(body: Body) -> None:
    got = answer(body)
    outputs, full, own = in_one_process(body)
    for r in range(len(body["values"])):
        assert got["outputs"][r] == pytest.approx(outputs[r], rel=1e-12, abs=1e-12)
        assert got["schemes"]["adjoint"]["gradient"][r] == pytest.approx(full[r], rel=1e-12, abs=1e-12)
        assert got["schemes"]["local"]["gradient"][r] == pytest.approx(own[r], rel=1e-12, abs=1e-12)


@settings(deadline=None)
@given(bodies())
def test_an_adjoint_of_a_linear_collective_keeps_the_inner_product(body: Body) -> None:
    """<u, y(x)> = <y*(u), x>: the definition of an adjoint."""
    if body["reduce"] not in ("sum", "avg"):
        return
    got = answer(body)

    def inner(left: list[list[float]], right: list[list[float]]) -> float:
        return math.fsum(a * b for p, q in zip(left, right, strict=True) for a, b in zip(p, q, strict=True))

    forward = inner(body["output_grads"], got["outputs"])
    assert forward == pytest.approx(inner(got["schemes"]["adjoint"]["gradient"], body["values"]), rel=1e-9, abs=1e-9)


@settings(deadline=None)
@given(bodies())
def test_the_comparison_with_the_adjoint_says_what_the_numbers_say(body: Body) -> None:
    got = answer(body)["schemes"]
    right = [value for row in got["adjoint"]["gradient"] for value in row]
    for scheme in got.values():
        if not scheme["defined"]:
            assert scheme["gradient"] is scheme["matches_adjoint"] is scheme["ratio_to_adjoint"] is None
            continue
        found = [value for row in scheme["gradient"] for value in row]
        assert scheme["matches_adjoint"] is (found == pytest.approx(right, rel=1e-9, abs=1e-9))
        ratio = scheme["ratio_to_adjoint"]
        if ratio is not None:
            assert found == pytest.approx([ratio * value for value in right], rel=1e-9, abs=1e-9)


# --- lessons


def test_the_panels_default_is_an_all_reduce_whose_plain_backward_misses_the_factor_p() -> None:
    got = view()
    assert got["outputs"] == [[4, 7], [4, 7]]
    assert (got["selected"], got["current"]["ratio_to_adjoint"], got["current"]["matches_adjoint"]) == (
        "plain",
        0.5,
        False,
    )
    assert got["schemes"]["functional"]["matches_adjoint"] is True
    assert [row["adjoint"] for row in got["rows"]] == [[2, 2], [2, 2]]
    assert [row["gradient"] for row in got["rows"]] == [[1, 1], [1, 1]]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_worked_case_of_a_gathered_output(ranks: int) -> None:
    expected = cases()["N-11"]["expected"][f"P={ranks}"]
    w, slope = cases()["N-11"]["inputs"]["w"], 2
    got = answer({"op": "all_gather", "values": [[slope * w]] * ranks})
    assert sum(got["outputs"][0]) == expected["loss_on_each_rank"]
    summed = [slope * row[0] for row in got["schemes"]["adjoint"]["gradient"]]
    own_slice = [slope * row[0] for row in got["schemes"]["local"]["gradient"]]
    assert summed == [expected["grad_sum_backward"]] * ranks
    assert own_slice == [expected["grad_own_slice"]] * ranks
    assert sum(summed) / ranks == expected["after_ddp_mean_sum_backward"] == expected["single_process_grad_of_sum"]
    assert sum(own_slice) / ranks == expected["after_ddp_mean_own_slice"]


def test_the_deprecated_reduce_scatter_is_p_times_too_large_for_the_mean() -> None:
    got = answer({"op": "reduce_scatter", "reduce": "avg", "values": [[1, 2, 3], [4, 5, 6], [7, 8, 9]]})
    assert got["schemes"]["nn_functional"]["ratio_to_adjoint"] == pytest.approx(3)


def test_only_a_maximum_held_by_one_rank_has_a_derivative_of_its_own() -> None:
    assert answer({"op": "all_reduce", "reduce": "max", "values": [[1], [2]]})["ties"] is False
    tied = answer({"op": "all_reduce", "reduce": "max", "values": [[2], [2], [1]], "output_grads": [[1], [1], [1]]})
    assert tied["ties"] is True
    assert tied["schemes"]["adjoint"]["gradient"] == [[1.5], [1.5], [0]]


# --- traffic: messages passed by hand


class Wire:
    """Ranks that hand lists of numbers to each other; counts the elements that each sends."""

    def __init__(self, ranks: int) -> None:
        self.sent = [0] * ranks

    def send(self, source: int, values: list[Any]) -> list[Any]:
        self.sent[source] += len(values)
        return list(values)


def ring_all_reduce(wire: Wire, rows: list[list[int]]) -> list[list[int]]:
    ranks, n = len(rows), len(rows[0])
    edges = [0]
    for r in range(ranks):
        edges.append(edges[-1] + n // ranks + (r < n % ranks))
    held = [[row[a:b] for a, b in pairwise(edges)] for row in rows]
    for reduce in (True, False):
        for step in range(ranks - 1):
            # in the first round rank r sends chunk r, in the second the chunk it completed, r + 1
            moving = [(r, (r - step + (not reduce)) % ranks) for r in range(ranks)]
            messages = [wire.send(r, held[r][chunk]) for r, chunk in moving]
            for (r, chunk), message in zip(moving, messages, strict=True):
                to = (r + 1) % ranks
                mine = held[to][chunk]
                held[to][chunk] = [a + b for a, b in zip(mine, message, strict=True)] if reduce else message
    return [[value for chunk in row for value in chunk] for row in held]


def ring_exchange(wire: Wire, rows: list[list[int]]) -> list[list[int]]:
    """all_to_all round the ring: every block travels until it is home."""
    ranks, size = len(rows), len(rows[0]) // len(rows)
    travelling = [[(r, s, rows[r][s * size : (s + 1) * size]) for s in range(ranks)] for r in range(ranks)]
    home: list[dict[int, list[int]]] = [{} for _ in range(ranks)]
    for _ in range(ranks):
        arriving: list[list[tuple[int, int, list[int]]]] = [[] for _ in range(ranks)]
        for r, blocks in enumerate(travelling):
            for source, target, block in blocks:
                if target == r:
                    home[r][source] = block
                else:
                    arriving[(r + 1) % ranks].append((source, target, wire.send(r, block)))
        travelling = arriving
    return [[value for source in range(ranks) for value in home[r][source]] for r in range(ranks)]


def parent(rank: int) -> int:
    return rank & (rank - 1)


def below(rank: int, ranks: int) -> list[int]:
    """A rank and all that reach the root through it."""
    found = []
    for other in range(ranks):
        at = other
        while at not in (rank, 0):
            at = parent(at)
        if at == rank:
            found.append(other)
    return found


def through_the_tree(op: str, wire: Wire, rows: list[list[int]]) -> list[list[int]]:
    """Up to rank 0 and down again, leaves first; returns what every rank ends up with."""
    ranks, n = len(rows), len(rows[0])
    size = n // ranks
    held: list[Any] = [dict.fromkeys([r], row) for r, row in enumerate(rows)]
    if op in ("all_reduce", "reduce_scatter"):
        sums = [list(row) for row in rows]
        for r in range(ranks - 1, 0, -1):
            message = wire.send(r, sums[r])
            sums[parent(r)] = [a + b for a, b in zip(sums[parent(r)], message, strict=True)]
        if op == "all_reduce":
            for r in range(1, ranks):
                sums[r] = wire.send(parent(r), sums[parent(r)])
            return sums
        known = {0: {s: sums[0][s * size : (s + 1) * size] for s in range(ranks)}}
        for r in range(1, ranks):
            known[r] = {s: wire.send(parent(r), known[parent(r)][s]) for s in below(r, ranks)}
        return [known[r][r] for r in range(ranks)]
    if op == "all_gather":
        for r in range(ranks - 1, 0, -1):
            held[parent(r)] |= {source: wire.send(r, row) for source, row in held[r].items()}
        for r in range(1, ranks):
            held[r] = {source: wire.send(parent(r), row) for source, row in held[0].items()}
        return [[value for source in range(ranks) for value in held[r][source]] for r in range(ranks)]
    blocks = {r: {(r, s): rows[r][s * size : (s + 1) * size] for s in range(ranks)} for r in range(ranks)}
    for r in range(ranks - 1, 0, -1):
        inside = below(r, ranks)
        leaving = {key: block for key, block in blocks[r].items() if key[1] not in inside}
        blocks[parent(r)] |= {key: wire.send(r, block) for key, block in leaving.items()}
        blocks[r] = {key: block for key, block in blocks[r].items() if key not in leaving}
    for r in range(1, ranks):
        inside = below(r, ranks)
        entering = {key: block for key, block in blocks[parent(r)].items() if key[1] in inside and key[0] not in inside}
        blocks[r] |= {key: wire.send(parent(r), block) for key, block in entering.items()}
    return [[value for source in range(ranks) for value in blocks[r][source, r]] for r in range(ranks)]


def right(op: str, rows: list[list[int]]) -> list[list[int]]:
    return [[int(value) for value in row] for row in answer({"op": op, "values": rows})["outputs"]]


def table(ranks: int, n: int) -> list[list[int]]:
    return [[100 * r + i for i in range(n)] for r in range(ranks)]


@pytest.mark.parametrize("ranks", range(1, 10))
@pytest.mark.parametrize("spare", [0, 1, 2])
def test_the_ring_all_reduce_sends_what_passing_the_messages_sends(ranks: int, spare: int) -> None:
    rows, wire = table(ranks, 3 * ranks + spare), Wire(ranks)
    assert ring_all_reduce(wire, rows) == right("all_reduce", rows)
    found = ring("all_reduce", len(rows[0]), 1, ranks, 0)
    assert found.per_rank == tuple(wire.sent)
    assert sum(found.per_rank) == 2 * (ranks - 1) * len(rows[0])


@pytest.mark.parametrize("ranks", range(1, 10))
def test_the_ring_exchange_sends_what_passing_the_messages_sends(ranks: int) -> None:
    rows, wire = table(ranks, 2 * ranks), Wire(ranks)
    assert ring_exchange(wire, rows) == right("all_to_all", rows)
    assert ring("all_to_all", len(rows[0]), 1, ranks, 0).per_rank == tuple(wire.sent)


@pytest.mark.parametrize("ranks", range(1, 10))
@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all"])
def test_the_tree_sends_what_passing_the_messages_sends(op: str, ranks: int) -> None:
    rows, wire = table(ranks, 2 * ranks), Wire(ranks)
    assert through_the_tree(op, wire, rows) == right(op, rows)
    assert tree(op, len(rows[0]), 1, ranks, 0).per_rank == tuple(wire.sent)  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", range(1, 18))
def test_the_tree_broadcast_reaches_everybody_in_log2_rounds_and_the_root_sends_in_each(ranks: int) -> None:
    rounds = math.ceil(math.log2(ranks))
    for root in range(ranks):
        found = tree("broadcast", 5, 2, ranks, root)
        assert found.steps == rounds
        assert sum(found.per_rank) == (ranks - 1) * 10
        assert max(found.per_rank) == found.per_rank[root] == rounds * 10
        chain = ring("broadcast", 5, 2, ranks, root)
        assert chain.per_rank[(root - 1) % ranks] == 0
        assert sorted(chain.per_rank) == [0, *[10] * (ranks - 1)]


@given(st.integers(1, 64), st.integers(1, 50), st.sampled_from([1, 2, 4, 8]))
def test_the_closed_formulas_hold_where_p_divides_the_buffer(ranks: int, size: int, width: int) -> None:
    p, n = ranks, ranks * size * width
    expected = {
        "all_reduce": 2 * (p - 1) * n // p,
        "reduce_scatter": (p - 1) * n // p,
        "all_gather": (p - 1) * n,
        "all_to_all": (p - 1) * n // 2,
    }
    for op, per_rank in expected.items():
        found = ring(op, ranks * size, width, ranks, 0)  # type: ignore[arg-type]
        assert set(found.per_rank) == {per_rank}
    assert direct(ranks * size, width, ranks) == Sent(p - 1, ((p - 1) * n // p,) * p)


def test_the_ring_gather_and_scatter_are_the_two_halves_of_the_ring_all_reduce() -> None:
    whole = ring("all_reduce", 12, 4, 3, 0)
    halves = ring("reduce_scatter", 12, 4, 3, 0), ring("all_gather", 4, 4, 3, 0)
    assert whole.steps == sum(half.steps for half in halves)
    assert sum(whole.per_rank) == sum(sum(half.per_rank) for half in halves)


def test_bytes_follow_the_dtype_and_a_buffer_of_another_size() -> None:
    body = {"op": "all_reduce", "values": [[1, 2], [3, 5]]}
    assert answer(body)["traffic"]["ring"]["busiest_rank"] == 8
    large = answer(body | {"dtype": "bfloat16", "buffer_elements": 7 * 10**9})
    assert (large["buffer_bytes"], large["traffic"]["ring"]["busiest_rank"]) == (14 * 10**9, 14 * 10**9)
    assert large["outputs"] == [[4, 7], [4, 7]]


def test_only_all_to_all_has_the_direct_algorithm() -> None:
    for op in OPS:
        names = set(answer({"op": op, "values": [[1, 2], [3, 4]]})["traffic"])
        assert names == ({"ring", "tree", "pairwise"} if op == "all_to_all" else {"ring", "tree"})


# --- refusals and limits

PAIR: Body = {"op": "all_reduce", "values": [[1, 2], [3, 4]]}


REFUSED_BODIES = changed(
    PAIR,
    [
        ({"values": [[1, 2], [3]]}, "values.1", "rank 1"),
        ({"values": [[]]}, "values.0", "at least one"),
        ({"values": []}, "values"),
        ({"values": [["inf", 1], [1, 1]]}, "values.0.0", "finite"),
        ({"values": [[1, 2], [3, "x"]]}, "values.1.1", "not a number"),
        ({"values": [[True, 1], [1, 1]]}, "values.0.0", "number"),
        ({"op": "broadcast", "root": 2}, "root", "0 to 1"),
        ({"root": -1}, "root"),
        ({"root": "0.5"}, "root", "whole"),
        ({"op": "reduce_scatter", "values": [[1, 2, 3], [1, 2, 3]]}, "values", "equal parts"),
        ({"op": "all_to_all", "values": [[1], [1]]}, "values", "equal parts"),
        ({"op": "reduce_scatter", "buffer_elements": 7}, "buffer_elements", "equal parts"),
        ({"buffer_elements": 0}, "buffer_elements"),
        ({"output_grads": [[1, 2]]}, "output_grads", "2 rows of 2"),
        ({"op": "all_gather", "output_grads": [[1, 2], [3, 4]]}, "output_grads", "2 rows of 4"),
        ({"output_grads": [[1, 2], [3, "nan"]]}, "output_grads.1.1", "finite"),
        ({"op": "gather"}, "op"),
        ({"reduce": "mean"}, "reduce"),
        ({"dtype": "int8"}, "dtype"),
        ({"group": 1}, "group"),
        ({"values": [[1e308, 0], [1e308, 0]]}, "values", "float64"),
        ({"output_grads": [[1e308, 0], [1e308, 0]]}, "output_grads", "float64"),
        ({"op": "all_gather", "values": [[1]] * 1001}, "values", "1,000,000"),
    ],
)


REFUSED_FIELDS = {
    "values.1": ["1,2;3"],
    "values": ["", ";".join("1" * 4097)],
    "root": [{"op": "broadcast", "root": "2"}],
    "buffer_elements": ["x"],
    "output_grads": ["1;2"],
    "scheme": ["autograd"],
}


def test_blank_optional_fields_are_not_given() -> None:
    assert view(output_grads="", buffer_elements=" ") == view()


def test_large_collectives_leave_out_their_lists_and_keep_the_verdict() -> None:
    got = answer({"op": "all_reduce", "values": [[1] * (MAX_LISTED_CELLS // 2 + 1)] * 2})
    assert got["outputs"] is got["schemes"]["plain"]["gradient"] is None
    assert (got["outputs_agree"], got["schemes"]["plain"]["ratio_to_adjoint"]) == (True, 0.5)


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    ranks, op = (
        source.randint(1, 4),
        source.choice(["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"]),
    )
    size = 2 * ranks
    outputs = {"all_gather": size * ranks, "reduce_scatter": 2}.get(op, size)
    return {
        "op": op,
        "reduce": source.choice(["sum", "avg", "max", "min", "product"]),
        "values": quarters(source, ranks, size),
        "root": source.randrange(ranks) if op == "broadcast" else 0,
        "output_grads": source.choice([None, quarters(source, ranks, outputs)]),
        "dtype": source.choice(["float32", "bfloat16", "float8_e4m3fn"]),
        "buffer_elements": source.choice([None, ranks * 10**12]),
    }


PROGRAM = Program(
    prints=["outputs", "schemes.adjoint.gradient", "schemes.local.gradient", "traffic.ring.per_rank"],
    planted=("[1, 2]", "[1, 4]"),
    bodies=any_body,
)
