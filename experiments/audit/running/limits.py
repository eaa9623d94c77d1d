"""Features under which the update depends on more than the samples: which were met, and what still can be concluded."""

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.judging.case import Case

TEXTS: dict[str, Text] = {
    "dropout": {
        "en": "{where} is on: every run draws other masks. Samples, replicas and collectives can be judged, gradients "
        "cannot; set p=0 and audit again.",
        "zh": "{where} 开着：每次运行的掩码都不同。样本、各 rank 是否一致、集合通信可以判断，梯度不行；请设 p=0 "
        "再审计一次。",
    },
    "batch_norm": {
        "en": "{where} uses the statistics of what it is given: the update depends on how the batch is cut. That "
        "the ranks "
        "agree with each other can be judged, equality with one process cannot be expected.",
        "zh": "{where} 使用所得那部分的统计量：更新取决于批次怎样切分。各 rank 之间是否一致可以判断，"
        "但不能期望与单进程相等。",
    },
    "synchronised_batch_norm": {
        "en": "{where} takes statistics over the ranks but not over microbatches: with one microbatch it can be equal, "
        "with several it cannot.",
        "zh": "{where} 跨 rank 但不跨微批求统计量：只有一个微批时可以相等，多个时不能。",
    },
    "autocast": {
        "en": "{where} is on: gradients carry its rounding, which no tolerance for float64 admits. Audit without "
        "it first.",
        "zh": "{where} 开着：梯度带有它的舍入误差，超出 float64 的容差。请先关掉它再审计。",
    },
    "autocast of float64": {
        "en": "{where} is on and leaves float64 as it is: nothing was rounded, and what it rounds in training was not "
        "judged. --dtype float32 shows that.",
        "zh": "{where} 开着，但它不改变 float64：这里没有任何舍入，训练时它的舍入也就没有被判断。"
        "用 --dtype float32 可以看到。",
    },
}


def limits(case: Case) -> tuple[Text, ...]:
    """One text for every kind that the reference or a rank met."""
    met = {limit.kind: limit.where for trace in (case.reference, *case.ranks) for limit in trace.limits}
    if "autocast" in met and case.reference.stored == "float64" and case.coarsest is None:
        met["autocast of float64"] = met.pop("autocast")
    return tuple(
        {"en": TEXTS[kind]["en"].format(where=where), "zh": TEXTS[kind]["zh"].format(where=where)}
        for kind, where in met.items()
    )
