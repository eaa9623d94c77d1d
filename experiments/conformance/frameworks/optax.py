"""optax: accumulation by MultiSteps and by apply_every, over JAX's sharded arrays; what a tail and a counter do."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from samestep.experiments.conformance.adapter import Coefficients, Counters, Measurement, Setting
from samestep.experiments.conformance.frameworks import jax as devices
from samestep.experiments.conformance.frameworks.jax import DEVICES, Batch
from samestep.experiments.conformance.layout import Layout
from samestep.experiments.conformance.scenarios import Kind, Scenario

TOLERANCE = 1e-6
"""MultiSteps averages with weights in float32."""
SETTINGS = (
    Setting(
        "multi_steps",
        {"zh": "MultiSteps(K)，每个微步的全局均值", "en": "MultiSteps(K) over each micro-step's global mean"},
        {
            "zh": "每个微步在全局数组上求均值，MultiSteps 再对微步取平均：每个微步一样重。尾窗留在累积器里，"
            "和下一轮的第一个微步合成一次更新。",
            "en": "Every micro-step is a mean over the global array and MultiSteps averages them: micro-steps weigh "
            "the same. A tail stays in the accumulator and joins the first micro-step of the next epoch.",
        },
        {"A": "global_token_mean", "B": "micro_step_equal", "E": "micro_step_equal", "D": "leaking"},
        labels=DEVICES,
        tolerance=TOLERANCE,
    ),
    Setting(
        "multi_steps_pmean",
        {"zh": "MultiSteps(K)，shard_map 里的 pmean", "en": "MultiSteps(K) over a pmean inside shard_map"},
        {
            "zh": "每个设备自己的均值先平均，再对微步平均：每个微批一样重。",
            "en": "The devices' own means are averaged, then the micro-steps: every micro-batch weighs the same.",
        },
        {"A": "microbatch_equal", "B": "microbatch_equal", "E": "microbatch_equal"},
        labels=DEVICES,
        tolerance=TOLERANCE,
    ),
    Setting(
        "multi_steps_recipe",
        {
            "zh": "配方：MultiSteps(use_grad_mean=False)，损失之和 ÷ N",
            "en": "recipe: MultiSteps(use_grad_mean=False), sum of losses ÷ N",
        },
        {
            "zh": "累积器只求和，损失除以整个窗口的 N。",
            "en": "The accumulator only adds, and the loss is divided by the N of the whole window.",
        },
        dict.fromkeys("ABE", "global_token_mean"),
        labels=DEVICES,
    ),
    Setting(
        "adam_multi_steps",
        {"zh": "MultiSteps(adam, K)", "en": "MultiSteps(adam, K)"},
        {
            "zh": "adam 只在更新时被调用：它的计数等于更新数。",
            "en": "Adam is called for updates only: its count is theirs.",
        },
        {"counters_accumulated": "per_update"},
        labels=DEVICES,
    ),
    Setting(
        "adam_apply_every",
        {"zh": "chain(adam, apply_every(K))", "en": "chain(adam, apply_every(K))"},
        {
            "zh": "adam 在前：每个微步都更新矩和计数，apply_every 把 K 个步长加在一起；步长也是 K 倍。",
            "en": "Adam comes first: moments and count move at every micro-step, and apply_every adds K of its steps, "
            "so the step is K times as long too.",
        },
        {"counters_accumulated": "per_update*K"},
        labels=DEVICES,
    ),
)
RATE = 0.1


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement:
    if scenario.kind is Kind.COUNTERS:
        return counters(setting, scenario)
    before = Layout(scenario.before)
    window = Layout(scenario.counts, first=before.end)
    after = Layout(scenario.counts, first=window.end)
    trained = (before, window, after) if scenario.tail else (before, window)
    weights, updates = steps(setting, scenario, trained, devices.table(after if scenario.tail else window))
    rows = [layout for layout in trained if layout is not window]
    if not scenario.tail:
        return Coefficients(*window.found(-weights, rows))
    # A tail that was never stepped is in the update that the next epoch's first micro-step completes.
    done = len(scenario.before[0]) // scenario.accumulation
    own, residual = window.found(-sum(updates[:done], np.zeros_like(weights)), rows)
    later, _ = window.found(-sum(updates[done:], np.zeros_like(weights)), rows)
    return Coefficients(own, residual, later)


def steps(setting: str, scenario: Scenario, windows: Sequence[Layout], weights: Any) -> tuple[Any, list[Any]]:
    """Train all micro-steps in turn; the table after them, and every update that changed it."""
    summed = setting == "multi_steps_recipe"
    optimizer = optax.MultiSteps(optax.sgd(1.0), scenario.accumulation, use_grad_mean=not summed)
    state = optimizer.init(weights)
    updates: list[Any] = []
    for window in windows:
        gradient = gradient_of(setting, sum(map(sum, window.counts)))
        for k in range(len(window.counts[0]) if window.counts else 0):
            change, state = optimizer.update(gradient(weights, devices.batches(window, k)), state, weights)
            weights = optax.apply_updates(weights, change)
            if np.asarray(change).any():
                updates.append(np.asarray(change))
    return np.asarray(weights), updates


def gradient_of(setting: str, total: int) -> Callable[[Any, Batch], Any]:
    if setting == "multi_steps_pmean":
        return devices.gradient("shard_map_unchecked_pmean")
    return devices.compiled(partial(over, total) if setting == "multi_steps_recipe" else devices.mean)


def over(total: int, table: Any, batch: Batch) -> Any:
    """The summed loss of a micro-step over the labels of the whole window."""
    return devices.losses(table, batch).sum() / total


def counters(setting: str, scenario: Scenario) -> Counters:
    """Adam's own count, after as many micro-steps as the scenario has; `rates`: how long every update was."""
    every = scenario.accumulation
    adam = optax.adam(RATE)
    chained = optax.chain(adam, optax.apply_every(every))
    optimizer: Any = optax.MultiSteps(adam, every) if setting == "adam_multi_steps" else chained
    weights = jnp.zeros(2)
    state = optimizer.init(weights)
    lengths = []
    for _ in scenario.counts[0]:
        change, state = optimizer.update(-jnp.ones(2), state, weights)
        if np.asarray(change).any():
            lengths.append(float(change[0]))
    inner = state.inner_opt_state if setting == "adam_multi_steps" else state[0]
    return Counters("adam", len(lengths), int(optax.tree.get(inner, "count")), lengths)
