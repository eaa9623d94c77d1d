"""The programs that a page offers: each runs, and prints the numbers of the calculator that it was written for."""

import ast
import contextlib
import io
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from samestep.app.calculators import registry
from samestep.app.contract.models import Inputs
from samestep.app.instruments.snippets import MAX_NUMBERS, number, python, snippet

CASES = json.loads((Path(__file__).parents[1] / "cases.json").read_text("utf-8"))["cases"]
KINDS = {
    "ledger": "replica_ledger",
    "infonce": "info_nce",
    "clip": "clip_ownership",
    "overflow": "overflow_skip",
    "clip_order": "clip_order",
    "optimizer_empty_step": "empty_step",
    "sampler": "sampler_padding",
}
WITH_BODY = [case for case in CASES if case["kind"] in KINDS and case["id"] != "Z-02"]
"""Z-02 has two small states of its own in place of a body."""
CALCULATORS = sorted(registry())
Body = dict[str, Any]


def default(name: str) -> Inputs:
    return registry()[name].query().inputs()


def body(name: str, **fields: Any) -> Inputs:
    return registry()[name].inputs.model_validate(fields)


def program(name: str, inputs: Inputs) -> str:
    source = snippet(name, inputs)
    assert source is not None
    return source


def output(source: str) -> str:
    """What a program prints; run here, because importing torch once a program would take minutes."""
    printed = io.StringIO()
    kind = torch.get_default_dtype()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(source, "snippet", "exec"), {"__name__": "__main__"})
    finally:
        torch.set_default_dtype(kind)
    return printed.getvalue()


def printed_values(text: str) -> dict[str, Any]:
    """The lines `path value`; a value that is no literal is a text."""
    values = {}
    for line in text.splitlines():
        path, value = line.split(" ", 1)
        try:
            values[path] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            values[path] = value
    return values


def at(answer: Any, path: str) -> Any:
    for key in path.split("."):
        answer = answer[int(key)] if isinstance(answer, list) else answer[key]
    return answer


def same(printed: Any, answer: Any) -> bool:
    """Within 1e-9 of each other, relatively (or 1e-12, where a number is the rounding of others)."""
    if isinstance(printed, list) and isinstance(answer, list):
        return len(printed) == len(answer) and all(map(same, printed, answer))
    numbers = [type(value) in (int, float) for value in (printed, answer)]
    return math.isclose(printed, answer, rel_tol=1e-9, abs_tol=1e-12) if all(numbers) else printed == answer


def disagreements(name: str, inputs: Inputs, text: str) -> list[str]:
    """The lines of a program's output that the calculator's own JSON does not confirm."""
    answer = registry()[name].compute(inputs).model_dump(mode="json")
    values = printed_values(text)
    assert values
    return [
        f"{path}: {value}, not {at(answer, path)}"
        for path, value in values.items()
        if not same(value, at(answer, path))
    ]


def agrees(name: str, inputs: Inputs) -> None:
    assert disagreements(name, inputs, output(program(name, inputs))) == []


