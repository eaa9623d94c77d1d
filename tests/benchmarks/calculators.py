"""The calculators' mathematics on large inputs: the ledger against a plain sum, InfoNCE against torch autograd."""

import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from statistics import median

import numpy as np

CELLS = 1_000_000
QUERIES, DIMENSIONS, RANKS = 4_096, 256, 64
SCHEME = {"name": "s", "gather": "grad_sum", "loss": "local"}


def seconds(work: Callable[[], object], rounds: int) -> float:
    """The median time of one call, after one that is not counted."""
    work()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return median(times)


def ledger() -> None:
    """One scheme over a million cells, arrays in and numbers out: gradient, loss and reference."""
    from samestep.app.calculators.replica_ledger import NAMED_SCHEMES
    from samestep.app.calculators.replica_ledger.weighting import alike, weights
    from samestep.app.mathematics.window import Window

    random = np.random.default_rng(11)
    counts = random.integers(1, 100, CELLS).astype(float)
    gradients, losses = random.normal(size=CELLS) * counts, random.random(CELLS) * counts
    sizes = (CELLS // 1_000,) * 1_000

    def evaluate(name: str) -> object:
        window = Window(sizes, counts, gradients, losses)
        (group,) = alike([NAMED_SCHEMES[name]], window)
        weight = weights(group, window)
        return weight.gradient(window), weight.loss(window), window.total_gradient / window.total

    baseline = seconds(lambda: gradients.sum(), 21)
    for name in ("P_over_N_then_ddp_mean", "replica_mean_then_ddp_mean", "microstep_mean_div_K_then_ddp_mean"):
        ratio = seconds(lambda name=name: evaluate(name), 11) / baseline  # type: ignore[misc]
        print(f"ledger, {CELLS:,} cells, {name} ÷ NumPy sum over the same array: {ratio:.1f}")


def info_nce_inputs() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(11)
    shape = (QUERIES, DIMENSIONS)
    return random.normal(size=shape) / 16, random.normal(size=shape) / 16


def info_nce() -> None:
    """One scheme at full size, against torch float64 autograd of the full loss on the same threads."""
    import torch

    from samestep.app.calculators import info_nce as calculator

    q, d = info_nce_inputs()
    parts = {key: [part.tolist() for part in np.split(a, RANKS)] for key, a in (("q", q), ("d", d))}
    inputs = calculator.Inputs.model_validate(parts | {"tau": 0.07, "schemes": [SCHEME]})

    def autograd() -> object:
        tq, td = (torch.tensor(array, requires_grad=True) for array in (q, d))
        loss = torch.nn.functional.cross_entropy(tq @ td.T / 0.07, torch.arange(QUERIES))
        loss.backward()  # type: ignore[no-untyped-call]
        return tq.grad, td.grad

    print(f"info_nce, {QUERIES} × {DIMENSIONS} on {torch.get_num_threads()} threads")
    ratio = seconds(lambda: calculator.compute(inputs), 3) / seconds(autograd, 3)
    print(f"  compute ÷ torch autograd in float64: {ratio:.2f}")
    child = subprocess.run([sys.executable, __file__, "memory"], capture_output=True, text=True, check=True)
    print(f"  peak memory ÷ its logits matrix: {float(child.stdout) / (QUERIES * QUERIES * 8):.2f}")


def info_nce_memory() -> None:
    """In a process of its own: the peak of what `compute` allocates, in bytes."""
    from samestep.app.calculators import info_nce as calculator

    parts = {
        key: [part.tolist() for part in np.split(a, RANKS)] for key, a in zip("qd", info_nce_inputs(), strict=True)
    }
    inputs = calculator.Inputs.model_validate(parts | {"tau": 0.07, "schemes": [SCHEME]})
    tracemalloc.start()
    calculator.compute(inputs)
    print(tracemalloc.get_traced_memory()[1])


def loss_terms() -> None:
    """Nine recipes of two terms over a million cells, from lists to the answer."""
    from samestep.app.calculators import loss_terms as calculator

    random = np.random.default_rng(11)
    counts = random.integers(1, 100, (CELLS // 1_000, 1_000))
    cells = {"counts": counts.tolist(), "sums": (counts * random.random(counts.shape)).tolist()}
    terms = [{"name": "main", **cells}, {"name": "second", "coefficient": 0.1, **cells}]
    inputs = calculator.Inputs.model_validate({"terms": terms})
    print(f"loss_terms, {CELLS:,} cells, 2 terms: {seconds(lambda: calculator.compute(inputs), 5):.3f} s")


def batch_statistics() -> None:
    """Four scopes of a million values in a thousand cells, and six of as many numbers of routed tokens."""
    from samestep.app.calculators import batch_statistics as calculator

    random = np.random.default_rng(11)
    values = random.normal(size=(100, 10, CELLS // 1_000)).tolist()
    assigned = random.integers(0, 9, (1_000, 125, 8))
    cells = [
        [{"tokens": int(a.sum()), "assigned": a.tolist(), "probability": [0.125] * 8} for a in row] for row in assigned
    ]
    for term, given in (("whiten", values), ("batch_norm", values), ("load_balance", cells)):
        field = "cells" if term == "load_balance" else "values"
        inputs = calculator.Inputs.model_validate({"term": term, field: given})
        taken = seconds(lambda inputs=inputs: calculator.compute(inputs), 3)  # type: ignore[misc]
        print(f"batch_statistics, {term}, {CELLS:,} numbers: {taken:.3f} s")


def metric_ledger() -> None:
    """Thirteen ways to loss and perplexity, four to accuracy, of a million batches on a thousand ranks."""
    from samestep.app.calculators import metric_ledger as calculator

    random = np.random.default_rng(11)
    counts, losses = random.integers(1, 100, (1_000, CELLS // 1_000)), random.random((1_000, CELLS // 1_000))
    cells = [
        [{"n": n, "loss": loss, "correct": n // 2} for n, loss in zip(ns, of_rank, strict=True)]
        for ns, of_rank in zip(counts.tolist(), losses.tolist(), strict=True)
    ]
    inputs = calculator.Inputs.model_validate({"cells": cells})
    print(f"metric_ledger, {CELLS:,} batches: {seconds(lambda: calculator.compute(inputs), 5):.3f} s")


def schedule_clock() -> None:
    """Seven clocks over a billion microbatches with ten thousand skips."""
    from samestep.app.calculators import schedule_clock as calculator

    fields = {"batches": 10**9, "K": 7, "total": 10**8, "update": 10**8, "skipped": list(range(1, 10_001))}
    inputs = calculator.Inputs.model_validate(fields)
    print(f"schedule_clock, 10⁹ batches, 10⁴ skips: {seconds(lambda: calculator.compute(inputs), 5):.4f} s")


def rl_weights() -> None:
    """A million completions with rewards on 500 ranks, 100 microsteps each: every name's weights."""
    from samestep.app.calculators import rl_weights as calculator

    random = np.random.default_rng(11)
    lengths, rewards = random.integers(1, 4_096, CELLS).tolist(), random.random(CELLS).tolist()
    completions = [
        {"length": length, "group": i // 8, "reward": reward}
        for i, (length, reward) in enumerate(zip(lengths, rewards, strict=True))
    ]
    cells = [completions[i : i + 20] for i in range(0, CELLS, 20)]
    inputs = calculator.Inputs.model_validate({"completions": [cells[i : i + 100] for i in range(0, len(cells), 100)]})
    print(f"rl_weights, {CELLS:,} completions: {seconds(lambda: calculator.compute(inputs), 5):.2f} s")


def mesh_ledger() -> None:
    """The ledger of 4,096 ranks with contributions, squares and labels; body in, answer out."""
    from samestep.app.calculators import mesh_ledger as calculator

    axes = {"dp": 16, "fsdp": 8, "cp": 4, "tp": 8, "ep": 64}
    values = [str(k / 4096) for k in range(1, 513)]
    body = {
        **axes,
        "contributions": {"dense": values, "norm": values * 8, "expert": values},
        "squares": {"dense": "646.848", "norm": "47.37"},
        "labels": list(range(512)),
    }
    time = seconds(lambda: calculator.compute(calculator.Inputs.model_validate(body)), 5)
    print(f"mesh_ledger, 4,096 ranks: {time:.4f} s")


def pipeline_schedule() -> None:
    """A million microbatches in a thousand calls."""
    from samestep.app.calculators import pipeline_schedule as calculator

    parts = np.random.default_rng(11).normal(size=(1_000, 1_000)).tolist()
    inputs = calculator.Inputs.model_validate({"parts": parts, "stages": 64})
    print(f"pipeline_schedule, 10⁶ microbatches: {seconds(lambda: calculator.compute(inputs), 3):.4f} s")


if __name__ == "__main__":
    if sys.argv[1:] == ["memory"]:
        info_nce_memory()
    else:
        ledger()
        info_nce()
        loss_terms()
        batch_statistics()
        metric_ledger()
        schedule_clock()
        rl_weights()
        mesh_ledger()
        pipeline_schedule()
