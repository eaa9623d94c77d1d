"""What a report says beside its verdict: what was not compared and why, and what decides nothing but is worth "
"knowing."""

from collections.abc import Iterator, Sequence

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.judging import compare, noted
from samestep.experiments.audit.judging.case import Case
from samestep.experiments.audit.judging.compare import Difference
from samestep.experiments.audit.running.trace import Run
from samestep.experiments.audit.telling.wording import listing, number


def remarks(case: Case, found: dict[str, Difference | None], first: str | None, runs: Sequence[Run]) -> list[Text]:
    """All of them."""
    return [*_gradients(case), *_not_compared(case, runs), *_decides_nothing(case, found, first), *_rounding(case)]


def _gradients(case: Case) -> Iterator[Text]:
    quiet = compare.noise(case.reference.gradient) if "gradient" in case.reference.vectors else []
    for names, english, chinese in (
        (quiet, "gradient zero in the reference", "参考中梯度为零"),
        (case.reference.none_gradients, "no gradient (None) in the reference", "参考中没有梯度（None）"),
    ):
        if names:
            yield {"en": f"{english}: {', '.join(names)}", "zh": f"{chinese}：{'、'.join(names)}"}


def _not_compared(case: Case, runs: Sequence[Run]) -> Iterator[Text]:
    """Everything that was seen and could not be compared."""
    once = next((run.once for run in runs if run.once), "")
    if once:
        yield {
            "en": f"one update was compared, not a second one: {once}",
            "zh": f"只比较了一次更新，没有第二次：{once}",
        }
    alike = noted.not_alike(case.reference, case.ranks)
    others = sorted({name for run in runs for name in run.updates[-1].not_compared})
    counts = noted.uncounted(case.reference, case.ranks)
    for names, english, chinese in (
        (alike, "there in one run only, or in another shape", "只在一次运行里有，或形状不同"),
        (others, "a global name whose tensors are no copy of the parameters", "其中的张量不是参数拷贝的全局名字"),
        (counts, "noted more often in one run than in the other", "两次运行记录的次数不同"),
    ):
        if names:
            yield {
                "en": f"not compared: {listing(names)} ({english})",
                "zh": f"未比较：{listing(names)}（{chinese}）",
            }
    if case.pieces:
        yield {
            "en": f"not compared: {listing(case.pieces)} (the ranks' parts do not make the whole of one process)",
            "zh": f"未比较：{listing(case.pieces)}（各 rank 的部分拼不成单进程的整体）",
        }
    if case.reduced_within:
        yield {
            "en": "the optimizer reduces within its step: the gradient that is compared is the mean, or the sum, of "
            "what the ranks give it",
            "zh": "优化器在 step 内部归约：所比较的梯度是各 rank 交给它的梯度的均值或总和",
        }
    if case.staged:
        yield {
            "en": "ranks hold different parts of the model: each parameter was compared where it is stepped",
            "zh": "各 rank 持有模型的不同部分：每个参数在更新它的 rank 上比较",
        }
    if any(trace.unrecognised for trace in (case.reference, *case.ranks)):
        yield {
            "en": "samples were not compared: a forward got rows that are none of data()'s",
            "zh": "样本未比较：某次前向收到的行不属于 data()",
        }
    if case.variations and case.variations.left_out:
        yield {
            "en": f"left out where parts of the batch were run alone, because their gradient is not finite: "
            f"{'; '.join(listing(cell) for cell in sorted(case.variations.left_out))}",
            "zh": "单独运行批次各部分时略去了梯度不是有限数的："
            f"{'；'.join(listing(cell) for cell in sorted(case.variations.left_out))}",
        }


def _decides_nothing(case: Case, found: dict[str, Difference | None], first: str | None) -> Iterator[Text]:
    if case.consumption is not None and case.consumption.times != 1:
        times = f"{case.consumption.times:g}"
        yield {"en": f"every sample was fed {times} times", "zh": f"每个样本都被输入了 {times} 次"}
    samples, loss = found["samples"], found["loss"]
    if samples is not None and samples.there and first is None:
        yield {
            "en": "some samples were fed a different number of times, without effect on the update",
            "zh": "有样本被输入的次数不同，但对更新没有影响",
        }
    if loss is not None and loss.there and first is None:
        yield {
            "en": "the loss that was differentiated differs, the update does not: a term without a gradient, a mean of "
            "another kind, or rounding",
            "zh": "被求导的损失不同，更新却相同：某一项没有梯度、均值的取法不同，或只是舍入",
        }
    if case.plan.wanted:
        yield {
            "en": f"the batch is small: only with {case.plan.wanted} samples could all microbatches have different "
            f"counts",
            "zh": f"批次太小：至少 {case.plan.wanted} 个样本才能让各微批的计数都不同",
        }
    if case.drawn and first is None:
        names = listing(case.drawn)
        yield {
            "en": f"the step draws random numbers ({names}), without effect on the update",
            "zh": f"这一步抽取随机数（{names}），但对更新没有影响",
        }


def _rounding(case: Case) -> Iterator[Text]:
    if case.blurred or case.coarsest:
        rounded = f" (the step goes through {case.coarsest})" if case.coarsest else ""
        through = f"（这一步经过 {case.coarsest}）" if case.coarsest else ""
        yield {
            "en": f"differences below {number(case.atol)} of the greatest number do not show{rounded}",
            "zh": f"小于最大值 {number(case.atol)} 倍的差异看不出来{through}",
        }