MAIN: dict[str, list[str]] = {
    "batch_noise": ["objectives.per_token", "noise_scale", "batches.1.estimates.over_actual_count.expectation"],
    "clip_order": ["clip_of_sum", "running_clip", "clip_before_unscale", "sum_norm", "microsteps.1.running"],
    "clip_ownership": ["global_norm", "coefficient", "decision", "schemes.per_rank.param_after.1.0.param"],
    "collectives": ["outputs", "schemes.adjoint.gradient", "schemes.local.gradient", "traffic.ring.per_rank"],
    "direction_map": ["point.reference", "point.replica_mean", "point.ratio", "cells.flipped", "flipped_b"],
    "empty_step": ["schemes.zero_grad.param", "schemes.nan_grad.exp_avg", "schemes.skip.step"],
    "framework_recipe": ["N", "cells.0.weight", "cells.3.factor"],
    "fsdp_timeline": ["schemes.reshard.peak_bytes", "schemes.keep.sent_per_rank", "peak_moment", "replicated_bytes"],
    "gradient_scaling": ["reduced_multiple_value", "final_multiple_value", "required_factor_value"],
    "info_nce": ["reference.loss", "reference.grad_d", "schemes.local_loss_remote_detached.grad_wd"],
    "label_count": ["N", "counts", "schemes.before_shift.factor_value", "schemes.padding_counted.N"],
    "objective_weights": ["schemes.token_mean_over_replica.token_weights", "schemes.constant_over_window.total"],
    "overflow_skip": ["coordinated.decision", "coordinated.params", "uncoordinated.params", "coordinated.next_scale"],
    "ratio_fingerprint": ["ratio", "ratios.loss", "scale.0.value"],
    "reduction_precision": ["sum_then_divide", "divide_then_sum", "predivided", "exact_mean"],
    "replica_ledger": [
        "N",
        "reference.grad",
        "reference.loss",
        "schemes.replica_mean_then_ddp_mean.ratio_to_reference",
    ],
    "sampler_padding": ["indices_per_rank", "duplicated", "mean_over_consumed", "means.distinct.value"],
    "token_budget": ["supervised_per_update", "counts", "padding", "sequences.labels"],
}
"""What a program must print at the state with which its panel opens."""

PLANTED: dict[str, tuple[str, str]] = {
    "batch_noise": ("[16, 64, 256]", "[16, 65, 256]"),
    "clip_order": ("[3, 4]", "[3, 5]"),
    "clip_ownership": ("[24]", "[25]"),
    "collectives": ("[1, 2]", "[1, 4]"),
    "direction_map": ("target_b = 0, 2, -1", "target_b = 0, 2, -1.25"),
    "empty_step": ("[0.5, -0.25]", "[0.5, -0.125]"),
    "framework_recipe": ("[2, 8]", "[3, 8]"),
    "fsdp_timeline": ("[202383360]", "[202383361]"),
    "gradient_scaling": ("64, 4, 2", "64, 2, 2"),
    "info_nce": ("[[-1]]", "[[-1.0001]]"),
    "label_count": ("labels(9, 3)", "labels(9, 4)"),
    "objective_weights": ("[4, 2]", "[4, 3]"),
    "overflow_skip": ("[65536]", "[65537]"),
    "ratio_fingerprint": ("1.26", "1.27"),
    "reduction_precision": ("[128]", "[129]"),
    "replica_ledger": ("[8, 1, 0.5]", "[7, 1, 0.5]"),
    "sampler_padding": ("[10, -2]", "[10, -3]"),
    "token_budget": ("640", "641"),
}
"""One number of each of these programs, and a wrong one in its place."""


@pytest.mark.parametrize("name", CALCULATORS)
def test_the_program_of_a_panel_prints_its_main_numbers(name: str) -> None:
    inputs = default(name)
    text = output(program(name, inputs))
    assert disagreements(name, inputs, text) == []
    assert set(MAIN[name]) <= set(printed_values(text))


@pytest.mark.parametrize("name", CALCULATORS)
def test_a_wrong_number_in_a_program_shows(name: str) -> None:
    inputs = default(name)
    right, wrong = PLANTED[name]
    source = program(name, inputs)
    assert source.count(right) == 1
    assert disagreements(name, inputs, output(source.replace(right, wrong)))


@pytest.mark.parametrize("case", WITH_BODY, ids=lambda case: case["id"])
def test_the_program_of_a_worked_case_prints_its_numbers(case: dict[str, Any]) -> None:
    agrees(KINDS[case["kind"]], body(KINDS[case["kind"]], **case["inputs"]))


@pytest.mark.parametrize("name", CALCULATORS)
def test_a_program_imports_only_torch_and_mathematics_and_fits_a_screen_or_two(name: str) -> None:
    source = program(name, default(name))
    imported = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name if isinstance(node, ast.Import) else node.module for node in imported for alias in node.names}
    assert {str(module).split(".")[0] for module in names} <= {"torch", "math"}
    assert max(map(len, source.splitlines())) <= 120
    assert len(source.splitlines()) <= 100


