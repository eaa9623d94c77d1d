"""Faults of earlier releases that were found and fixed upstream, and in which measurement this lab sees each of them.

They are its positive controls: what measures nothing wrong anywhere proves little. Every one names the measurement in
which the older release and the pinned one differ, and the public thread where it was fixed.
"""

from dataclasses import dataclass

from samestep.app.evidence.bags import ConformanceRow, Text


@dataclass(frozen=True)
class Fault:
    """`version`: a release that has it, listed in `frameworks`; `url`: the change that ended it, or its report."""

    framework: str
    version: str
    setting: str
    scenario: str
    url: str
    title: Text

    def concerns(self, row: ConformanceRow) -> bool:
        """Whether a row is of the measurement that shows the fault, in any release."""
        return (row["framework"], row["setting"], row["scenario"]) == (self.framework, self.setting, self.scenario)


FAULTS = (
    Fault(
        "transformers",
        "4.57.1",
        "first_label",
        "B",
        "https://github.com/huggingface/transformers/pull/46204",
        {
            "zh": "位置 0 的标签没有 token 预测，却被数进了分母",
            "en": "labels at position 0, which no token predicts, were counted",
        },
    ),
    Fault(
        "transformers",
        "4.50.3",
        "default",
        "B",
        "https://github.com/huggingface/transformers/pull/39395",
        {
            "zh": "默认只按本卡的标签数取平均，各卡之间再平均",
            "en": "by default every rank divided by its own count of labels",
        },
    ),
    Fault(
        "transformers",
        "4.50.3",
        "average_on",
        "D",
        "https://github.com/huggingface/transformers/issues/36297",
        {
            "zh": "不满的最后一窗没有更新，它的 token 被丢掉",
            "en": "a partial last window was not stepped: its tokens were dropped",
        },
    ),
    Fault(
        "transformers",
        "4.53.3",
        "no_kwargs",
        "D",
        "https://github.com/huggingface/transformers/pull/39659",
        {
            "zh": "不满的最后一窗仍除以配置的累积步数",
            "en": "a partial last window was divided by the accumulation steps as configured",
        },
    ),
    Fault(
        "deepspeed",
        "0.18.9",
        "zero1_bf16",
        "B",
        "https://github.com/deepspeedai/DeepSpeed/pull/7985",
        {
            "zh": "bf16、梯度以 fp32 累积时，最后一个微批没有参加归约",
            "en": "in bf16 with fp32 accumulation the last micro-batch missed the reduction",
        },
    ),
    Fault(
        "trl_grpo",
        "1.5.0",
        "dapo",
        "G",
        "https://github.com/huggingface/trl/pull/6024",
        {
            "zh": "一次生成供两个窗口用时，每个窗口都除以整次生成的 token 数，更新只有一半",
            "en": "where a generation serves two windows, each was divided by all of its tokens: half the update",
        },
    ),
    Fault(
        "axolotl",
        "0.19.0",
        "default",
        "B",
        "https://github.com/axolotl-ai-cloud/axolotl/pull/3982",
        {
            "zh": "每个模型都被当作不接受标签数，全局 token 平均悄悄变成微批等权",
            "en": "every model was treated as one that takes no count of labels: micro-batches weighed the same",
        },
    ),
    Fault(
        "mega_batch_margin",
        "5.3.0",
        "mini_batched",
        "pairs",
        "https://github.com/huggingface/sentence-transformers/pull/3862",
        {
            "zh": "MegaBatchMarginLoss 的默认小批版本只让最后一个小批进入反向",
            "en": "the default, mini-batched MegaBatchMarginLoss sent only its last mini-batch backward",
        },
    ),
)
