"""What usually makes a gradient that is off by one factor."""

from samestep.app.evidence.bags import Text

USUAL: dict[str, Text] = {
    "P": {
        "en": "one P too many: P·S/N and a reduction that sums, or a local mean times P and one that averages",
        "zh": "多了一个 P：用了 P·S/N 而归约求和，或局部均值乘了 P 而归约取平均",
    },
    "1/P": {
        "en": "the loss is divided by the global count, and the reduction averages on top; multiply the loss by P",
        "zh": "损失已除以全局计数，归约又取了一次平均；应把损失乘以 P",
    },
    "K": {
        "en": "the losses of the microbatches are added up and not divided by K",
        "zh": "各微批的损失相加后没有除以 K",
    },
    "1/K": {
        "en": "the loss is divided by the global count, and by the number of microbatches on top",
        "zh": "损失已除以全局计数，又除了一次微批数",
    },
    "P*K": {
        "en": "both sums, over ranks and microbatches, and no division",
        "zh": "对 rank 与微批都求了和，却没有除",
    },
    "1/(P*K)": {
        "en": "divided by the global count, and by P and K on top",
        "zh": "已除以全局计数，又除了 P 和 K",
    },
    "N": {"en": "a summed loss and a summing reduction", "zh": "损失求和，归约也求和"},
    "1/N": {"en": "the division by the global count happens twice", "zh": "除以全局计数做了两次"},
    "N/P": {
        "en": "a summed loss that an averaging reduction divides by P alone",
        "zh": "损失求和，平均归约只除以了 P",
    },
    "N/K": {"en": "a summed loss that is divided by K alone", "zh": "损失求和，只除以了 K"},
    "N/(P*K)": {
        "en": "a summed loss divided by the numbers of ranks and microbatches, not by the count",
        "zh": "损失求和，除以的是 rank 数与微批数，而不是计数",
    },
    "P^2": {
        "en": "two P too many: a local mean times P, and a reduction that sums",
        "zh": "多了两个 P：局部均值乘了 P，归约又是求和",
    },
    "1/P^2": {"en": "averaged over the ranks twice", "zh": "对 rank 取了两次平均"},
    "sqrt(P)": {
        "en": "a learning-rate rule in the wrong place, or a norm that misses all but one rank",
        "zh": "把学习率规则用错了地方，或范数只算了一个 rank",
    },
    "1/sqrt(P)": {
        "en": "a hand-written clip whose norm counts every parameter once per rank makes this",
        "zh": "手写裁剪的范数把每个参数按 rank 各计一次，就会这样",
    },
    "-1": {
        "en": "a sign that is turned round: a loss to be maximised, or a complex gradient that was conjugated",
        "zh": "符号反了：本应最大化的损失，或复数梯度被取了共轭",
    },
    "S": {"en": "the loss scale was never taken out", "zh": "损失缩放没有除掉"},
    "1/S": {"en": "the loss scale was taken out without having been put in", "zh": "没乘损失缩放却除了它"},
}
"""What usually makes a factor."""

NO_USUAL: Text = {"en": "look for a division that is missing or made twice", "zh": "请查找漏掉或多做的一次除法"}


def usual(name: str) -> Text:
    """What usually makes this factor."""
    if "T(" in name:
        return {
            "en": "a count includes padding or ignored positions: it takes the number of elements, T, for that of "
            "valid tokens",
            "zh": "计数包含了填充或被忽略的位置：把元素个数 T 当成了有效 token 数",
        }
    return USUAL.get(name, NO_USUAL)
