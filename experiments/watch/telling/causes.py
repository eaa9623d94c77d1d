"""Every sentence of watch, in both languages: causes that the audit has too keep its code, its words and its links."""

from samestep.app.evidence.bags import Text
from samestep.experiments.audit.telling import causes as audit
from samestep.experiments.audit.telling.causes import Cause

SAME: Text = {
    "en": "Every token weighs the same: 1/N of the update, N = {n} tokens.",
    "zh": "每个 token 权重相同：各占这次更新的 1/N，N = {n} 个 token。",
}
OBJECTIVES: dict[str, Text] = {
    "sequences": {
        "en": "Every sequence weighs the same: 1/{units} of the update, however many tokens it has.",
        "zh": "每条序列权重相同：各占这次更新的 1/{units}，与它的 token 数无关。",
    },
    "samples": {
        "en": "Every sample weighs the same: 1/{units} of the update.",
        "zh": "每个样本权重相同：各占这次更新的 1/{units}。",
    },
}

OWN: dict[str, Cause] = {
    "sequence_mean": Cause(
        {
            "en": "Every sequence counts the same, so that a token of a short one weighs more: the loss takes a mean "
            "within each sequence first. --objective sequences says that this is meant.",
            "zh": "每条序列权重相同，因此短序列里的 token 更重：损失先在每条序列内取了均值。"
            "若这是本意，请用 --objective sequences。",
        },
        "batch-noise#sec-objectives",
        "objective_weights",
    ),
    "constant_denominator": Cause(
        {
            "en": "All tokens of an update weigh the same, but not 1/N: {value} times that. The loss is divided by "
            "something that does not follow the number of tokens, so that updates with more tokens weigh more.",
            "zh": "同一次更新内各 token 权重相同，但不是 1/N，而是它的 {value} 倍：损失除以的数不随 token 数变化，"
            "token 多的更新因此更重。",
        },
        "batch-noise#sec-objectives",
        "objective_weights",
    ),
    "reduced_again": Cause(
        {
            "en": "What has been summed over the ranks is summed again after each later microbatch, so early ones "
            "count P times more. Reduce once, after the last backward of the window.",
            "zh": "已在 rank 之间求和的梯度，在之后每个微批又被求和一次，越早的微批权重越大（每次 P 倍）。"
            "应在窗口最后一次反向之后只归约一次。",
        },
        "gradient-scaling#sec-accumulation",
        "gradient_scaling",
    ),
}
"""Causes that only a watched run shows."""

STALE: Text = {
    "en": "The gradient of the update before is still in this one ({leak:.4g} times): nothing was cleared in between. "
    "Call optimizer.zero_grad() before the window.",
    "zh": "上一次更新的梯度仍在这一次里（{leak:.4g} 倍）：其间没有清零。应在窗口开始前调用 optimizer.zero_grad()。",
}
SAME_DATA: Text = {
    "en": "{which} computed the same gradient from the same labels: the same samples were dealt out more than once, "
    "so the update has {unique} different tokens where it seems to have {n}. Does every rank read its own part of the "
    "data (DistributedSampler, or a seed of its own)?",
    "zh": "{which} 由同样的标签算出了同样的梯度：同样的样本被发了不止一次，更新里看似有 {n} 个 token，其实只有 "
    "{unique} 个不同的。每个 rank 读的是自己那份数据吗（DistributedSampler，或各自的种子）？",
}

REASONS: dict[str, Text] = {
    "residual": {
        "en": "Not explained: the gradient that the optimizer stepped with is no sum of the backwards that were seen "
        "(relative residual {residual:.1e}). No weights are given.",
        "zh": "无法解释：优化器所用的梯度不是所见各次反向之和（相对残差 {residual:.1e}），因此不给出权重。",
    },
    "no_tokens": {
        "en": "The gradient is explained (residual {residual:.1e}), but no loss of tokens was recognised: the loss "
        "ends in {ends}. watch.tokens(loss_per_token, mask) marks it with one line.",
        "zh": "梯度可以解释（残差 {residual:.1e}），但没有认出按 token 的损失：它以 {ends} 结尾。"
        "加一行 watch.tokens(loss_per_token, mask) 即可标出。",
    },
    "compiled": {
        "en": "The gradient is explained (residual {residual:.1e}), but the loss is computed inside a compiled region "
        "that shows no tokens. Run with --eager, or mark it with watch.tokens(loss_per_token, mask) outside.",
        "zh": "梯度可以解释（残差 {residual:.1e}），但损失在编译区域内计算，看不到 token。请加 --eager，"
        "或在区域外用 watch.tokens(loss_per_token, mask) 标出。",
    },
    "not_finite": {
        "en": "Not explained: the gradient holds inf or nan{where}.",
        "zh": "无法解释：梯度含有 inf 或 nan{where}。",
    },
    "reduced_in_step": {
        "en": "Not explained: {where} communicates within its own step. The ranks hold different gradients before it, "
        "and what is stepped with is made inside. The table is of each rank's own gradient.",
        "zh": "无法解释：{where} 在自己的 step 里通信。此前各 rank 的梯度不同，真正用于更新的梯度是在里面得到的。"
        "表中是各 rank 自己的梯度。",
    },
    "batch_coupled": {
        "en": "The loss at {where} contrasts the rows of a batch with each other: a row's loss depends on the others, "
        "and what other ranks' rows contribute as negatives is no weight of a token. samestep-lab audit compares the "
        "whole step.",
        "zh": "{where} 的损失让批次内各行互相对比：一行的损失依赖于其他行，其他 rank 的行作为负例的贡献"
        "不是某个 token 的权重。请用 samestep-lab audit 比较整个更新。",
    },
    "undetermined": {
        "en": "Some backwards brought the same gradient and cannot be told apart: {which}. Their sum is known, the "
        "weight of each is not.",
        "zh": "有几次反向带来同样的梯度，无法区分：{which}。只知道它们之和，不知道各自的权重。",
    },
    "signed": {
        "en": "The loss gives its tokens weights of both signs (from {least:.4g} to {most:.4g}), as advantages do: "
        "there is no share to compare them with.",
        "zh": "损失给各 token 的权重有正有负（{least:.4g} 到 {most:.4g}），例如优势函数：没有可比的份额。",
    },
    "no_rows": {
        "en": "The loss does not show which tokens belong to one {unit}: --objective {objective} cannot be judged.",
        "zh": "从损失看不出哪些 token 属于同一{unit}：无法判断 --objective {objective}。",
    },
    "fault": {
        "en": "Watch itself failed, the run did not: {fault}. No weights are given.",
        "zh": "watch 自身出错（训练没有受影响）：{fault}。因此不给出权重。",
    },
}
"""Why an update is not explained."""