def test_a_program_stands_alone() -> None:
    source = program("replica_ledger", default("replica_ledger"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-I", "-c", source], capture_output=True, text=True, check=True, env=environment, cwd="/"
    )
    assert run.stderr == ""
    assert disagreements("replica_ledger", default("replica_ledger"), run.stdout) == []


def quarters(source: random.Random, *shape: int) -> Any:
    """Nested lists of multiples of 1/4, which are never far from each other."""
    if not shape:
        return source.randint(-12, 12) / 4
    return [quarters(source, *shape[1:]) for _ in range(shape[0])]


def a_ledger(source: random.Random) -> Body:
    dimensions = source.choice([0, 0, 2, 3])
    shape = (dimensions,) if dimensions else ()
    sizes = [source.randint(1, 3) for _ in range(source.randint(1, 4))]

    def cell() -> Body:
        n = source.choice([0, 1, 2, 5, "1/3"])
        if source.random() < 0.3:
            items = [{"w": source.randint(1, 3), "g": quarters(source, *shape), "loss": 2} for _ in range(2)]
            return {"items": items}
        if source.random() < 0.3 and n:
            return {"n": n, "G": quarters(source, *shape), "S": quarters(source)}
        return {"n": n, "g": quarters(source, *shape), "loss": quarters(source)}

    def table() -> list[list[int]]:
        return [[source.randint(1, 5) for _ in range(size)] for size in sizes]

    def scheme(name: str) -> Body:
        return {
            "name": name,
            "denominator": source.choice(["one", "cell", "replica", "global", 3, "0.3", table()]),
            "multiplier": source.choice([1, "P", "1/3", table()]),
            "accumulation_divisor": source.choice([1, "K_r", "K_max", 4]),
            "reduction": source.choice(["mean", "sum", 3]),
            "empty_cell": source.choice(["undefined", "skip", "clamp1"]),
            "regularizer_per": source.choice(["microstep", "replica", "none"]),
        }

    more: Body = {}
    if source.random() < 0.5:
        more = {"theta0": source.choice([0, quarters(source, *shape)]), "sgd_lr": source.choice(["0.1", "-0.5"])}
    if source.random() < 0.5:
        more["regularizer"] = {"g": quarters(source, *shape), "value": "0.7"}
    cells = [[cell() for _ in range(size)] for size in sizes]
    return {"microsteps": cells, "schemes": [scheme(f"s{i}") for i in range(5)], **more}


def embeddings(source: random.Random) -> Body:
    counts = [source.randint(1, 3) for _ in range(source.randint(1, 3))]

    def some() -> list[float]:
        return [source.gauss(0, 1) for _ in range(3)]

    both = [[[some() for _ in range(count)] for count in counts] for _ in range(2)]
    more: Body = {}
    if source.random() < 0.6:
        more["hard_negatives"] = [
            [[source.gauss(0, 1) for _ in range(3)] for _ in range(r % 3)] for r in range(len(counts))
        ]
    more |= source.choice([{"tau": "0.2"}, {"logit_scale_log": "1.5"}, {}])

    def scheme(i: int) -> Body:
        gather = source.choice(["grad_sum", "detach_keep_local", "detach_all_docs", "none", "cached_accumulation"])
        return {
            "name": f"s{i}",
            "gather": gather,
            "loss": "local" if gather == "none" else source.choice(["local", "global"]),
            "multiplier": source.choice([1, "P", "1/3"]),
            "normalization": source.choice(["local_mean", "P_over_global_count", "sum"]),
            "labels": source.choice(["correct", "global_query_index"]),
            "reduction": source.choice(["mean", "sum"]),
            "divide_by": source.choice([1, "P", 7]),
        }

    return {
        "q": both[0],
        "d": both[1],
        "similarity": source.choice(["dot", "cosine"]),
        "direction": source.choice(["q2d", "bidirectional"]),
        "schemes": [scheme(i) for i in range(6)],
        **more,
    }


def copies(source: random.Random) -> Body:
    ranks = source.randint(1, 4)
    held: list[list[Body]] = [[] for _ in range(ranks)]
    for i in range(source.randint(1, 6)):
        holders = source.sample(range(ranks), source.randint(1, ranks))
        size = source.randint(1, 3)
        for r in holders:
            grad = [
                source.choice(["inf", "nan", -1]) if source.random() < 0.02 else quarters(source) for _ in range(size)
            ]
            held[r].append({"id": f"p{i}", "grad": grad, "owner": r == holders[0], "param": quarters(source, size)})
    return {
        "ranks": held,
        "max_norm": source.choice([0, 1, "0.5", 1000]),
        "loss_scale": source.choice([1, 8, "0.3"]),
        "norm_type": source.choice([1, 2, 3, "2.5", "inf"]),
        "eps": source.choice([0, "1e-6", 1]),
        "lr": source.choice(["0.1", "-0.1", 0]),
    }


def orders(source: random.Random) -> Body:
    rows = quarters(source, source.randint(1, 5), source.randint(1, 4))
    return {
        "microstep_grads": rows,
        "max_norm": source.choice([0, 1, 3]),
        "scale": source.choice([1, 8, "1/3"]),
        "eps": source.choice([0, "1e-6"]),
    }


def overflows(source: random.Random) -> Body:
    ranks, reduce = source.randint(1, 3), source.choice([None, "mean", "sum"])
    sizes = [2] * ranks if reduce else [source.randint(1, 3) for _ in range(ranks)]
    grads = [[source.choice(["inf", "nan", 8, -3, "0.1"]) for _ in range(size)] for size in sizes]
    return {
        "scaled_grads": grads,
        "params": [quarters(source, size) for size in sizes],
        "scale": source.choice([8, "0.1", [2**r for r in range(ranks)]]),
        "lr": source.choice(["0.1", -1]),
        "reduce": reduce,
        "growth_interval": source.choice([1, 3]),
        "growth_tracker": source.randint(0, 4),
        "static_scale": source.random() < 0.3,
    }


def steps(source: random.Random) -> Body:
    size = source.randint(1, 3)
    grad = source.choice([[0] * size, quarters(source, size), ["nan"] * size])
    shared = {"param": quarters(source, size), "grad": grad, "lr": "0.01", "weight_decay": source.choice([0, "0.1"])}
    if source.random() < 0.5:
        history = {"exp_avg": quarters(source, size), "exp_avg_sq": [0.5] * size, "step": source.randint(0, 9)}
        return {**shared, **source.choice([history, {}]), "beta1": source.choice([0, "0.9"]), "beta2": "0.99"}
    momentum = source.choice(
        [{"momentum": 0}, {"momentum": "0.9", "nesterov": True}, {"momentum": "0.9", "dampening": "0.1"}]
    )
    buffer = source.choice([{}, {"momentum_buffer": quarters(source, size)}])
    return {**shared, "optimizer": "sgd", **momentum, **buffer}


def exchanges(source: random.Random) -> Body:
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


def noise(source: random.Random) -> Body:
    lengths = [60, *source.sample(range(1, 58), source.randint(1, 5))]
    return {
        "lengths": lengths,
        "counts": source.choice([None, [source.randint(1, 5) for _ in lengths]]),
        "means": source.choice([None, quarters(source, len(lengths))]),
        "rho": source.choice([0, "0.3", 1]),
        "batch_sizes": source.choice([[1, 2, 3, 50], [2, 5_000], [2, 1_000_000]]),
        "sigma": source.choice([0, 4]),
        "objective": source.choice(["per_sequence", "per_token"]),
    }


def fingerprints(source: random.Random) -> Body:
    ranks, microsteps = source.randint(1, 3), source.randint(1, 3)
    counts = [[source.randint(1, 9) for _ in range(microsteps)] for _ in range(ranks)]
    gradient = source.choice(["given", "per_rank", "per_cell"])
    reference: Body = {"gradient_norm": "1.5"}
    if gradient == "given":
        reference |= {"gradient": [1, -2, "0.5"], "loss": 2}
    if gradient == "per_rank":
        reference["per_rank"] = [{"gradient": [1 + r, -2, r], "loss": 1 + r} for r in range(ranks)]
    if gradient == "per_cell":
        reference["per_cell"] = [
            [{"gradient": [1 + r, k, 3], "loss": 1} for k in range(microsteps)] for r in range(ranks)
        ]
    observed = {"gradient": quarters(source, 3), "gradient_norm": "0.75", "loss": "2.5"}
    return {"P": ranks, "K": microsteps, "counts": counts, "reference": reference, "observed": observed}


def budgets(source: random.Random) -> Body:
    lengths = [source.randint(1, 40) for _ in range(source.randint(1, 12))]
    prompts = source.choice([0, [source.randint(0, 20) for _ in lengths]])
    return {
        "lengths": lengths,
        "prompts": prompts,
        "max_length": source.choice([16, 64]),
        "packing": source.choice(["none", "first_fit"]),
        "boundaries": source.choice(["masked", "crossing"]),
        "pad_to": source.choice(["longest", "max_length", "none"]),
        "microbatch": source.randint(1, 3),
        "K": source.randint(1, 3),
        "P": source.randint(1, 4),
        "epochs": source.randint(1, 3),
        "drop_last": source.random() < 0.5,
        "tail": source.choice(["update", "drop", "carry"]),
    }


def timelines(source: random.Random) -> Body:
    layers = source.randint(1, 4)
    return {
        "layers": layers,
        "parameters": source.choice([7, [source.randint(1, 50) for _ in range(layers)]]),
        "root_parameters": source.choice([0, 13]),
        "ranks": 4,
        "reshard_after_forward": source.choice([True, False, 2]),
        "prefetch": source.choice(["off", "backward", "both"]),
        "reduce_dtype": source.choice(["float32", "bfloat16"]),
        "optimizer": source.choice(["adamw", "sgd_momentum", "sgd"]),
    }


def scalings(source: random.Random) -> Body:
    micro_batches, replicas = source.randint(1, 4), source.randint(1, 5)
    return {
        "batch": micro_batches * replicas * source.randint(1, 6),
        "micro_batches": micro_batches,
        "replicas": replicas,
        "loss_reduction": source.choice(["mean", "sum"]),
        "all_reduce": source.choice(["mean", "sum"]),
        "scale": source.choice(["none", "loss", "gradient"]),
    }


def maps(source: random.Random) -> Body:
    targets = {name: source.choice([0, 1, "-0.3", "1/3", 2]) for name in ("theta", "target_a", "target_b")}
    return {"size": 9, "a": source.randint(0, 9), "b": source.randint(0, 9), **targets}


def recipes(source: random.Random) -> Body:
    framework, setting = source.choice(
        [("torch_ddp", "default"), ("torch_ddp", "sum_hook"), ("accelerate", "accumulate"), ("deepspeed", "engine"),
         ("transformers", "default"), ("transformers", "own_counts"), ("transformers", "no_kwargs"), ("trl", "default")]
    )  # fmt: skip
    return {
        "framework": framework,
        "setting": setting,
        "loss_reduction": source.choice(["mean", "sum", "custom"]),
        "denominator": "2.5",
        "loss_factor": source.choice([1, "1/3"]),
        "counts": [[source.randint(0, 5) for _ in range(source.randint(1, 3))] for _ in range(4)],
        "accumulation": source.choice([None, 3, 4]),
        "context_parallel": source.choice([1, 2]),
        "context_reduction": source.choice(["mean", "sum"]),
    }


def rows(source: random.Random) -> Body:
    def row() -> Body:
        if source.random() < 0.5:
            lengths = [source.randint(1, 9) for _ in range(source.randint(1, 3))]
            more = source.choice([{}, {"padding": 2}, {"max_length": 5}])
            return {"lengths": lengths, "prompts": [source.randint(0, 9) for _ in lengths], **more}
        if source.random() < 0.5:
            return {
                "labels": [source.choice([-100, 0, 7]) for _ in range(8)],
                "starts": source.choice([[0], [0, 3, 4]]),
            }
        mask = [source.randint(0, 1) for _ in range(6)]
        return {"tokens": [5, 7, 7, 8, 7, 7], "mask": mask, "attention_mask": [1, 1, 1, 1, 0, 0]}

    cells = [[[row() for _ in range(source.randint(0, 3))] for _ in range(2)] for _ in range(2)]
    return {
        "cells": cells,
        "max_length": 7,
        "pad_to": source.choice(["longest", "max_length", "none"]),
        "boundaries": source.choice(["masked", "crossing"]),
        "pad_id": source.choice([None, 7, 1]),
    }


def partitions(source: random.Random) -> Body:
    microsteps = source.randint(1, 3)
    cells = [
        [[source.randint(1, 9) for _ in range(source.randint(source.random() < 0.9, 3))] for _ in range(microsteps)]
        for _ in range(source.randint(1, 3))
    ]
    return {"sequences": cells, "constant": source.randint(1, 9)}


def reductions(source: random.Random) -> Body:
    ranks = source.randint(1, 9)
    values = [source.choice([60000, 1, "1e-7", "0.1", -3, "1/3"]) for _ in range(ranks)]
    return {
        "values": values,
        "dtype": source.choice(["float16", "bfloat16", "float32", "float64"]),
        "predivide": source.choice([None, 3, "2.5"]),
        "accumulation": source.choice(["rounded_once", "sequential", "tree"]),
    }


def deals(source: random.Random) -> Body:
    size = source.randint(1, 20)
    given = source.randint(0, size)
    return {
        "dataset_size": size,
        "replicas": source.randint(1, 7),
        "shuffle": source.random() < 0.5,
        "drop_last": source.random() < 0.5,
        "seed": source.randint(0, 99),
        "epoch": source.randint(0, 3),
        "microbatch": source.choice([None, 2]),
        **source.choice([{}, {"per_sample_grad": quarters(source, given), "other_grad": "0.1"}]),
    }


BODIES: dict[str, Callable[[random.Random], Body]] = {
    "batch_noise": noise,
    "clip_order": orders,
    "clip_ownership": copies,
    "collectives": exchanges,
    "direction_map": maps,
    "empty_step": steps,
    "framework_recipe": recipes,
    "fsdp_timeline": timelines,
    "gradient_scaling": scalings,
    "info_nce": embeddings,
    "label_count": rows,
    "objective_weights": partitions,
    "overflow_skip": overflows,
    "ratio_fingerprint": fingerprints,
    "reduction_precision": reductions,
    "replica_ledger": a_ledger,
    "sampler_padding": deals,
    "token_budget": budgets,
}
"""Bodies of any shape that a calculator takes, with whatever a program may have to say differently."""


@pytest.mark.parametrize("name", CALCULATORS)
def test_programs_of_general_states_print_their_numbers(name: str) -> None:
    source = random.Random(name)
    for _ in range(4 if name == "batch_noise" else 8):
        agrees(name, body(name, **BODIES[name](source)))


def test_a_state_of_too_many_numbers_has_no_program() -> None:
    few, many = ({"n": [[1] * size], "g": [[1] * size]} for size in (MAX_NUMBERS // 4, MAX_NUMBERS))
    assert snippet("replica_ledger", body("replica_ledger", **few)) is not None
    assert snippet("replica_ledger", body("replica_ledger", **many)) is None


def test_a_number_whose_square_leaves_float64_has_no_program() -> None:
    assert snippet("clip_order", body("clip_order", microstep_grads=[["1e90"]], max_norm=1)) is not None
    assert snippet("clip_order", body("clip_order", microstep_grads=[["1e200"]], max_norm=1)) is None


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("0.1", "0.1"),
        ("1/3", "1/3"),
        ("-inf", 'float("-inf")'),
        (2.0, "2"),
        ("1e300", "1e+300"),
        ([1, "2/6"], "[1, 1/3]"),
    ],
)
def test_numbers_stand_in_a_program_as_they_are(typed: Any, written: str) -> None:
    assert number(typed) == written


def test_names_stand_in_a_program_as_quoted_text() -> None:
    hostile = 'x"\n" + __import__("os").name + "'
    assert ast.literal_eval(python(hostile)) == hostile
    schemes = [{"name": hostile, "denominator": "global"}]
    source = program("replica_ledger", body("replica_ledger", n=[[1]], g=[[2]], schemes=schemes))
    assert hostile in [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
