"""The programs of several processes in chapters 20, 40 and 75, with what their exercises change in them."""

import math
import re

import pytest

from tests.book_claims.chapter_code import Ran, programs, run_together

ROUNDING = 1e-12

LOOPS: dict[str, list[tuple[str, str]]] = {
    "loop": [],
    "loop_without_p": [("loss * dist.get_world_size() / count", "loss / count")],
    "loop_own_count": [("dist.all_reduce(count)", "pass")],
    "loop_means": [
        ('reduction="sum"', 'reduction="mean"'),
        ("loss * dist.get_world_size() / count", "loss / len(microsteps)"),
    ],
    "loop_that_skips_the_last_cell": [
        ("[[3, 0, 5], [7, 2, 3]]", "[[3, 5, 0], [7, 2, 3]]"),
        (
            "in enumerate(microsteps, start=1):\n",
            "in enumerate(microsteps, start=1):\n        if (labels == -100).all():\n            continue\n",
        ),
    ],
}
"""The complete loop of chapter 20 by name, with what its exercise changes."""

EVALUATIONS: dict[str, list[tuple[str, str]]] = {
    "evaluation": [],
    "evaluation_with_repeats": [("for i, repeated in batch if not repeated)", "for i, _ in batch)")],
    "evaluation_without_the_end": [("shuffle=False)", "shuffle=False, drop_last=True)")],
}
"""The same of chapter 75."""

SCATTER = """
class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total.chunk(P)[dist.get_rank()]

    @staticmethod
    def backward(ctx, grad):
        parts = [torch.empty_like(grad) for _ in range(P)]
        dist.all_gather(parts, grad)
        return torch.cat(parts)

class Zeros(Scatter):
    @staticmethod
    def backward(ctx, grad):
        return torch.cat([grad if rank == dist.get_rank() else torch.zeros_like(grad) for rank in range(P)])

def work("""

MISMATCHES = """
import os, tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # one write: the ranks share the pipe

def work(rank, store):
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=3)
    )
    for place in range(2):
        value = torch.tensor([float("nan") if rank == place else 1.0])
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        say("maximum", place, rank, value.item())
    loss, count = torch.tensor([[6.0, 2.0], [4.0, 8.0]])[rank]
    for value in (loss, count) if rank == 0 else (count, loss):
        dist.all_reduce(value)
    say("order", rank, loss.item(), count.item())
    part = torch.full((3 - rank,), 1.0 + rank)
    try:
        dist.all_reduce(part)
        say("shape", rank, "returned", *part.tolist())
    except RuntimeError:
        say("shape", rank, "waited")
    os._exit(0)  # the group is broken: no farewell

with tempfile.TemporaryDirectory() as folder:
    mp.spawn(work, args=(f"{folder}/store",), nprocs=2)
"""
"""Two ranks that do not make the same calls."""


def edited(program: str, edits: list[tuple[str, str]]) -> str:
    for old, new in edits:
        assert program.count(old) == 1, old
        program = program.replace(old, new)
    return program


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    (loop,) = programs("20-parallel-correctness")
    (adjoint,) = programs("40-collectives")
    listed = '(("gather", Gather.apply), '
    scatter = [
        ("def work(", SCATTER.lstrip()),
        (listed, listed + '("scatter", Scatter.apply), ("zeros", Zeros.apply), '),
    ]
    named = {name: edited(loop, edits) for name, edits in LOOPS.items()}
    (evaluation,) = programs("75-evaluation-over-ranks")
    named |= {name: edited(evaluation, edits) for name, edits in EVALUATIONS.items()}
    named |= {"adjoint": edited(adjoint, scatter), "mismatches": MISMATCHES}
    found = run_together(tmp_path_factory.mktemp("programs"), named)
    assert [name for name, one in found.items() if one.error] == ["loop_that_skips_the_last_cell"]
    return found


def differences(one: Ran) -> list[list[float]]:
    """What each rank says of loss, norm and parameters, in the order of the ranks."""
    lines = sorted(line.partition(": ")[2] for line in re.findall(r"rank \d: [^\n]*", one.out))
    assert len(lines) == 2
    return [[float(number) for number in re.findall(r"nan|\d+e[-+]\d+", line)] for line in lines]


def test_the_complete_loop_is_the_update_of_one_process(ran: dict[str, Ran]) -> None:
    assert all(value < ROUNDING for rank in differences(ran["loop"]) for value in rank)


