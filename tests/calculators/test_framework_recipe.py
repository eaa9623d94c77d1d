"""What frameworks divide by: the rules against autograd, against what the conformance experiment measured, and their
wrong neighbours."""

import json
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from samestep.app.calculators.framework_recipe import Inputs, Result, compute
from samestep.app.calculators.framework_recipe.rules import RULES, Measured, Rule
from tests.kit import Body, Program, changed

BAG = Path(__file__).parents[2] / "content" / "evidence" / "conformance" / "data" / "result.json"
RAGGED = [[2, 8], [5, 1]]
MEASUREMENTS = [(rule, measured) for rule in RULES for measured in rule.measured]


def answer(**fields: Any) -> Result:
    return compute(Inputs.model_validate({"counts": RAGGED, **fields}))


def weights(result: Result) -> list[float | None]:
    assert result.cells is not None
    return [cell.weight for cell in result.cells]


def by_autograd(counts: list[list[int]], reduction: str, factors: list[float]) -> list[float]:
    """Weights of tokens under DDP: every rank's backward passes add up, then the gradients are averaged over ranks.

    `factors[i]` multiplies the loss of cell i. A token's weight is the derivative of what was averaged with respect to
    its own loss.
    """
    tokens = [[torch.ones(n, dtype=torch.float64, requires_grad=True) for n in row] for row in counts]
    cells = [(r, k) for r, row in enumerate(counts) for k in range(len(row))]
    for (r, k), factor in zip(cells, factors, strict=True):
        loss = tokens[r][k].mean() if reduction == "mean" else tokens[r][k].sum()
        (loss * factor).backward()  # type: ignore[no-untyped-call]
    gradients = [tokens[r][k].grad for r, k in cells]
    return [float(grad[0]) / len(counts) for grad in gradients if grad is not None]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_ddp_weights_are_those_of_autograd(reduction: str) -> None:
    rng = random.Random(5)
    for _ in range(20):
        counts = [[rng.randint(1, 9) for _ in range(rng.randint(1, 4))] for _ in range(rng.randint(1, 5))]
        result = answer(counts=counts, loss_reduction=reduction)
        assert weights(result) == pytest.approx(
            by_autograd(counts, reduction, [1.0] * sum(map(len, counts))), rel=1e-12
        )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.framework}/{rule.setting}")
def test_the_factor_makes_every_rule_the_global_token_mean(rule: Rule) -> None:
    result = answer(framework=rule.framework, setting=rule.setting, version=rule.release)
    assert result.cells is not None
    for cell in result.cells:
        assert Fraction(cell.weight_exact or 0) * Fraction(cell.factor_exact or 0) == Fraction(1, 16)


def test_the_factor_on_the_loss_is_right_by_autograd_and_no_factor_is_wrong() -> None:
    result = answer(loss_reduction="mean")
    assert result.cells is not None
    factors = [cell.factor or 0.0 for cell in result.cells]
    assert by_autograd(RAGGED, "mean", factors) == pytest.approx([1 / 16] * 4, rel=1e-12)
    assert by_autograd(RAGGED, "mean", [1.0] * 4) != pytest.approx([1 / 16] * 4, rel=1e-2)


@pytest.mark.parametrize(
    ("fields", "expression"),
    [
        ({"loss_reduction": "mean"}, "n_rk*P/N"),
        ({"loss_reduction": "sum"}, "P/N"),
        ({"framework": "torch_ddp", "setting": "sum_hook", "loss_reduction": "sum"}, "1/N"),
        ({"framework": "accelerate", "setting": "accumulate", "loss_reduction": "sum"}, "K*P/N"),
        ({"framework": "transformers"}, "1"),
        ({"framework": "transformers", "setting": "own_counts"}, "n_r*P/N"),
        ({"framework": "transformers", "setting": "compute_loss_func"}, "n_rk/N"),
        ({"framework": "jax", "setting": "shard_map_psum"}, "n_rk/(P*N)"),
        ({"framework": "axolotl"}, "1"),
        ({"framework": "axolotl", "version": "0.19.0"}, "n_rk*K_r*P/N"),
        ({"framework": "megatron_core", "setting": "two_values", "loss_reduction": "sum"}, "K*P/N"),
        ({"framework": "megatron_core", "setting": "per_token"}, "1"),
        ({"framework": "megatron_core", "setting": "two_values_per_token", "loss_reduction": "sum"}, "K/N"),
        ({"loss_reduction": "custom", "denominator": 4}, "P*denominator/N"),
    ],
)
def test_the_missing_factor_is_written_in_the_names_of_the_counts(fields: dict[str, Any], expression: str) -> None:
    assert answer(**fields).factor_expression == expression


def test_the_recipe_of_sum_times_p_over_n_is_right_and_without_p_is_not() -> None:
    assert answer(loss_reduction="sum", loss_factor="1/8").matches_reference
    assert answer(loss_reduction="sum", loss_factor="1/16").ratio_exact == "1/2"


def test_a_partial_window_is_halved_by_the_configured_count() -> None:
    result = answer(counts=[[4], [3]], framework="lightning", setting="trainer", accumulation=2)
    assert weights(result) == [1 / 16, 1 / 12]
    assert result.mass == 0.5


def test_a_window_that_waits_has_no_weight_and_says_so() -> None:
    result = answer(counts=[[4], [3]], framework="deepspeed", setting="engine", accumulation=2)
    assert (weights(result), result.reason, result.tail) == ([0.0, 0.0], "not_stepped", "waits")


def test_an_empty_cell_makes_a_mean_undefined_and_leaves_a_sum_alone() -> None:
    assert answer(counts=[[0], [8]], loss_reduction="mean").reason == "empty_cell"
    assert answer(counts=[[0], [8]], loss_reduction="sum", loss_factor="1/4").matches_reference


