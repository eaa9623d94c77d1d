"""JAX: who adds the gradients of a weight that is on every device, told by five ways to write the same data
parallelism.

Two virtual CPU devices in one process, a mesh over them, the batch sharded and the table replicated. A micro-batch is
one row of the sharded array; there is no accumulation (see `optax`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from samestep.experiments.conformance.adapter import Coefficients, Measurement, Setting
from samestep.experiments.conformance.layout import IGNORED, VOCABULARY, Layout
from samestep.experiments.conformance.scenarios import Scenario

jax.config.update("jax_enable_x64", True)

DEVICES = ("virtual devices in one process",)
AXIS = "device"
REPLICATED, SHARDED = PartitionSpec(), PartitionSpec(AXIS)
Batch = tuple[Any, Any]
"""Ids and labels, [rank, width]."""


def _setting(id: str, zh: tuple[str, str], en: tuple[str, str], expected: str) -> Setting:
    return Setting(
        id,
        {"zh": zh[0], "en": en[0]},
        {"zh": zh[1], "en": en[1]},
        dict.fromkeys("AC", expected),
        labels=DEVICES,
    )


SETTINGS = (
    _setting(
        "jit",
        ("jit，NamedSharding，损失是和 ÷ 和", "数组是全局的：求和与计数都跨过设备，编译器自己插入归约。"),
        (
            "jit with NamedSharding, sum over sum",
            "The array is global: both sums go over all devices, and the compiler adds what collectives they need.",
        ),
        "global_token_mean",
    ),
    _setting(
        "jit_rows",
        ("jit，NamedSharding，逐行均值再平均", "先按行求均值，再对行平均：每行一样重，与设备无关。"),
        (
            "jit with NamedSharding, mean of row means",
            "A mean in each row and a mean over rows: rows weigh the same, wherever they lie.",
        ),
        "microbatch_equal",
    ),
    _setting(
        "pmap_pmean",
        ("pmap，pmean(grad(本地均值))", "每个设备求自己的均值的梯度，再平均。"),
        ("pmap, pmean(grad(local mean))", "Each device differentiates its own mean; then the average."),
        "replica_equal",
    ),
    _setting(
        "pmap_psum",
        ("pmap，psum(grad(本地均值))", "求和而不平均：P 倍。"),
        ("pmap, psum(grad(local mean))", "A sum and no average: P times as much."),
        "replica_equal*P",
    ),
    _setting(
        "shard_map_unchecked_pmean",
        (
            "shard_map(check_vma=False)，pmean(grad(本地均值))",
            "关掉检查后与 pmap 一样：梯度是各设备自己的，由 pmean 平均。",
        ),
        (
            "shard_map(check_vma=False), pmean(grad(local mean))",
            "Without the check it is as in pmap: the gradient is each device's own, and pmean averages it.",
        ),
        "replica_equal",
    ),
    _setting(
        "shard_map_pmean",
        (
            "shard_map 默认，pmean(grad(本地均值))",
            "默认（check_vma=True）下，权重在各设备上相同，它的梯度已经跨设备求过和；从 pmap 搬来的 pmean 不再改变它："
            "P 倍。",
        ),
        (
            "shard_map by default, pmean(grad(local mean))",
            "By default (check_vma=True) the gradient of a weight that is replicated has been summed over devices "
            "already; a pmean that came along from pmap changes nothing any more: P times as much.",
        ),
        "replica_equal*P",
    ),
    _setting(
        "shard_map_psum",
        ("shard_map 默认，psum(grad(本地均值))", "已经求过和的梯度再求一次和：P² 倍。"),
        ("shard_map by default, psum(grad(local mean))", "A sum of what is a sum already: P² times as much."),
        "replica_equal*P*P",
    ),
    _setting(
        "shard_map_plain",
        ("shard_map 默认，grad(本地均值)，没有集合通信", "没有写集合通信，梯度也已经求过和：P 倍。"),
        (
            "shard_map by default, grad(local mean), no collective",
            "Nobody wrote a collective, and the gradient is summed all the same: P times as much.",
        ),
        "replica_equal*P",
    ),
    _setting(
        "shard_map_grad_pmean",
        ("shard_map 默认，grad(pmean(本地均值))", "把 pmean 写进损失里，梯度就是平均的。"),
        (
            "shard_map by default, grad(pmean(local mean))",
            "With pmean inside the loss the gradient is that of the average.",
        ),
        "replica_equal",
    ),
    _setting(
        "shard_map_recipe",
        ("配方：shard_map 默认，grad(psum(和) ÷ psum(N))", "分子、分母都在损失里跨设备求和。"),
        (
            "recipe: shard_map by default, grad(psum(sum) ÷ psum(N))",
            "Numerator and denominator are both summed over devices, inside the loss.",
        ),
        "global_token_mean",
    ),
)


def losses(table: Any, batch: Batch) -> Any:
    """Of each position, 0 where it has no label."""
    ids, labels = batch
    valid = labels != IGNORED
    chosen = jnp.take_along_axis(jax.nn.log_softmax(table[ids]), jnp.where(valid, labels, 0)[..., None], -1)
    return jnp.where(valid, -chosen[..., 0], 0.0)


def count(batch: Batch) -> Any:
    return (batch[1] != IGNORED).sum()


def mean(table: Any, batch: Batch) -> Any:
    """Of what is there: a device's own part, or all of a global array."""
    return losses(table, batch).sum() / jnp.maximum(count(batch), 1)