EMPTY: dict[str, Text] = {
    "no_step": {
        "en": "Backwards were seen, but no optimizer stepped: there is no update to judge. Only optimizers of "
        "torch.optim's class are seen, not parameters that a script changes by itself.",
        "zh": "看到了反向，但没有优化器更新：没有可判断的更新。只能看到继承自 torch.optim.Optimizer 的优化器，"
        "看不到脚本自己对参数的改动。",
    },
    "no_gradient": {
        "en": "Nothing moved: the gradient of the update is zero everywhere.",
        "zh": "什么也没有动：这次更新的梯度处处为零。",
    },
    "no_token": {
        "en": "No token was supervised in this update.",
        "zh": "这次更新里没有任何受监督的 token。",
    },
    "skipped": {
        "en": "The loss scaler skipped this step: the gradient overflowed.",
        "zh": "损失缩放器跳过了这一步：梯度溢出。",
    },
}

REFUSALS: dict[str, Text] = {
    "fsdp1": {
        "en": "FullyShardedDataParallel (FSDP1) flattens parameters and hides each backward's gradient: it is not "
        "supported. fully_shard (FSDP2) is.",
        "zh": "FullyShardedDataParallel（FSDP1）把参数展平，看不到每次反向的梯度：不支持。支持 fully_shard（FSDP2）。",
    },
    "optimizer_in_backward": {
        "en": "The optimizer steps inside the backward, parameter by parameter: there is no moment at which the whole "
        "gradient can be seen. Not supported.",
        "zh": "优化器在反向过程中逐个参数更新：没有一个时刻能看到完整的梯度。不支持。",
    },
    "tensor_parallel": {
        "en": "Parameters are sharded by tensor parallelism (DTensors that fully_shard did not make). Not supported.",
        "zh": "参数由张量并行切分（不是 fully_shard 产生的 DTensor）。不支持。",
    },
    "pipeline": {
        "en": "The model runs in pipeline stages: only the last one sees the loss. Not supported.",
        "zh": "模型按流水线分阶段运行：只有最后一个阶段能看到损失。不支持。",
    },
    "context_parallel": {
        "en": "Sequences are cut over the ranks (context_parallel), and attention hands gradients from one to the "
        "other: no backward of a rank belongs to its own tokens alone. Not supported.",
        "zh": "序列被切分到各 rank（context_parallel），注意力在它们之间传递梯度：一个 rank 的反向不只属于它自己的 "
        "token。不支持。",
    },
    "lbfgs": {
        "en": "LBFGS evaluates its closure several times a step: no single gradient is stepped with. Not supported.",
        "zh": "LBFGS 每步多次求值闭包：没有单独一个用于更新的梯度。不支持。",
    },
    "compiled_autograd": {
        "en": "Compiled autograd replaces the graph that watch reads. Not supported.",
        "zh": "编译的 autograd 取代了 watch 所读的图。不支持。",
    },
    "apart": {
        "en": "{size} processes ran the script, and none joined a process group: each trained by itself, and nothing "
        "was reduced. Watch a script of one process with --processes 1, or as watch -- python {script}.",
        "zh": "{size} 个进程运行了脚本，却没有一个加入进程组：各自训练，什么也没有归约。单进程的脚本请用 "
        "--processes 1，或写成 watch -- python {script}。",
    },
    "nothing": {
        "en": "It could not be watched: no backward of torch was seen in any process of the command. Where the "
        "environment does not reach the processes, start them as torchrun … -m samestep.experiments.watch SCRIPT.",
        "zh": "无法观察：命令的任何进程里都没有看到 torch 的反向。若环境变量传不到各进程，请用 "
        "torchrun … -m samestep.experiments.watch SCRIPT 启动。",
    },
}
"""What cannot be watched, said before any number."""

