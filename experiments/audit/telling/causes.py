"""Every cause an audit can name: one sentence a human can act on, in both languages, and where the book explains it.

Sentences are formatted with what was found; see `say`. Links are a chapter with its section, and a calculator in a
state that shows the same fault on small numbers.
"""

from dataclasses import dataclass

from samestep.app.evidence.bags import Text


@dataclass(frozen=True)
class Cause:
    """`chapter`: "slug#section". `calculator`: "name?query" of a panel that shows the fault."""

    sentence: Text
    chapter: str
    calculator: str


CAUSES: dict[str, Cause] = {
    "scale": Cause(
        {
            "en": "The gradient is {factor} times the right one. The usual reason: {usual}.",
            "zh": "梯度是正确值的 {factor} 倍。常见原因：{usual}。",
        },
        "first-difference#sec-ratio",
        "ratio_fingerprint?P={P}&K={K}&reference_norm={reference_norm}&observed_norm={observed_norm}",
    ),
    "replica_equal": Cause(
        {
            "en": "Every rank counts the same, however many tokens it has: each divides by its own count, and the "
            "reduction averages. Divide by the global count: P·S/N before an averaging reduction.",
            "zh": "每个 rank 权重相同，与各自的 token 数无关：各自除以自己的计数，归约再取平均。"
            "应除以全局计数：平均归约之前用 P·S/N。",
        },
        "parallel-correctness#sec-denominator",
        "replica_ledger?counts={counts}&gradients={gradients}&scheme=replica_mean_then_ddp_mean",
    ),
    "microbatch_equal": Cause(
        {
            "en": "Every microbatch counts the same, however many tokens it has: a mean of means. Divide each "
            "microbatch's sum by the count of the whole window.",
            "zh": "每个微批权重相同，与各自的 token 数无关：这是均值的均值。应把每个微批的和除以整个窗口的计数。",
        },
        "first-difference#sec-weights",
        "replica_ledger?counts={counts}&gradients={gradients}&scheme=microstep_mean_div_K_then_ddp_mean",
    ),
    "dropped_microbatch": Cause(
        {
            "en": "Some samples have no part in the update: {which}.",
            "zh": "有样本没有参与这次更新：{which}。",
        },
        "first-difference#sec-weights",
        "ratio_fingerprint?P={P}&K={K}",
    ),
    "duplicated_samples": Cause(
        {
            "en": "Some samples count more than once: {which}. A sampler that pads every rank to the same length "
            "does this, or a pass whose gradients were not zeroed.",
            "zh": "有样本被重复计入：{which}。采样器为让各 rank 等长而补齐，或额外的反向之后没有清零梯度，都会这样。",
        },
        "first-difference#sec-ladder",
        "sampler_padding",
    ),
    "not_reduced": Cause(
        {
            "en": "The ranks end with different models: gradients were not reduced over them. {why}",
            "zh": "各 rank 更新后的模型不再相同：梯度没有在 rank 之间归约。{why}",
        },
        "two-process-verification#sec-order",
        "gradient_scaling",
    ),
    "not_handed_on": Cause(
        {
            "en": "Each rank's optimizer steps its own part of the parameters, and the result is not handed to the "
            "others: {which} differ. Broadcast every part from the rank that steps it.",
            "zh": "每个 rank 的优化器只更新自己那部分参数，结果没有交给其他 rank：{which} 不同。"
            "每一部分都应由更新它的 rank 广播出去。",
        },
        "sharding#sec-local",
        "clip_ownership?scheme=per_rank",
    ),
    "detached_remote": Cause(
        {
            "en": "The losses are right, but {wrong} get only a part of their gradient: what was gathered carries none "
            "back. Use an all-gather whose backward sums.",
            "zh": "损失正确，但 {wrong} 只得到一部分梯度：收集来的张量没有把梯度传回。应使用反向会求和的 all-gather。",
        },
        "parallel-correctness#sec-negatives",
        "info_nce?scheme=local_loss_remote_detached",
    ),
    "missing_negatives": Cause(
        {
            "en": "Each {part} is contrasted with its own negatives only: the gradient is what its parts give "
            "alone, not "
            "what the whole batch gives. Gather the representations (or cache them over the window) before the loss.",
            "zh": "每个{part}只与自己的负例对比：得到的是各部分单独的梯度，而不是整个批次的梯度。"
            "应先汇集表示（或在窗口内缓存）再计算损失。",
        },
        "infonce-derivatives#sec-table",
        "info_nce?scheme=local_negatives_only",
    ),
    "batch_statistics": Cause(
        {
            "en": "{where} normalises each part of the batch by its own statistics, so the update depends on how "
            "the batch "
            "is cut. Use SyncBatchNorm for ranks; for microbatches there is no exact repair but freezing the "
            "statistics.",
            "zh": "{where} 用各部分自己的统计量做归一化，更新因此取决于批次怎样切分。跨 rank 可用 SyncBatchNorm；"
            "对微批除了冻结统计量没有精确的修法。",
        },
        "more-than-one-term#sec-whitening",
        "batch_statistics?term=batch_norm",
    ),
    "local_norm": Cause(
        {
            "en": "Each rank takes the norm of its own shard ({norms}); the root of the sum of their squares is "
            "the norm "
            "that was wanted, {expected}. Reduce the squares before the root.",
            "zh": "每个 rank 只取自己分片的范数（{norms}）；它们平方和的根才是所要的范数 {expected}。"
            "应先归约平方再开方。",
        },
        "sharding#sec-local",
        "clip_ownership?gradients={norm_rows}&loss_scale=1&scheme=per_rank",
    ),
    "per_rank_clip": Cause(
        {
            "en": "Each rank clips its own gradient before the reduction, {how} (norms {norms}; of the whole: "
            "{expected}). Reduce first, then clip the result.",
            "zh": "每个 rank 在归约之前就裁剪了自己的梯度，{how}（范数 {norms}；"
            "整体为 {expected}）。应先归约，再裁剪结果。",
        },
        "parallel-correctness#sec-norm",
        "clip_ownership?gradients={norm_rows}&loss_scale=1&scheme=per_rank",
    ),
    "copies_counted": Cause(
        {
            "en": "The norm counts {what} {times} times: {found} instead of {expected}. Each parameter has one owner; "
            "the others' copies do not count.",
            "zh": "范数把 {what} 计了 {times} 次：得 {found}，应为 {expected}。每个参数只有一个拥有者，其余拷贝不计。",
        },
        "sharding#sec-copies",
        "clip_ownership?scheme=every_copy",
    ),
    "clip_before_unscale": Cause(
        {
            "en": "The gradient is clipped while it is still multiplied by the loss scale ({scale:g}). Call "
            "scaler.unscale_(optimizer) first.",
            "zh": "裁剪时梯度仍带着损失缩放（{scale:g}）。应先调用 scaler.unscale_(optimizer)。",
        },
        "mixed-precision-order#sec-clip",
        "clip_order?scheme=clip_before_unscale",
    ),
    "per_microbatch_clip": Cause(
        {
            "en": "The gradient is clipped after every microbatch. Clip once, after the last backward of the window.",
            "zh": "每个微批之后都裁剪了一次梯度。应在窗口最后一次反向之后只裁剪一次。",
        },
        "mixed-precision-order#sec-clip",
        "clip_order?scheme=running_clip",
    ),
    "step_inside_window": Cause(
        {
            "en": "The optimizer steps {steps} times where the reference steps {expected} time(s): the window "
            "ends too early.",
            "zh": "优化器走了 {steps} 步，参考只走 {expected} 步：累积窗口结束得太早。",
        },
        "gradient-scaling#sec-accumulation",
        "gradient_scaling",
    ),
    "stale_gradient": Cause(
        {
            "en": "There is a gradient (up to {leftover:.3g}) before the window's first backward, and it is added to. "
            "Call optimizer.zero_grad() before the window.",
            "zh": "窗口第一次反向之前已有梯度（最大 {leftover:.3g}），新梯度加在了它上面。应在窗口开始前调用 "
            "optimizer.zero_grad()。",
        },
        "gradient-scaling#sec-accumulation",
        "gradient_scaling",
    ),
    "precision": Cause(
        {
            "en": "The gradient is right but for rounding as in {type} (relative error {residual:.1e}): a hook, "
            "a buffer or "
            "autocast carries it in low precision.",
            "zh": "梯度只差 {type} 的舍入（相对误差 {residual:.1e}）：某个钩子、缓冲区或 autocast 用低精度传递了它。",
        },
        "mixed-precision-order#sec-sums",
        "reduction_precision",
    ),
    "stepped_on_empty": Cause(
        {
            "en": "optimizer.step() was called on {where} without anything to learn from, and {moved} changed all the "
            "same. Skip the step on all ranks together.",
            "zh": "{where} 上没有任何可学的内容，却仍调用了 optimizer.step()，{moved} 因此改变。应让所有 rank "
            "一起跳过这一步。",
        },
        "update-and-stability#sec-zero",
        "empty_step?scheme=zero_grad",
    ),
    "optimizer_state": Cause(
        {
            "en": "The gradient agrees, the optimizer's memory does not: {where}.",
            "zh": "梯度一致，但优化器的内部状态不同：{where}。",
        },
        "update-and-stability#sec-momentum",
        "empty_step",
    ),
    "parts_alone": Cause(
        {
            "en": "Each {part} was computed by itself: its loss depends on the other samples that it is given (a mean "
            "or variance over the batch, balancing, whitening, a perturbation), and it was given only its own.",
            "zh": "每个{part}是单独计算的：它的损失取决于一同给它的其他样本（批次的均值或方差、负载均衡、"
            "白化、扰动等），"
            "而它只拿到了自己的那些。",
        },
        "more-than-one-term#sec-balance",
        "batch_statistics",
    ),
    "sample_share": Cause(
        {
            "en": "Each microbatch's mean counts by its number of samples, not of valid tokens. Divide its sum by the "
            "count of the whole window.",
            "zh": "每个微批的均值按样本数加权，而不是按有效 token 数。应把它的和除以整个窗口的计数。",
        },
        "first-difference#sec-weights",
        "replica_ledger?counts={counts}&gradients={gradients}&scheme=microstep_mean_div_K_then_ddp_mean",
    ),
    "reduced_repeatedly": Cause(
        {
            "en": "What has been summed over the ranks is summed again after each later microbatch, so early ones "
            "count P times more. Reduce once, after the last backward of the window.",
            "zh": "已在 rank 之间求和的梯度，在之后每个微批又被求和一次，越早的微批权重越大（每次 P 倍）。"
            "应在窗口最后一次反向之后只归约一次。",
        },
        "first-difference#sec-weights",
        "ratio_fingerprint?P={P}&K={K}",
    ),
    "regulariser": Cause(
        {
            "en": "A term that does not depend on the samples, such as weight decay or a penalty on the weights, "
            "counts {how} ({which}).",
            "zh": "与样本无关的一项（例如权重衰减或对权重的惩罚）{how}（{which}）。",
        },
        "more-than-one-term#sec-penalty",
        "loss_terms?penalty=1",
    ),
    "lossy_reduction": Cause(
        {
            "en": "What the ranks computed adds up to the right gradient; {through} does not hand it on as it is "
            "(relative error {residual:.1e}, in {wrong}): it compresses, quantises, clips, drops or adds "
            "something.",
            "zh": "各 rank 算出的梯度加起来是对的；{through}没有原样传递它（相对误差 {residual:.1e}，在 {wrong}）："
            "它压缩、量化、裁剪、丢弃或添加了什么。",
        },
        "mixed-precision-order#sec-sums",
        "reduction_precision",
    ),
    "parameters_averaged": Cause(
        {
            "en": "The ranks step with their own gradients, and {what}: that is the same only for an optimizer that is "
            "linear in the gradient.",
            "zh": "各 rank 用自己的梯度更新，{what}：只有当优化器对梯度是线性的，两者才相同。",
        },
        "two-process-verification#sec-order",
        "gradient_scaling",
    ),
    "scaled_by_rank": Cause(
        {
            "en": "Every rank steps with its own multiple of one gradient ({ratios} times rank 0's): it was reduced, "
            "and then divided or multiplied by a number that is not the same on all ranks, such as a rank's own count "
            "or loss scale.",
            "zh": "每个 rank 用同一个梯度的不同倍数更新（是 rank 0 的 {ratios} 倍）：梯度归约过，"
            "之后却除以或乘以了各 rank 不同的数，例如自己的计数或损失缩放。",
        },
        "parallel-correctness#sec-denominator",
        "ratio_fingerprint?P={P}&K={K}",
    ),
    "skipped_alone": Cause(
        {
            "en": "Not every rank takes the step: optimizer.step() ran {times}. {why}Whether to skip has to be decided "
            "by all ranks together.",
            "zh": "并非每个 rank 都更新：optimizer.step() 的次数为 {times}。{why}是否跳过必须由所有 rank 共同决定。",
        },
        "mixed-precision-order#sec-agree",
        "overflow_skip",
    ),
    "moved_inside_window": Cause(
        {
            "en": "{which} are changed in place between the backwards of one update, so that later microbatches see "
            "other parameters than the first. Change them once an update, after the step.",
            "zh": "一次更新的各次反向之间，{which} 被就地改动，之后的微批看到的参数与第一个不同。"
            "应在 step 之后、每次更新只改动一次。",
        },
        "gradient-scaling#sec-accumulation",
        "gradient_scaling",
    ),
    "carried_over": Cause(
        {
            "en": "Something is carried from one microbatch to the next, such as a hidden state, a queue or a running "
            "statistic: run on one process, the same samples add another gradient after other samples.",
            "zh": "有东西从一个微批带到了下一个，例如隐藏状态、队列或滑动统计量："
            "在单进程上，同样的样本跟在不同的样本之后，所加的梯度就不同。",
        },
        "parallel-correctness#sec-equivalence",
        "objective_weights",
    ),
    "changed_after_step": Cause(
        {
            "en": "The optimizer leaves the same parameters as on one process; afterwards something else changes "
            "{which}: {how}.",
            "zh": "优化器更新后的参数与单进程相同；之后又有别的操作改动了 {which}：{how}。",
        },
        "first-difference#sec-ladder",
        "gradient_scaling",
    ),
    "outside_state": Cause(
        {
            "en": "The gradient is right; {which}, which no optimizer updates, is not. {why}",
            "zh": "梯度正确；不由优化器更新的 {which} 却不对。{why}",
        },
        "first-difference#sec-ladder",
        "gradient_scaling",
    ),
    "settings": Cause(
        {
            "en": "The gradient is right, the optimizer {when} ({changed}).",
            "zh": "梯度正确，但优化器{when}（{changed}）。",
        },
        "update-and-stability#sec-clocks",
        "schedule_clock",
    ),
    "random_numbers": Cause(
        {
            "en": "The step draws random numbers ({drawn}), other ones in every run: gradients differ by chance, and "
            "whether the update is the same was not judged. Draw them in data(), or switch them off for the audit; "
            "samples and replicas are compared all the same.",
            "zh": "这一步抽取随机数（{drawn}），每次运行都不同：梯度的差异可能只是偶然，更新是否相同未作判断。"
            "请在 data() 里抽好，或审计时关掉；样本与各 rank 是否一致仍已比较。",
        },
        "first-difference#sec-ladder",
        "ratio_fingerprint?P={P}&K={K}",
    ),
    "update_on_shards": Cause(
        {
            "en": "The gradient is right, the update of {which} is what the optimizer makes of each rank's {parts} "
            "alone: it has to see the whole matrix.",
            "zh": "梯度正确，但 {which} 的更新是优化器对各 rank 自己的{parts}单独算出的：它必须看到整个矩阵。",
        },
        "sharding#sec-matrix",
        "matrix_update",
    ),
    "clip_before_division": Cause(
        {
            "en": "The gradient is clipped while it is {factor} times the right one, and divided afterwards: its norm "
            "{norm} met the limit {limit}, where {expected} should have.",
            "zh": "裁剪时梯度是正确值的 {factor} 倍，之后才除：与上限 {limit} 相比的是范数 {norm}，应为 {expected}。",
        },
        "mixed-precision-order#sec-clip",
        "clip_order?scheme=clip_before_unscale",
    ),
    "zero_for_none": Cause(
        {
            "en": "{which} has no gradient (None) on one process and zeros on the ranks: the optimizer skips the one, "
            "and moves the other by weight decay or old momentum.",
            "zh": "{which} 在单进程上没有梯度（None），在各 rank 上是零：优化器跳过前者，"
            "却因权重衰减或旧动量移动后者。",
        },
        "update-and-stability#sec-zero",
        "empty_step?scheme=zero_grad",
    ),
    "unknown": Cause(
        {
            "en": "{what}",
            "zh": "{what}",
        },
        "first-difference#sec-ladder",
        "ratio_fingerprint?P={P}&K={K}",
    ),
}


def say(code: str, **found: object) -> Text:
    """The cause's sentence, with a Text among the values taken in the sentence's language."""
    sentence = CAUSES[code].sentence
    return {"en": sentence["en"].format(**_in("en", found)), "zh": sentence["zh"].format(**_in("zh", found))}


def _in(language: str, found: dict[str, object]) -> dict[str, object]:
    return {name: value[language] if isinstance(value, dict) else value for name, value in found.items()}