def test_without_p_only_the_norm_before_clipping_differs(ran: dict[str, Ran]) -> None:
    for loss, norm, parameters in differences(ran["loop_without_p"]):
        assert loss < ROUNDING
        assert norm > 0.1
        assert parameters < 1e-10


def test_with_counts_of_ones_own_all_three_numbers_differ_and_ranks_log_other_losses(ran: dict[str, Ran]) -> None:
    ranks = differences(ran["loop_own_count"])
    assert ranks[0][0] != ranks[1][0]
    assert all(parameters > 1e-3 for _, _, parameters in ranks)
    assert {norm for _, norm, _ in ranks} == {0.5}  # 1.06, P times the replica mean's 0.53, where 0.60 is right


def test_means_over_an_empty_cell_log_a_nan_and_step_all_the_same(ran: dict[str, Ran]) -> None:
    for loss, norm, parameters in differences(ran["loop_means"]):
        assert math.isnan(loss)
        assert norm > 1e-3
        assert parameters > 1e-3


def test_a_skipped_reduction_meets_the_next_collective_and_the_run_is_ended(ran: dict[str, Ran]) -> None:
    found = ran["loop_that_skips_the_last_cell"].error
    assert any(end in found for end in ("SIGABRT", "Connection closed")), found  # of the rank that is seen first


def test_the_adjoint_test_passes_the_adjoint_and_no_other_backward(ran: dict[str, Ran]) -> None:
    found = {line[:10].strip(): float(line[10:]) for line in ran["adjoint"].out.splitlines()}
    assert found.keys() == {"gather", "scatter", "zeros", "own slice", "in place"}
    for name, defect in found.items():
        assert (defect < ROUNDING) == (name in ("gather", "scatter")), name


def test_a_maximum_loses_the_nan_of_a_rank_that_is_not_the_first(ran: dict[str, Ran]) -> None:
    found = sorted(line for line in ran["mismatches"].out.splitlines() if line.startswith("maximum"))
    assert found == ["maximum 0 0 nan", "maximum 0 1 nan", "maximum 1 0 1.0", "maximum 1 1 1.0"]


def test_another_order_of_calls_mixes_numbers_in_silence(ran: dict[str, Ran]) -> None:
    found = sorted(line for line in ran["mismatches"].out.splitlines() if line.startswith("order"))
    assert found == ["order 0 14.0 6.0", "order 1 6.0 14.0"]


def test_small_buffers_of_other_shapes_give_one_rank_wrong_numbers_and_let_the_other_wait(ran: dict[str, Ran]) -> None:
    found = sorted(line for line in ran["mismatches"].out.splitlines() if line.startswith("shape"))
    assert found == ["shape 0 waited", "shape 1 returned 1.0 3.0"]


def metrics(one: Ran) -> dict[int, tuple[list[float], list[float]]]:
    """By number of ranks: loss, perplexity, accuracy and F1, pooled, and as means of batches."""
    found = re.findall(r"(\d) ranks? +pooled ([^\n]*?)  batches ([^\n]*)", one.out)
    return {int(ranks): ([*map(float, pooled.split())], [*map(float, means.split())]) for ranks, pooled, means in found}


def test_pooled_metrics_do_not_know_the_number_of_ranks_and_means_of_batches_do(ran: dict[str, Ran]) -> None:
    found = metrics(ran["evaluation"])
    pooled, means = zip(*(found[ranks] for ranks in (1, 2, 3)), strict=True)
    assert pooled[0] == pooled[1] == pooled[2]
    assert round(pooled[0][1], 2) == 8.41
    assert [round(perplexity, 2) for _, perplexity, _, _ in means] == [7.84, 7.77, 10.05]
    assert [math.isnan(f1) for *_, f1 in means] == [True, False, True]


def test_counted_repeats_move_the_pooled_loss_on_two_and_three_ranks_and_a_dropped_end_is_another_data_set(
    ran: dict[str, Ran],
) -> None:
    right = metrics(ran["evaluation"])[1][0][0]
    repeated, cut = (metrics(ran[f"evaluation_{name}"]) for name in ("with_repeats", "without_the_end"))
    assert repeated[1][0][0] == cut[1][0][0] == right
    assert all(abs(repeated[ranks][0][0] - right) > 0.01 for ranks in (2, 3))
    assert cut[2][0] == cut[3][0]
    assert abs(cut[3][0][0] - right) > 0.01
