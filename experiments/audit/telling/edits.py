"""What to write instead: one suggestion a cause, or a factor, in the words of a plain PyTorch step."""

from samestep.app.evidence.bags import Text

EDITS: dict[str, Text] = {
    "1/P": {
        "en": "(loss_sum * ctx.world_size / ctx.global_count()).backward()",
        "zh": "(loss_sum * ctx.world_size / ctx.global_count()).backward()",
    },
    "P": {
        "en": "divide by the number of ranks after all_reduce: parameter.grad /= ctx.world_size",
        "zh": "all_reduce 之后除以 rank 数：parameter.grad /= ctx.world_size",
    },
    "replica_equal": {
        "en": "divide by ctx.global_count() and multiply by ctx.world_size, not by this rank's own count",
        "zh": "除以 ctx.global_count() 并乘以 ctx.world_size，而不是除以本 rank 的计数",
    },
    "microbatch_equal": {
        "en": "(loss_sum * ctx.world_size / ctx.global_count()).backward(), with reduction='sum' and without / K",
        "zh": "(loss_sum * ctx.world_size / ctx.global_count()).backward()，用 reduction='sum'，不再除以 K",
    },
    "sample_share": {
        "en": "divide the sum over tokens by ctx.global_count(), not each mean by the share of samples",
        "zh": "把 token 的和除以 ctx.global_count()，而不是把各均值按样本份额加权",
    },
    "stale_gradient": {
        "en": "optimizer.zero_grad() before the first backward of the window",
        "zh": "在窗口的第一次反向之前调用 optimizer.zero_grad()",
    },
    "step_inside_window": {
        "en": "move optimizer.step() behind the loop over the microbatches",
        "zh": "把 optimizer.step() 移到微批循环之后",
    },
    "clip_before_unscale": {
        "en": "scaler.unscale_(optimizer) right before the clip",
        "zh": "在裁剪之前紧接着调用 scaler.unscale_(optimizer)",
    },
    "clip_before_division": {
        "en": "divide the loss before backward(), or the gradients before the clip",
        "zh": "在 backward() 之前除损失，或在裁剪之前除梯度",
    },
    "per_microbatch_clip": {
        "en": "move the clip behind the loop over the microbatches",
        "zh": "把裁剪移到微批循环之后",
    },
    "per_rank_clip": {
        "en": "clip after the all_reduce, with the norm of what came out of it",
        "zh": "在 all_reduce 之后裁剪，用归约结果的范数",
    },
    "local_norm": {
        "en": "square = sum(shard.square().sum() for shard in shards); dist.all_reduce(square); norm = square.sqrt()",
        "zh": "square = sum(shard.square().sum() for shard in shards); dist.all_reduce(square); norm = square.sqrt()",
    },
    "copies_counted": {
        "en": "add the squares of copied parameters once, after the squares of the shards were reduced",
        "zh": "先归约分片的平方和，再把复制参数的平方只加一次",
    },
    "reduced_repeatedly": {
        "en": "reduce once, after the last backward of the window",
        "zh": "只在窗口最后一次反向之后归约一次",
    },
    "parameters_averaged": {
        "en": "average the gradients before optimizer.step(), not the parameters after it",
        "zh": "在 optimizer.step() 之前平均梯度，而不是之后平均参数",
    },
    "scaled_by_rank": {
        "en": "divide by a number that all ranks share, such as ctx.global_count(), or reduce the divisor too",
        "zh": "除以各 rank 共有的数，例如 ctx.global_count()，或把除数也归约",
    },
    "skipped_alone": {
        "en": "dist.all_reduce(skip, op=dist.ReduceOp.MAX) before deciding, and let all ranks skip or none",
        "zh": "先 dist.all_reduce(skip, op=dist.ReduceOp.MAX) 再决定，各 rank 一起跳过或一起更新",
    },
    "moved_inside_window": {
        "en": "move the change behind optimizer.step()",
        "zh": "把这一改动移到 optimizer.step() 之后",
    },
    "carried_over": {
        "en": "begin every microbatch with a fresh state",
        "zh": "每个微批都从新的状态开始",
    },
    "changed_after_step": {
        "en": "do it once an update, whatever the numbers of ranks and microbatches, on whole tensors",
        "zh": "与 rank 数和微批数无关，每次更新只做一次，并作用于完整的张量",
    },
    "settings by hand": {
        "en": "set the options of the optimizer from the update's number alone, on all ranks alike",
        "zh": "只按更新的序号设置优化器选项，各 rank 相同",
    },
    "detached_remote": {
        "en": "gather with torch.distributed._functional_collectives.all_gather_single, whose backward sums",
        "zh": "用 torch.distributed._functional_collectives.all_gather_single 收集，它的反向会求和",
    },
    "regulariser": {
        "en": "divide the penalty by the number of microbatches, or add it once a window, on every rank",
        "zh": "把惩罚项除以微批数，或每个窗口只加一次，各 rank 都加",
    },
    "random_numbers": {
        "en": "draw the numbers in data(), one row a sample, so that both runs use the same ones",
        "zh": "在 data() 里按样本抽好随机数，让两次运行用同样的数",
    },
    "zero_for_none": {
        "en": "leave parameter.grad None where nothing was computed: the optimizer then skips it",
        "zh": "没有计算过的参数保持 grad 为 None：优化器会跳过它",
    },
    "settings": {
        "en": "scheduler.step() once after optimizer.step(), whatever the numbers of ranks and microbatches",
        "zh": "每次 optimizer.step() 之后只调用一次 scheduler.step()，与 rank 数和微批数无关",
    },
    "update_on_shards": {
        "en": "gather the whole matrix's gradient before the update, and keep this rank's part of the result",
        "zh": "更新之前汇集整个矩阵的梯度，再取结果中属于本 rank 的部分",
    },
}
