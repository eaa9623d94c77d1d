"""Keras on JAX: `fit` under DataParallel over two virtual devices. The batch is one array, and its mean is global."""

import keras

from samestep.experiments.conformance.adapter import Expected, Measurement
from samestep.experiments.conformance.frameworks import keras_fit
from samestep.experiments.conformance.scenarios import Scenario

_OVER_THE_ARRAY: dict[str, Expected] = {
    "A": "global_token_mean",
    "B": "micro_step_equal",
    "C": "global_token_mean",
    "D": "leaking",
}
SETTINGS = keras_fit.settings(
    {
        "mask": _OVER_THE_ARRAY,
        "ignore_class": _OVER_THE_ARRAY,
        "sample_weight": {"A": "constant", "B": "constant", "C": "constant"},
        "sample_weight_mean": {name: _OVER_THE_ARRAY[name] for name in "ABC"},
    },
    {
        "zh": "DataParallel 之下批次是一个全局数组，均值跨设备；gradient_accumulation_steps 对微步取平均。",
        "en": "Under DataParallel the batch is one global array and the mean goes over all devices; "
        "gradient_accumulation_steps averages micro-steps.",
    },
)


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement:
    devices = keras.distribution.list_devices()
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    return keras_fit.measure(setting, scenario)
