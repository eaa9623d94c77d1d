"""What readers type, and the page that has to be among the first three that they are shown."""

import re

import pytest
from starlette.testclient import TestClient

QUERIES = {
    "en": """
        num_items_in_batch              glossary#global-count
        gradient_accumulation_steps     glossary#gradient-accumulation
        compute_loss_func               conformance/transformers
        average_tokens_across_devices   conformance/transformers
        grad_norm                       start#loss-scaled
        SFTTrainer                      conformance/trl
        SigLipLoss                      conformance/open_clip
        no_sync                         calculators/no_sync_timeline
        GradScaler                      mixed-precision-order#sec-range
        found_inf                       calculators/overflow_skip
        clip_grad_norm_                 glossary#clipping
        all_gather gradient             collectives#sec-adjoint
        reduce_scatter                  glossary#reduce-scatter
        DistributedSampler drop_last    calculators/sampler_padding
        fully_shard                     conformance/torch_fsdp2
        ignore_index                    glossary#valid-label
        hang                            fsdp-lifecycle
        deadlock                        fsdp-lifecycle
        OOM                             fsdp-lifecycle
        padding                         calculators/sampler_padding
        warmup                          calculators/schedule_clock
        EMA                             calculators/schedule_clock
        offload                         fsdp-lifecycle
        sequence packing                calculators/token_budget
        gradient norm halves            start#loss-scaled
        effective batch size            glossary#global-batch
        temperature gradient            infonce-derivatives#sec-temperature
        hard negatives                  glossary#hard-negative
        contrastive loss                glossary#infonce
        stop gradient                   glossary#detach
        AdamW                           glossary#adamw
        weight_decay                    glossary#weight-decay
        skip step                       glossary#skip
        critical batch size             glossary#noise-scale
        deepspeed                       conformance/deepspeed
        lightning                       conformance/lightning
        accelerate                      conformance/accelerate
        sentence-transformers           conformance/sentence_transformers
        average of averages             glossary#mean-of-means
        MoE                             calculators/batch_statistics
        auxiliary loss                  calculators/loss_terms
        MTP                             calculators/loss_terms
        KL                              calculators/loss_terms
        distillation                    calculators/loss_terms
        whitening                       more-than-one-term#sec-whitening
        advantage                       glossary#advantage
        BatchNorm                       calculators/batch_statistics
        load balancing                  calculators/batch_statistics
        replica_ledger                  calculators/replica_ledger
        perplexity                      calculators/metric_ledger
        gather_for_metrics              start#evaluation
        F1                              calculators/metric_ledger
        F1 score over ranks             evaluation-over-ranks
        mean of perplexities            evaluation-over-ranks#sec-exponential
        tensor parallel                 calculators/mesh_ledger
        sequence parallel               calculators/mesh_ledger
        expert parallel                 calculators/mesh_ledger
        context parallel                calculators/mesh_ledger
        1F1B                            calculators/pipeline_schedule
        GPipe                           calculators/pipeline_schedule
        scale_grads                     calculators/pipeline_schedule
        DiLoCo                          glossary#outer-optimizer
        local SGD                       glossary#local-update
        outer optimizer                 glossary#outer-optimizer
        federated                       glossary#local-update
        pseudo-gradient                 local-updates
        only the last microbatch        start#loss-scaled
        sigmoid loss                    infonce-derivatives#sec-sigmoid
    """,
    "zh": """
        显存                  start#memory
        显存不足              start#memory
        负样本                glossary#negative
        负例                  glossary#negative
        规约                  glossary#reduction
        归约                  glossary#reduction
        显卡                  gradient-flip
        死锁                  two-process-verification#sec-run
        挂起                  two-process-verification#sec-run
        反缩放                glossary#unscale
        全局批                glossary#global-batch
        梯度裁剪              glossary#clipping
        梯度累积              gradient-scaling#sec-accumulation
        损失缩放              mixed-precision-order#sec-range
        跳过更新              glossary#skip
        温度                  infonce-derivatives#sec-temperature
        学习率                glossary#learning-rate
        填充                  calculators/sampler_padding
        预热                  calculators/schedule_clock
        卸载                  fsdp-lifecycle
        OOM                   calculators/fsdp_timeline
        卡                    gradient-flip
        打包                  glossary#packing
        num_items_in_batch    conformance/transformers
        SFTTrainer            conformance/trl
        全局分母              glossary#global-count
        权重衰减              glossary#weight-decay
        分片                  sharding
        检查点                fsdp-lifecycle#sec-save
        混合精度              mixed-precision-order
        空窗口                glossary#empty-window
        批次大小              glossary#batch-size
        困惑度                start#evaluation
        gather_for_metrics    start#evaluation
        评测                  evaluation-over-ranks
        蒸馏                  calculators/loss_terms
        辅助损失              calculators/loss_terms
        白化                  calculators/batch_statistics
        负载均衡              calculators/batch_statistics
        张量并行              glossary#tensor-parallel
        序列并行              calculators/mesh_ledger
        上下文并行            calculators/mesh_ledger
        专家并行              calculators/mesh_ledger
        流水线                calculators/pipeline_schedule
        本地更新              glossary#local-update
        联邦学习              glossary#local-update
        外层优化器            glossary#outer-optimizer
        伪梯度                local-updates
    """,
}
ASKED = [
    (lang, *line.strip().rsplit(maxsplit=1)) for lang, lines in QUERIES.items() for line in lines.strip().splitlines()
]


def first_three(client: TestClient, lang: str, query: str) -> list[str]:
    page = client.get(f"/{lang}/search", params={"q": query}).text
    found = page[page.index('role="status"') :]
    return re.findall(r'<h2[^>]*><a href="/(?:zh|en)/([^"]+)"', found)[:3]


def test_there_are_sixty_queries_and_more() -> None:
    assert len(ASKED) >= 60
    assert {lang for lang, _, _ in ASKED} == {"zh", "en"}


@pytest.mark.parametrize(("lang", "query", "page"), ASKED)
def test_the_page_that_answers_a_query_is_among_the_first_three(
    client: TestClient, lang: str, query: str, page: str
) -> None:
    assert any(found.startswith(page) for found in first_three(client, lang, query)), first_three(client, lang, query)


def test_a_term_is_answered_at_the_top_and_not_repeated_below(client: TestClient) -> None:
    page = client.get("/zh/search", params={"q": "负样本"}).text
    assert page.index('id="answer-negative"') < page.index('class="hits"')
    assert page.count('href="/zh/glossary#negative"') == 1


def test_words_that_stand_nowhere_are_said_beside_what_was_found(client: TestClient) -> None:
    page = client.get("/en/search", params={"q": "gradient xylophone"}).text
    assert "Nowhere in the wiki: <q>xylophone</q>" in page
