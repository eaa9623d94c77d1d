"""Public reports: the words of each find the page that answers it, and a state of an instrument gives its number.

Each row holds what somebody types (`en: …`, `zh: …`), what has to be among the first five hits (the beginning of its
address), and states with a field and its value.
"""

import json
import re
from dataclasses import dataclass

import pytest
from starlette.testclient import TestClient

from samestep.app.contract.paths import value_at
from samestep.app.instruments.answers import get

Shown = tuple[str, str, object]
"""A calculator and its address, a field of the answer, and its value."""


@dataclass(frozen=True)
class Report:
    queries: tuple[str, ...]
    page: str | tuple[str, ...]
    shows: tuple[Shown, ...]


EIGHT = "counts=64;64;64;64;64;64;64;64&sums=1;1;1;1;1;1;1;1"
KD = "counts=4;4&sums=8;8&coefficient=1&second_sums=34;34&second_counts="
WHITEN = "batch_statistics?term=whiten&values=0+1+2+3;4+5+6+7+8&scheme=per_rank"
NINE = "sampler_padding?dataset_size=9&replicas=2&per_sample_grad=0,1,2,3,4,5,6,7,8&other_grad=&repeat="
SUM_THEN_DIVIDE = "placements.sum_then_divide.reductions"
DIVIDE_THEN_SUM = "placements.divide_then_sum.reductions"
PERPLEXITY = "metric_ledger?counts=2;1&losses=0;2.302585092994046"
DAPO = "rl_weights?lengths=10%2B10;100%2B300&groups=0%2B0;1%2B1&scheme=trl_dapo"
FEW = "rl_weights?lengths=10%2B1000&groups=0%2B1"
SHORT = "rl_weights?lengths=20%2B380&groups=0%2B1"
HYBRID = "no_sync_timeline?gradients=1,0;2,0;3,0;4,0&wrapper=hsdp&replica_groups=4&scheme=added_after_all_reduce"
WIPED = "pipeline_schedule?parts={}&stages=2&tied=&scheme=wiped_between_microbatches"
UNEVEN = "local_updates?targets=1,-1&curvatures=&samples=100,300&inner_lr=1&local_steps=1&rounds=1"
MESHES = "clip_ownership?gradients=3,3,3,3,3,3,3,3;4,4,4,4,4,4,4,4&loss_scale=1&max_norm=1"
VARIABLE = "batch_noise?batch_sizes=10,4&lr=0.001&lr_batch=2"
ON_MESH = "mesh_ledger?dp=8&tp=1&ep=8&squares=72,0,0,128&scheme=expert_right"
LOGGED = "metric_ledger?counts=1,1,1,1&losses=0.5,0.5,0.5,0.5&scheme=sum_of_batch_means"
REWARDS = (
    "rl_weights?lengths=5%2B5%2B5;5%2B5%2B5&groups=0%2B1%2B2;0%2B1%2B2&rewards=1%2B0%2B1;0%2B0%2B1"
    "&generations=2&scale_rewards=none"
)