def row_means(table: Any, batch: Batch) -> Any:
    return (losses(table, batch).sum(-1) / jnp.maximum((batch[1] != IGNORED).sum(-1), 1)).mean()


def averaged(table: Any, batch: Batch) -> Any:
    return jax.lax.pmean(mean(table, batch), AXIS)


def recipe(table: Any, batch: Batch) -> Any:
    return jax.lax.psum(losses(table, batch).sum(), AXIS) / jax.lax.psum(count(batch), AXIS)


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), (AXIS,))


def batches(window: Layout, k: int) -> Batch:
    """Micro-batch k of all ranks, as an array that is sharded over the devices."""
    where = NamedSharding(mesh(), SHARDED)
    ranks = range(len(window.counts))
    parts = (np.array([part(rank, k) for rank in ranks]) for part in (window.numbers, window.targets))
    ids, labels = (jax.device_put(part, where) for part in parts)
    return ids, labels


def table(window: Layout) -> Any:
    return jax.device_put(jnp.zeros((window.end, VOCABULARY)), NamedSharding(mesh(), REPLICATED))


def compiled(loss: Callable[..., Any]) -> Callable[[Any, Batch], Any]:
    """Gradient of a loss over the global array."""
    gradient: Callable[[Any, Batch], Any] = jax.jit(jax.grad(loss), out_shardings=NamedSharding(mesh(), REPLICATED))
    return gradient


def mapped(gradient: Callable[..., Any], *, check: bool = True) -> Callable[[Any, Batch], Any]:
    """A function of each device's own part."""
    specs: dict[str, Any] = {"mesh": mesh(), "in_specs": (REPLICATED, (SHARDED, SHARDED)), "out_specs": REPLICATED}
    function: Callable[[Any, Batch], Any] = jax.jit(jax.shard_map(gradient, check_vma=check, **specs))
    return function


def reduced(by: Callable[..., Any], weights: Any, batch: Batch) -> Any:
    """The local mean's gradient after a collective, as one writes it in pmap."""
    return by(jax.grad(mean)(weights, batch), AXIS)


def parallel_map(by: Callable[..., Any], weights: Any, batch: Batch) -> Any:
    each = jax.pmap(partial(reduced, by), axis_name=AXIS, in_axes=(None, (0, 0)))
    return each(np.asarray(weights), tuple(np.asarray(part) for part in batch))[0]


def gradient(setting: str) -> Callable[[Any, Batch], Any]:
    """How the setting computes the gradient of the table for a sharded batch."""
    ways: dict[str, Callable[[], Callable[[Any, Batch], Any]]] = {
        "jit": lambda: compiled(mean),
        "jit_rows": lambda: compiled(row_means),
        "pmap_pmean": lambda: partial(parallel_map, jax.lax.pmean),
        "pmap_psum": lambda: partial(parallel_map, jax.lax.psum),
        "shard_map_unchecked_pmean": lambda: mapped(partial(reduced, jax.lax.pmean), check=False),
        "shard_map_pmean": lambda: mapped(partial(reduced, jax.lax.pmean)),
        "shard_map_psum": lambda: mapped(partial(reduced, jax.lax.psum)),
        "shard_map_plain": lambda: mapped(jax.grad(mean)),
        "shard_map_grad_pmean": lambda: mapped(jax.grad(averaged)),
        "shard_map_recipe": lambda: mapped(jax.grad(recipe)),
    }
    return ways[setting]()


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement:
    """One gradient of the window."""
    window = Layout(scenario.counts)
    found = gradient(setting)(table(window), batches(window, 0))
    return Coefficients(*window.found(np.asarray(found)))
