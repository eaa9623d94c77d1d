"""Keras on TensorFlow: the same `fit` under MirroredStrategy over two logical CPUs, and loops of one's own."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from samestep.experiments.conformance.adapter import Coefficients, Expected, Measurement, Setting
from samestep.experiments.conformance.frameworks import keras_fit
from samestep.experiments.conformance.layout import IGNORED, VOCABULARY, Layout
from samestep.experiments.conformance.scenarios import Scenario

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
DEVICES = ["CPU:0", "CPU:1"]
_REPLICAS: dict[str, Expected] = {"A": "replica_equal", "C": "replica_equal"}
_LOOPS = (
    Setting(
        "loop_mean",
        {"zh": "自己写的循环，本地均值", "en": "a loop of one's own, local mean"},
        {
            "zh": "apply_gradients 把各副本的梯度相加，不取平均：P 倍。",
            "en": "apply_gradients adds the replicas' gradients and does not average them: P times as much.",
        },
        dict.fromkeys("AC", "replica_equal*P"),
        labels=keras_fit.LABELS,
        tolerance=keras_fit.TOLERANCE,
    ),
    Setting(
        "loop_average_loss",
        {"zh": "自己写的循环，compute_average_loss", "en": "a loop of one's own, compute_average_loss"},
        {
            "zh": "教程的写法：每行的均值交给 compute_average_loss，除以全局行数：每行一样重。",
            "en": "As the tutorial writes it: row means go to compute_average_loss, which divides by the global "
            "number of rows, so rows weigh the same.",
        },
        _REPLICAS,
        labels=keras_fit.LABELS,
        tolerance=keras_fit.TOLERANCE,
    ),
    Setting(
        "loop_recipe",
        {"zh": "配方：自己写的循环，损失之和 ÷ N", "en": "recipe: a loop of one's own, sum of losses ÷ N"},
        {
            "zh": "相加正合适：和除以全局标签数 N。",
            "en": "Adding is what it takes: the sum over N, the labels of all replicas.",
        },
        dict.fromkeys("AC", "global_token_mean"),
        labels=keras_fit.LABELS,
        tolerance=keras_fit.TOLERANCE,
    ),
)
SETTINGS = (
    *keras_fit.settings(
        {
            "mask": _REPLICAS,
            "ignore_class": _REPLICAS,
            "sample_weight": {"A": "constant", "C": "constant"},
            "sample_weight_mean": _REPLICAS,
        },
        {
            "zh": "MirroredStrategy 之下每个副本先求自己的均值，再平均。",
            "en": "Under MirroredStrategy each replica takes its own mean first; these are averaged.",
        },
    ),
    Setting(
        "accumulation",
        {"zh": "gradient_accumulation_steps=2", "en": "gradient_accumulation_steps=2"},
        {
            "zh": "MirroredStrategy 之下不能用：第一个微步就以 RuntimeError（merge_call）结束。",
            "en": "It cannot be used under MirroredStrategy: the first micro-step ends with a RuntimeError "
            "(merge_call).",
        },
        {"B": "aborts"},
        labels=keras_fit.LABELS,
        tolerance=keras_fit.TOLERANCE,
    ),
    *_LOOPS,
)


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement:
    if setting.startswith("loop_"):
        return loop(setting, scenario)
    way = "mask" if setting == "accumulation" else setting
    return keras_fit.measure(way, scenario, tf.distribute.MirroredStrategy(DEVICES).scope, dealt)


def dealt(arrays: Sequence[Any], batch: int) -> Any:
    return tf.data.Dataset.from_tensor_slices(tuple(arrays)).batch(batch)


def loop(setting: str, scenario: Scenario) -> Coefficients:
    """One update of a table by a step that every replica runs."""
    # The default collectives of logical CPUs abort now and then in a process that has fitted models before.
    strategy = tf.distribute.MirroredStrategy(DEVICES, cross_device_ops=tf.distribute.ReductionToOneDevice())
    window = Layout(scenario.counts)
    ranks = range(len(scenario.counts))
    ids = np.array([window.numbers(rank, 0) for rank in ranks])
    labels = np.array([window.targets(rank, 0) for rank in ranks])
    with strategy.scope():
        table = tf.Variable(tf.zeros((window.end, VOCABULARY)))
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([table])

    def step(ids: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(setting, table, ids, labels, scenario.total)
        optimizer.apply_gradients([(tf.convert_to_tensor(tape.gradient(loss, table)), table)])

    every = tf.function(lambda ids, labels: strategy.run(step, (ids, labels)))
    for batch in strategy.experimental_distribute_dataset(dealt([ids, labels], len(ranks))):
        every(*batch)
    return Coefficients(*window.found(-table.numpy()))


def loss_of(setting: str, table: Any, ids: Any, labels: Any, total: int) -> Any:
    """Of one replica's rows."""
    valid = tf.cast(labels != IGNORED, tf.float32)
    known = tf.where(labels == IGNORED, tf.zeros_like(labels), labels)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(known, tf.gather(table, ids)) * valid
    if setting == "loop_recipe":
        return tf.reduce_sum(losses) / total
    if setting == "loop_mean":
        return tf.reduce_sum(losses) / tf.maximum(tf.reduce_sum(valid), 1)
    rows = tf.reduce_sum(losses, -1) / tf.maximum(tf.reduce_sum(valid, -1), 1)
    return tf.nn.compute_average_loss(rows)
