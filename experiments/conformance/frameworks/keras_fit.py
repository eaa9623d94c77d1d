"""What Keras is on any backend: one model, compiled and fitted the same way; the backend decides what an update weighs.

An embedding is the table: `fit` gets all micro-steps of a window in turn, each with one row a device. Keras computes in
float32.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np

from samestep.app.evidence.bags import Text
from samestep.experiments.conformance.adapter import Coefficients, Expected, Setting
from samestep.experiments.conformance.layout import IGNORED, VOCABULARY, Layout
from samestep.experiments.conformance.scenarios import Scenario

TOLERANCE = 1e-6
LABELS = ("virtual devices in one process",)
_WAYS: dict[str, tuple[Text, Text]] = {
    "mask": (
        {"zh": "填充由掩码标出，默认 reduction", "en": "padding by mask, default reduction"},
        {
            "zh": "Embedding(mask_zero=True)：被掩掉的位置不进分母。",
            "en": "Embedding(mask_zero=True): masked positions are not in the denominator.",
        },
    ),
    "ignore_class": (
        {"zh": "填充由 ignore_class 标出，默认 reduction", "en": "padding by ignore_class, default reduction"},
        {
            "zh": "被忽略的类别也变成掩码，不进分母。",
            "en": "An ignored class becomes a mask as well and leaves the denominator.",
        },
    ),
    "sample_weight": (
        {"zh": "sample_weight 取 0 和 1，默认 reduction", "en": "sample_weight of 0 and 1, default reduction"},
        {
            "zh": "默认的 sum_over_batch_size 除以位置数，权重为 0 的填充也算在内：分母与标签数无关。",
            "en": "The default, sum_over_batch_size, divides by positions, those of weight 0 too: a denominator that "
            "does not know how many labels there are.",
        },
    ),
    "sample_weight_mean": (
        {"zh": "sample_weight，mean_with_sample_weight", "en": "sample_weight, mean_with_sample_weight"},
        {"zh": "除以权重之和，也就是标签数。", "en": "Divided by the sum of weights, which is the number of labels."},
    ),
}


def settings(expected: dict[str, dict[str, Expected]], note: Text) -> tuple[Setting, ...]:
    """The four ways to mark padding, with what this backend is expected to do; `note`: how devices are used."""
    return tuple(
        Setting(
            name,
            title,
            {"zh": f"{about['zh']}{note['zh']}", "en": f"{about['en']} {note['en']}"},
            expected[name],
            labels=LABELS,
            tolerance=TOLERANCE,
        )
        for name, (title, about) in _WAYS.items()
    )


def measure(
    setting: str,
    scenario: Scenario,
    scope: Callable[[], AbstractContextManager[object]] = nullcontext,
    given: Callable[[Sequence[Any], int], Any] | None = None,
) -> Coefficients:
    """Fit the scenario's windows in one epoch; behind a tail, the next epoch's first micro-step as well.

    `scope`: what a strategy wants to be around the model. `given`: makes what `fit` gets from arrays and a batch size.
    """
    before = Layout(scenario.before)
    window = Layout(scenario.counts, first=before.end)
    after = Layout(scenario.counts, first=window.end)
    with scope():
        table = keras.layers.Embedding(
            after.end, VOCABULARY, embeddings_initializer="zeros", mask_zero=setting == "mask"
        )
        model = compiled(setting, table, window.width, scenario.accumulation)
    start = np.array(table.embeddings)
    fit(model, setting, [before, window], given)
    middle = np.array(table.embeddings)
    tokens, residual = window.found(start - middle, [before, after])
    if not scenario.tail:
        return Coefficients(tokens, residual, positions=window.width)
    fit(model, setting, [after], given)
    later, _ = window.found(middle - np.array(table.embeddings), [before, after])
    return Coefficients(tokens, residual, later, positions=window.width)


def compiled(setting: str, table: Any, width: int, accumulation: int) -> Any:
    ids = keras.Input((width,), dtype="int32")
    model = keras.Model(ids, table(ids))
    marked = {"ignore_class": IGNORED} if setting == "ignore_class" else {}
    reduction = "mean_with_sample_weight" if setting == "sample_weight_mean" else "sum_over_batch_size"
    model.compile(
        keras.optimizers.SGD(1.0, gradient_accumulation_steps=accumulation if accumulation > 1 else None),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction, **marked),
        jit_compile=False,
    )
    return model


def fit(model: Any, setting: str, windows: Sequence[Layout], given: Callable[[Sequence[Any], int], Any] | None) -> None:
    """One epoch, one row a device in each micro-step."""
    places = [
        (window, rank, k)
        for window in windows
        for k in range(len(window.counts[0]) if window.counts else 0)
        for rank in range(len(window.counts))
    ]
    ids = np.array([window.numbers(rank, k) for window, rank, k in places])
    labels = np.array([window.targets(rank, k) for window, rank, k in places])
    weights = (labels != IGNORED).astype("float32")
    if setting != "ignore_class":
        labels = np.where(labels == IGNORED, 0, labels)
    arrays = [ids, labels, *([weights] if setting.startswith("sample_weight") else [])]
    ranks = len(windows[-1].counts)
    if given is not None:
        model.fit(given(arrays, ranks), shuffle=False, verbose=0)
    else:
        weighted = {"sample_weight": weights} if len(arrays) > 2 else {}
        model.fit(ids, labels, batch_size=ranks, shuffle=False, verbose=0, **weighted)