NOTES: dict[str, Text] = {
    "communication_hook": {
        "en": "DDP reduces with the hook {where}.",
        "zh": "DDP 用钩子 {where} 归约。",
    },
    "batch_statistics": {
        "en": "{where} normalises by statistics of the batch: what a token's loss is depends on the others, so the "
        "weights are those of the losses as they were, not of independent samples.",
        "zh": "{where} 按批次统计量归一化：一个 token 的损失依赖于其他样本，权重是对当时的损失而言，"
        "并非独立样本的权重。",
    },
    "custom_function": {
        "en": "The model has an autograd function of its own ({where}): what its backward does to gradients below the "
        "loss is not in these weights.",
        "zh": "模型里有自定义的 autograd 函数（{where}）：它的反向在损失之下对梯度做的事不在这些权重里。",
    },
    "deepspeed": {
        "en": "DeepSpeed ({where}): whole gradients were asked of the engine, which is a collective of its own.",
        "zh": "DeepSpeed（{where}）：完整梯度由引擎给出，这是它自己的一次集合通信。",
    },
    "nonzero": {
        "en": "N counts the tokens with a weight other than zero: the loss is reduced by hand, and its mask was not "
        "seen.",
        "zh": "N 只计权重不为零的 token：损失由脚本自己归约，掩码没有被看到。",
    },
    "silent": {
        "en": "{count} tokens weigh nothing.",
        "zh": "有 {count} 个 token 权重为零。",
    },
    "class_weights": {
        "en": "Class weights are part of the objective: tokens are compared after dividing them out.",
        "zh": "类别权重属于目标本身：比较前已把它除去。",
    },
    "low_precision": {
        "en": "Gradients carry low precision: weights are good to about {tolerance:.0e}.",
        "zh": "梯度是低精度的：权重约准到 {tolerance:.0e}。",
    },
    "extremes": {
        "en": "A token of rank {rank}'s microstep {k} (n = {n}) weighs {most:.4g} times its share; one of rank "
        "{rank_least}'s microstep {k_least} (n = {n_least}) {least:.4g} times.",
        "zh": "rank {rank} 微步 {k}（n = {n}）的 token 权重是应得份额的 {most:.4g} 倍；"
        "rank {rank_least} 微步 {k_least}（n = {n_least}）的是 {least:.4g} 倍。",
    },
    "on_top": {
        "en": "All weights are {factor} times what this rule alone gives: {usual}.",
        "zh": "此外所有权重都是该规则的 {factor} 倍：{usual}。",
    },
    "partial": {
        "en": "This window has {k} of the usual {full} microsteps.",
        "zh": "这个窗口只有 {k} 个微步，通常是 {full} 个。",
    },
    "clip": {
        "en": "Clipping multiplied the gradient by {clip:.4g} afterwards; it is not in the weights.",
        "zh": "之后的裁剪把梯度乘以 {clip:.4g}；不计入权重。",
    },
    "off": {
        "en": "{names} do not follow: their gradient is made otherwise than that of the other {others} tensors.",
        "zh": "{names} 的梯度与其余 {others} 个张量的构成不一样。",
    },
    "unseen": {
        "en": "No backward brought a gradient for {names}.",
        "zh": "没有任何反向给 {names} 带来梯度。",
    },
    "other_term": {
        "en": "The loss has another term, {name}, with the factor {factor} in each backward.",
        "zh": "损失另有一项 {name}，在各次反向中的系数是 {factor}。",
    },
    "fault": {
        "en": "Watch failed once on the way ({fault}); the run did not.",
        "zh": "watch 途中出过一次错（{fault}）；训练没有受影响。",
    },
    "faster_ranks": {
        "en": "The ranks wrote different numbers of updates; those that all have are judged.",
        "zh": "各 rank 写下的更新数不同；只判断大家都有的。",
    },
    "missing_ranks": {
        "en": "Of {size} ranks only {seen} left a record here: the backwards of the others are missing. Hosts that "
        "share no folder for temporary files need one that they do: --folder.",
        "zh": "{size} 个 rank 中只有 {seen} 个在此留下记录，缺少其余 rank 的反向。若各主机不共用临时目录，"
        "请用 --folder 指定一个共用的目录。",
    },
}


def cause(code: str) -> Cause:
    """The cause of that code: one of watch's own, or the audit's."""
    return OWN.get(code) or audit.CAUSES[code]


def filled(text: Text, **found: object) -> Text:
    """A text with what was found; a Text among the values is taken in the text's language."""
    return {"en": text["en"].format(**_in("en", found)), "zh": text["zh"].format(**_in("zh", found))}


def _in(language: str, found: dict[str, object]) -> dict[str, object]:
    return {name: value[language] if isinstance(value, dict) else value for name, value in found.items()}