REPORTS = {
    "R1": Report(
        (
            "en: trainer ignores num_items_in_batch, gradient norm grows with accumulation",
            "zh: 训练器没有用 num_items_in_batch，开了梯度累积损失变大",
        ),
        "start#loss-scaled",
        (
            (
                "ratio_fingerprint?P=1&K=4&reference_norm=0.263870&observed_norm=1.055480&reference_loss=&observed_loss=",
                "causes.0.factor",
                "K",
            ),
        ),
    ),
    "R2": Report(
        ("en: pipeline backward on the raw sum, gradient larger by the token count", "zh: 流水线 梯度大得离谱"),
        "start#pipeline",
        (("pipeline_schedule?parts=0.42&counts=16384&stages=2&tied=&scheme=sum_loss", "current.grad.0", 6881.28),),
    ),
    "R4": Report(
        ("en: pipeline schedule scales .grad after every accumulation step", "zh: 流水线 每次累积之后 .grad 被除"),
        "start#pipeline",
        (
            (
                "pipeline_schedule?parts=1,1,1,1;1,1,1,1;1,1,1,1&stages=4&scheme=rescaled_after_every_call",
                "current.total_weight_exact",
                "7/16",
            ),
            (
                "ratio_fingerprint?P=1&K=3&counts=8,8,8&part_gradients=1,0,2,-1;0,3,1,1;2,1,-1,0"
                "&observed_gradient=11/16,7/12,-5/24,1/16",
                "effective_weights_exact.0",
                ["1/48", "1/12", "1/3"],
            ),
        ),
    ),
    "R5": Report(
        (
            "en: gradients wiped between microbatches, only the last microbatch trains",
            "zh: 只有最后一个微批在训练",
            "en: FSDP CPU offload gradient accumulation outside no_sync",
            "zh: FSDP CPU 卸载 梯度累积",
        ),
        ("start#loss-scaled", "fsdp-lifecycle"),
        (
            (
                "ratio_fingerprint?P=1&K=4&counts=100,100,100,100&part_gradients=1,2;2,-1;3,1;4,0&observed_gradient=1,0",
                "causes.0.code",
                "dropped_microbatch",
            ),
            (WIPED.format("1,2,3,4"), "reference.grad.0", 2.5),
            (WIPED.format("1,2,3,4"), "current.grad.0", 1),
            (WIPED.format("2,-1,1,0"), "reference.grad.0", 0.5),
            (WIPED.format("2,-1,1,0"), "current.grad.0", 0),
            (WIPED.format("1,2,3,4"), "current.weights_exact.0", ["0", "0", "0", "1/4"]),
        ),
    ),
    "R6": Report(
        ("en: MoE global aux loss is weaker by 1/dp", "zh: MoE 辅助损失 随数据并行变弱"),
        "start#several-terms",
        (
            (
                f"loss_terms?{EIGHT}&second_counts=64;64;64;64;64;64;64;64&second_sums=1;1;1;1;1;1;1;1&coefficient=0.01"
                "&scheme=global_count_without_P",
                "current.terms.1.multiple",
                0.125,
            ),
        ),
    ),
    "R8": Report(
        ("en: advantage whitening with context parallel", "zh: 优势白化 上下文并行"),
        "start#batch-statistics",
        (
            (WHITEN, "reference", "global"),
            (WHITEN, "schemes.global.whitened.0.0.0", -1.4605934866804429),
            (WHITEN, "current.whitened.0.0.0", -1.161895003862225),
            (WHITEN, "current.max_abs_difference", 1.5270433755323358),
        ),
    ),
    "R9": Report(
        ("en: metric averaged on each rank before gather_for_metrics", "zh: gather_for_metrics 之前先取了均值"),
        "evaluation-over-ranks",
        (
            (NINE + "last", "mean_over_dataset", 4),
            (NINE + "last", "mean_over_consumed", 22 / 5),
            (NINE + "start", "mean_over_consumed", 18 / 5),
        ),
    ),
    "R10": Report(
        ("en: padded evaluation set, duplicated samples", "zh: 评测 重复样本 补齐"),
        "start#evaluation",
        (
            ("sampler_padding?dataset_size=21&replicas=2&per_sample_grad=1&other_grad=0", "consumed", 22),
            ("sampler_padding?dataset_size=21&replicas=2&per_sample_grad=1&other_grad=0", "duplicated", [0]),
            ("sampler_padding?dataset_size=14&replicas=4&per_sample_grad=1&other_grad=0", "consumed", 16),
            ("sampler_padding?dataset_size=14&replicas=4&per_sample_grad=1&other_grad=0", "duplicated", [0, 1]),
        ),
    ),
    "R12": Report(
        ("en: perplexity differs across ranks", "zh: 困惑度 多卡 不一致"),
        "start#evaluation",
        (
            (PERPLEXITY, "schemes.perplexity_of_token_mean.value", 10 ** (1 / 3)),
            (PERPLEXITY, "schemes.perplexity_of_rank_mean.value", 10 ** (1 / 2)),
            (PERPLEXITY, "schemes.mean_of_rank_perplexities.value", 5.5),
        ),
    ),
    "R13": Report(
        ("en: logged eval loss is an average of ratios", "zh: 评测 损失 日志 比值的平均"),
        "start#evaluation",
        (
            ("metric_ledger?counts=900;60&losses=2;4", "schemes.token_mean.value", 2.125),
            ("metric_ledger?counts=900;60&losses=2;4", "schemes.mean_of_rank_means.value", 3),
        ),
    ),
    "R14": Report(
        ("en: bf16 all-reduce unstable with many ranks", "zh: bf16 归约 不稳定"),
        "start#non-finite",
        (
            ("reduction_precision?values=1&ranks=384&dtype=bfloat16", f"{SUM_THEN_DIVIDE}.sequential.sum", 256),
            ("reduction_precision?values=1&ranks=96&dtype=bfloat16", f"{SUM_THEN_DIVIDE}.sequential.sum", 96),
            (
                "reduction_precision?values=0.01&ranks=384&dtype=bfloat16",
                f"{DIVIDE_THEN_SUM}.sequential.sum",
                0.0078125,
            ),
        ),
    ),
    "R16": Report(
        ("en: reduce_dtype fp32 but tensor parallel all-reduce in bf16", "zh: reduce_dtype 张量并行 all-reduce bf16"),
        "start#mesh",
        (
            ("reduction_precision?values=256,1&ranks=2&dtype=bfloat16", f"{SUM_THEN_DIVIDE}.rounded_once.sum", 256),
            ("reduction_precision?values=256,1&ranks=2&dtype=float32", f"{SUM_THEN_DIVIDE}.rounded_once.sum", 257),
        ),
    ),
    "R17": Report(
        ("en: token_level_loss true or false", "zh: token_level_loss 开还是关"),
        "reinforcement-learning#sec-names",
        (
            (FEW, "objectives.token_mean.token_weights_exact.1", "1/1010"),
            (FEW, "objectives.sequence_mean.token_weights_exact.0", "1/20"),
            (FEW, "objectives.sequence_mean.token_weights_exact.1", "1/2000"),
        ),
    ),
    "R18": Report(
        ("en: DAPO token mean per prompt group or per batch", "zh: DAPO 按组还是按批"),
        "reinforcement-learning#sec-names",
        (
            (DAPO, "objectives.token_mean.token_weights_exact.0", "1/420"),
            (DAPO, "objectives.token_mean_per_group.token_weights_exact.0", "1/40"),
            (DAPO, "objectives.token_mean_per_group.token_weights_exact.3", "1/800"),
        ),
    ),
    "R20": Report(
        (
            "en: one branch of the loss is not divided by gradient accumulation steps",
            "zh: 损失的一个分支漏了除以梯度累积步数",
        ),
        "start#loss-scaled",
        (
            (
                "replica_ledger?counts=3,3,3,3&gradients=0.5,0.5,0.5,0.5&scheme=microstep_mean_summed_then_ddp_mean",
                "current.ratio_to_reference",
                4,
            ),
        ),
    ),
    "R21": Report(
        ("en: distillation KL divided by rows times classes", "zh: 蒸馏 KL 除以类别数"),
        "start#several-terms",
        (
            ("loss_terms?" + KD + "4;4", "reference.means.1", 8.5),
            ("loss_terms?" + KD + "68;68", "reference.means.1", 8.5 / 17),
        ),
    ),
    "R23": Report(
        (
            "en: LayerNorm weights differ across tensor parallel ranks with sequence parallel",
            "zh: 序列并行 LayerNorm 梯度 不一样",
        ),
        "start#mesh",
        (
            (
                "mesh_ledger?dp=1&tp=4&norm_gradients=0.0029907,0.0029755,0.0030289,0.0019131&scheme=norm_averaged_over_tp",
                "values.norm_right",
                0.0109082,
            ),
            (
                "mesh_ledger?dp=1&tp=4&norm_gradients=0.0029907,0.0029755,0.0030289,0.0019131&scheme=norm_averaged_over_tp",
                "current.factor_exact",
                "1/4",
            ),
        ),
    ),
    "R25": Report(
        ("en: fp8 amax history keeps only the last microbatch", "zh: fp8 amax 梯度累积"),
        "start#standing-still",
        (
            ("update_rounding?weight=&gradients=&amax=12,3,5,2", "fp8.schemes.max_over_all.scales.0", 448 / 12),
            ("update_rounding?weight=&gradients=&amax=12,3,5,2", "fp8.schemes.last_microbatch.scales.0", 224),
            ("update_rounding?weight=&gradients=&amax=12,3,5,2", "fp8.schemes.last_microbatch.largest_kept.0.0", 2),
        ),
    ),
    "R26": Report(
        ("en: fp8 all-reduce, which scale", "zh: fp8 all-reduce 缩放"),
        "start#non-finite",
        (
            (
                "reduction_precision?values=100&ranks=8&dtype=float8_e4m3fn&scaling=none",
                f"{SUM_THEN_DIVIDE}.rounded_once.sum",
                448,
            ),
            ("reduction_precision?values=100&ranks=8&dtype=float8_e4m3fn&scaling=amax", "sum_then_divide", 12.5),
        ),
    ),
    "R27": Report(
        (
            "en: HSDP gradient accumulation with reduce-scatter only, all-reduce at the end",
            "zh: HSDP 梯度累积",
            "en: set_requires_all_reduce",
        ),
        ("start#accumulation", "collectives#sec-timeline"),
        (
            (HYBRID, "reference", 2.5),
            (HYBRID, "schemes.last_synchronised.final", [2.5] * 4),
            (HYBRID, "current.final", [1, 2, 3, 4]),
        ),
    ),
    "R29": Report(
        ("en: EMA updated in every microstep", "zh: EMA 梯度累积"),
        "start#schedule",
        (
            (
                "schedule_clock?P=1&K=4&batches=4000&warmup=0&update=1&ema_decay=0.999",
                "schemes.per_microbatch.ema_effective_decay",
                0.999**4,
            ),
            (
                "schedule_clock?P=1&K=4&batches=4000&warmup=0&update=1&ema_decay=0.999",
                "schemes.per_microbatch.ema_half_life_updates",
                173.20013729462522,
            ),
            (
                "schedule_clock?P=1&K=4&batches=4000&warmup=0&update=1&ema_decay=0.999",
                "schemes.per_update.ema_half_life_updates",
                692.8005491785009,
            ),
        ),
    ),
    "R30": Report(
        ("en: scheduler stepped per microbatch with gradient accumulation", "zh: 学习率 调度器 微批"),
        ("start#schedule", "update-and-stability#sec-clocks"),
        (
            (
                "schedule_clock?P=1&K=2&batches=2000&warmup=0&total=1000&update=100",
                "schemes.per_microbatch.lr_next",
                0.8,
            ),
            ("schedule_clock?P=1&K=2&batches=2000&warmup=0&total=1000&update=100", "schemes.per_update.lr_next", 0.9),
            ("schedule_clock?P=1&K=4&batches=1000&epochs=1&warmup=0&total=250", "updates", 250),
        ),
    ),
    "R31": Report(
        ("en: warmup ends too early with num_processes", "zh: 预热 提前结束 多进程"),
        "start#schedule",
        (("schedule_clock?P=8&warmup=100&total=1000", "schemes.per_update_times_processes.warmup_ends_at", 13),),
    ),
    "R32": Report(
        ("en: scale learning rate with batch size, linear or square root", "zh: 学习率 批次大小 线性缩放 平方根"),
        ("batch-noise#sec-scale", "start#schedule"),
        (
            (VARIABLE, "batches.0.rates.linear", 5e-3),
            (VARIABLE, "batches.1.rates.linear", 2e-3),
            (VARIABLE, "batches.0.rates.square_root", 2.23606797749979e-3),
            (VARIABLE, "batches.1.rates.square_root", 1.4142135623730951e-3),
        ),
    ),
    "R34": Report(
        ("en: sum of losses instead of mean, gradient grows with tokens", "zh: 损失求和 梯度随 token 数变大"),
        "start#loss-scaled",
        (
            (
                "gradient_scaling?batch=100&micro_batches=1&replicas=1&loss_reduction=sum&all_reduce=mean&scale=none",
                "final_multiple",
                "100",
            ),
            (
                "gradient_scaling?batch=10000&micro_batches=1&replicas=1&loss_reduction=sum&all_reduce=mean&scale=none",
                "final_multiple",
                "10000",
            ),
        ),
    ),
    "R35": Report(
        ("en: MTP loss normalised by the number of sequences", "zh: MTP 损失 除以序列数"),
        "start#several-terms",
        (
            (
                "loss_terms?counts=8;8&sums=16;24&second_counts=2048;2048&second_sums=4096;6144&coefficient=0.1"
                "&scheme=first_terms_count",
                "current.terms.1.multiple",
                256,
            ),
        ),
    ),
    "R36": Report(
        ("en: DiLoCo weighted average of uneven samples", "zh: 本地更新 样本数 加权"),
        "start#local-updates",
        ((UNEVEN, "schemes.local_weighted.final", -0.5), (UNEVEN, "schemes.local_mean.final", 0)),
    ),
    "R38": Report(
        ("en: clip_grad_norm, gradients of experts on two meshes", "zh: 梯度裁剪 专家 两个网格"),
        "start#norm-layout",
        (
            (MESHES, "global_norm", 200**0.5),
            (MESHES, "local_norms.0", 72**0.5),
            (ON_MESH, "norms.right", 200**0.5),
            (ON_MESH, "norms.experts_left_out", 72**0.5),
        ),
    ),
    "R39": Report(
        ("en: logged gradient norm is a multiple, the update is right", "zh: 日志里的梯度范数是几倍，更新是对的"),
        "start#evaluation",
        (
            (
                "ratio_fingerprint?P=1&K=4&reference_norm=0.5&observed_norm=2&reference_loss=&observed_loss=",
                "causes.0.factor",
                "K",
            ),
            (LOGGED, "current.value", 2),
            (LOGGED, "current.over_optimised", 4),
            (LOGGED, "schemes.token_mean.over_optimised", 1),
        ),
    ),
    "R41": Report(
        ("en: dynamic batch size, microbatches with 5, 2 and 1 sequences", "zh: 动态批次 微批 序列 权重"),
        "start#reinforcement",
        (
            (
                "objective_weights?sequences=4%2B4%2B4%2B4%2B4,4%2B4,4",
                "schemes.sequence_mean_over_microbatch.sequence_weights_exact",
                ["1/15"] * 5 + ["1/6"] * 2 + ["1/3"],
            ),
            (
                "objective_weights?sequences=4%2B4%2B4%2B4%2B4,4%2B4,4",
                "schemes.sequence_mean_over_window.sequence_weights_exact",
                ["1/8"] * 8,
            ),
        ),
    ),
    "R42": Report(
        ("en: loss_agg_mode default GRPO", "zh: loss_agg_mode 默认"),
        "reinforcement-learning#sec-names",
        (
            (SHORT, "schemes.verl_seq_mean_token_mean.token_weights_exact.0", "1/40"),
            (SHORT, "schemes.verl_token_mean.token_weights_exact.0", "1/400"),
        ),
    ),
    "R44": Report(
        ("en: GRPO rewards grouped wrongly by view num_generations", "zh: 奖励 分组 错误"),
        "start#reinforcement",
        (
            (REWARDS, "advantages.gathered", [0.5, 0, 0, -0.5, 0, 0]),
            (REWARDS, "advantages.by_view", [0.5, -0.5, 0.5, -0.5, -0.5, 0.5]),
        ),
    ),
}


def test_all_reports_are_tried() -> None:
    assert len(REPORTS) == 32


@pytest.mark.parametrize(
    ("query", "page"),
    [(query, report.page) for report in REPORTS.values() for query in report.queries],
)
def test_the_words_of_a_report_find_the_page_among_the_first_five(
    client: TestClient, query: str, page: str | tuple[str, ...]
) -> None:
    lang, words = query.split(": ", 1)
    html = client.get(f"/{lang}/search", params={"q": words}).text
    found = re.findall(r'<h2[^>]*><a href="/(?:zh|en)/([^"]+)"', html[html.index('role="status"') :])[:5]
    assert any(one.startswith(page) for one in found), found


@pytest.mark.parametrize(
    "shown", [shown for report in REPORTS.values() for shown in report.shows], ids=lambda shown: " ".join(shown[:2])
)
def test_a_state_of_an_instrument_gives_the_number_of_a_report(shown: Shown) -> None:
    address, field, value = shown
    name, _, state = address.partition("?")
    answer = get(name, state)
    assert answer.status == 200, answer.body
    told = value_at(json.loads(answer.body), field)
    assert told == (pytest.approx(value) if isinstance(value, int | float) else value)