def test_a_window_without_tokens_has_no_objective() -> None:
    result = answer(counts=[[0], [0]], loss_reduction="sum")
    assert (result.defined, result.reason) == (False, "zero_count")


def test_a_sum_over_the_context_group_divides_by_the_other_ranks_only() -> None:
    shape = {"counts": [[4], [3], [1], [2]], "loss_reduction": "sum", "context_parallel": 2}
    assert answer(**shape, context_reduction="sum", loss_factor="1/5").matches_reference
    assert answer(**shape, context_reduction="mean", loss_factor="1/5").ratio_exact == "1/2"


def test_experts_averaged_over_their_copies_are_too_large_by_the_size_of_the_group() -> None:
    experts = answer(counts=[[1]] * 8, expert_parallel=4).experts
    assert experts is not None
    assert (experts.copies, experts.ratio, experts.factor) == (2, 4.0, "1/4")


REFUSED_BODIES = changed(
    {"counts": RAGGED},
    [
        ({"setting": "own_counts"}, "setting"),
        ({"counts": [[2], []]}, "counts"),
        ({"counts": [[-1]]}, "counts.0.0"),
        ({"loss_reduction": "custom"}, "denominator"),
        ({"accumulation": 1}, "accumulation"),
        ({"context_parallel": 3}, "context_parallel"),
        ({"loss_factor": 0}, "loss_factor"),
        ({"loss_factor": "1e-308", "loss_reduction": "custom", "denominator": "1e308"}, "denominator"),
        ({"framework": "nothing"}, "framework"),
    ],
)
REFUSED_FIELDS = {"framework": ["nothing"]}


def test_another_version_than_the_measured_one_is_said() -> None:
    assert not answer(version="1.0").measured_release
    assert answer(version="2.13.0").measured_release


def rows_of(rule: Rule, measured: Measured) -> list[dict[str, Any]]:
    rows = json.loads(BAG.read_text("utf-8"))["rows"]
    found = [
        row
        for row in rows
        if (row["framework"], row["setting"], row["version"]) == (rule.framework, measured.setting, rule.release)
        and row["scenario"] in {*"ABCDESMQR", "sequence"}
    ]
    return [row for row in found if row["coefficients"] or row["kind"] == "sharded"]


def measured_weights(row: dict[str, Any], total: int) -> list[list[float | None]]:
    """Of a token in each cell; of a sharded row, whose reference is one process's mean, a multiple of 1/N."""
    if row["kind"] == "sharded":
        return [[row["values"]["linear_factor"] / total]] * 2
    coefficients: list[list[float | None]] = row["coefficients"]
    return coefficients


@pytest.mark.parametrize(
    ("rule", "measured"), MEASUREMENTS, ids=[f"{rule.framework}/{measured.setting}" for rule, measured in MEASUREMENTS]
)
def test_a_rule_gives_the_weights_that_were_measured(rule: Rule, measured: Measured) -> None:
    setup = json.loads(BAG.read_text("utf-8"))["setup"]["scenarios"]
    rows = rows_of(rule, measured)
    assert rows
    for row in rows:
        counts, accumulation = setup[row["scenario"]]["counts"], setup[row["scenario"]]["accumulation"]
        names = {"N": sum(map(sum, counts)), "P": len(counts), "K": accumulation}
        factor = eval_factor(measured.factor, names)
        result = answer(
            counts=counts,
            accumulation=accumulation,
            framework=rule.framework,
            setting=rule.setting,
            version=rule.release,
            loss_reduction=measured.reduction,
            loss_factor=str(factor),
        )
        assert result.cells is not None
        for cell in result.cells:
            if cell.n and result.reason != "empty_cell":
                found = measured_weights(row, names["N"])[cell.rank][cell.microstep]
                assert cell.weight == pytest.approx(found, abs=1e-3)


def test_a_mean_over_all_ranks_of_a_micro_step_weighs_micro_steps_alike() -> None:
    result = answer(framework="optax", setting="multi_steps")
    assert weights(result) == [1 / 14, 1 / 18] * 2
    assert (result.objective, result.factor_expression) == ("micro_step_equal", "n_k*K/N")
    alone = answer(framework="jax", setting="jit", counts=[[2], [8]])
    assert (alone.matches_reference, alone.objective) == (True, "global_token_mean")


def test_every_framework_of_the_lab_that_weighs_tokens_by_a_count_has_a_rule() -> None:
    rows = json.loads(BAG.read_text("utf-8"))["rows"]
    counting = {row["framework"] for row in rows if row["kind"] == "coefficients"}
    assert counting - {rule.framework for rule in RULES} <= {
        "jax_processes",
        "megatron_core_schedule",
    }  # parts of others


def eval_factor(expression: str, names: dict[str, int]) -> Fraction:
    """`K*P/N` with the numbers of a window."""
    top, _, bottom = expression.partition("/")
    value = Fraction(1)
    for name in top.split("*"):
        value *= names.get(name, 1)
    return value / names.get(bottom, 1)


# --- the program that its page offers


def any_body(source: random.Random) -> Body:
    framework, setting = source.choice(
        [("torch_ddp", "default"), ("torch_ddp", "sum_hook"), ("accelerate", "accumulate"), ("deepspeed", "engine"),
         ("transformers", "default"), ("transformers", "own_counts"), ("transformers", "no_kwargs"), ("trl", "default"),
         ("optax", "multi_steps"), ("openrlhf", "counted"), ("jax", "shard_map_psum")]
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


PROGRAM = Program(
    prints=["N", "cells.0.weight", "cells.3.factor"],
    planted=("[2, 8]", "[3, 8]"),
    bodies=any_body,
)
