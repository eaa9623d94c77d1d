"""TRL: the GRPOTrainer, whose losses each divide by something else, and what is generated together.

The trainer is real. `rollout_func` hands it completions instead of sampling them, and rewards are +1 and −1 inside a
pair, so that advantages are known; what the trainer shuffles stays in order, which changes no weight. At the first
update of a generation every probability ratio is 1.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
import trl.trainer.grpo_trainer
from datasets import Dataset
from torch import Tensor, nn
from trl import GRPOConfig, GRPOTrainer

from samestep.experiments.conformance.adapter import Coefficients, Expected, Measurement, Setting, process_group
from samestep.experiments.conformance.frameworks import tiny_llama
from samestep.experiments.conformance.frameworks.trl import tokenizer
from samestep.experiments.conformance.reader import by_cell, tomography
from samestep.experiments.conformance.scenarios import Lengths, Scenario

LONGEST = 16
"""max_completion_length; in `dr_grpo_256` another one."""
_EXACT = ("rollouts given", "order kept")
_NOT_ASKED: dict[str, dict[str, Expected]] = {"1.5.0": {}}


def _setting(id: str, zh: tuple[str, str], en: tuple[str, str], expected: dict[str, Expected]) -> Setting:
    return Setting(
        id,
        {"zh": zh[0], "en": en[0]},
        {"zh": zh[1], "en": en[1]},
        expected,
        labels=_EXACT,
        tolerance=tiny_llama.TOLERANCE,
        releases=_NOT_ASKED,
    )


SETTINGS = (
    replace(
        _setting(
            "dapo",
            (
                "dapo（默认）",
                "除以 num_items_in_batch。它数的是一次生成的全部 token：一次生成正好是一个窗口时，就是全局 token 平均；"
                "否则窗口里有多少 token 不起作用。",
            ),
            (
                "dapo (default)",
                "Divided by num_items_in_batch, which counts the tokens of a whole generation: the global token mean "
                "where a generation is a window; else the window's own count plays no part.",
            ),
            {"S": "global_token_mean", "G": "generation_mean", "H": "generation_mean"},
        ),
        releases={"1.5.0": {"S": "global_token_mean", "G": "generation_mean*1/K"}},
    ),
    _setting(
        "grpo",
        ("grpo", "每条序列先对自己的 token 求均值，再对序列平均：短序列里的 token 更重。"),
        ("grpo", "Every sequence takes the mean of its tokens first: a token of a short sequence weighs more."),
        {"S": "sequence_mean"},
    ),
    _setting(
        "sapo",
        ("sapo", "与 grpo 相同的归一化。"),
        ("sapo", "Normalised as grpo is."),
        {"S": "sequence_mean"},
    ),
    _setting(
        "bnpo",
        ("bnpo", "除以微批自己的 token 数，再对微批平均。"),
        ("bnpo", "Divided by the tokens of the micro-batch, then averaged over micro-batches."),
        {"S": "microbatch_equal"},
    ),
    _setting(
        "dr_grpo",
        ("dr_grpo，max_completion_length=16", "除以序列数乘允许的最大长度：系数与数据无关，改长度上限等于改学习率。"),
        (
            "dr_grpo, max_completion_length=16",
            "Divided by the number of sequences times the length that is allowed: no data in it, and another limit is "
            "another learning rate.",
        ),
        {"S": "constant"},
    ),
    _setting(
        "dr_grpo_256",
        ("dr_grpo，max_completion_length=256", "同样的数据，上限放到 256：系数变成 1/16。"),
        ("dr_grpo, max_completion_length=256", "The same data under a limit of 256: coefficients are 1/16 of that."),
        {"S": "constant"},
    ),
    _setting(
        "luspo",
        ("luspo（序列级）", "对序列求和，再对序列平均：长序列更重，每个 token 一样重。"),
        ("luspo (sequence level)", "The sum over a sequence, averaged over sequences: every token 1/S."),
        {"S": "sequence_sum"},
    ),
    _setting(
        "cispo",
        (
            "cispo（默认 epsilon）",
            "比率被截到 epsilon_high；没有给出时它取 epsilon = 0.2，于是比率 1 也被截成 0.2：更新只有五分之一。",
        ),
        (
            "cispo (default epsilon)",
            "The ratio is clamped to epsilon_high, which falls back to epsilon = 0.2: a ratio of 1 becomes 0.2, and "
            "the update a fifth.",
        ),
        {"S": "global_token_mean*0.2"},
    ),
    _setting(
        "cispo_epsilon_high",
        ("cispo，epsilon_high=5.0", "文档推荐的值：比率 1 不再被截。"),
        ("cispo, epsilon_high=5.0", "The value that the documentation recommends: a ratio of 1 is left alone."),
        {"S": "global_token_mean"},
    ),
    _setting(
        "vespo",
        ("vespo", "与 dapo 相同的归一化。"),
        ("vespo", "Normalised as dapo is."),
        {"S": "global_token_mean"},
    ),
    _setting(
        "dapo_sequence_level",
        ("dapo，importance_sampling_level=sequence", "比率取整条序列的；比率为 1 时系数不变。"),
        (
            "dapo, importance_sampling_level=sequence",
            "One ratio for a whole sequence; at a ratio of 1 the coefficients are the same.",
        ),
        {"S": "global_token_mean"},
    ),
    _setting(
        "grpo_sequence_level",
        ("grpo，importance_sampling_level=sequence", "比率取整条序列的；归一化同 grpo。"),
        ("grpo, importance_sampling_level=sequence", "One ratio for a whole sequence, normalised as grpo is."),
        {"S": "sequence_mean"},
    ),
)
GIVEN: dict[str, dict[str, Any]] = {
    "dr_grpo_256": {"loss_type": "dr_grpo", "max_completion_length": 256},
    "luspo": {"importance_sampling_level": "sequence"},
    "cispo_epsilon_high": {"loss_type": "cispo", "epsilon_high": 5.0},
    "dapo_sequence_level": {"loss_type": "dapo", "importance_sampling_level": "sequence"},
    "grpo_sequence_level": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
}


class Sample(NamedTuple):
    """Token ids; the sign is that of the advantage."""

    prompt: list[int]
    completion: list[int]
    sign: int


class Samples:
    """Completions of both ranks [r][i], in the order in which they are generated."""

    def __init__(self, scenario: Scenario) -> None:
        generator = torch.Generator().manual_seed(7)
        later: Lengths = scenario.after or ((),) * len(scenario.lengths)
        ranks = [[*now, *then] for now, then in zip(scenario.lengths, later, strict=True)]
        self.of_rank = [
            [self._sample(r, i, n, generator) for i, n in enumerate(n for cell in cells for n in cell)]
            for r, cells in enumerate(ranks)
        ]
        self.window = [
            sample
            for samples, cells in zip(self.of_rank, scenario.lengths, strict=True)
            for sample in samples[: sum(map(len, cells))]
        ]

    @staticmethod
    def _sample(rank: int, i: int, length: int, generator: torch.Generator) -> Sample:
        completion = torch.randint(20, tiny_llama.VOCABULARY, (length,), generator=generator).tolist()
        return Sample([3 + rank, 10 + i], completion, 1 if i % 2 == 0 else -1)


class Record(tiny_llama.Record):
    """Sequences that were trained, without their padding; passes that need no gradient are not training."""

    def _look(self, module: nn.Module, positional: object, given: Any) -> None:
        if torch.is_grad_enabled():
            self.seen += [[token for token in row if token] for row in given["input_ids"].tolist()]


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement:
    """Train the generations of the scenario, and read the first update."""
    process_group()
    tiny_llama.forget()
    trl.trainer.grpo_trainer.shuffle_sequence_dict = lambda given: given
    model, samples = tiny_llama.model(), Samples(scenario)
    record = Record(model)
    mine = iter(samples.of_rank[rank])

    def rollout(prompts: list[str], trainer: object) -> dict[str, Any]:
        drawn = [next(mine) for _ in prompts]
        return {
            "prompt_ids": [sample.prompt for sample in drawn],
            "completion_ids": [sample.completion for sample in drawn],
            "logprobs": None,
        }

    arguments = configured(setting, scenario)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        rollout_func=rollout,
        processing_class=tokenizer(),
        callbacks=[record],
        train_dataset=Dataset.from_list([{"prompt": f"t{i}"} for i in range(3, 35)]),
        args=arguments,
    )
    trainer.train()
    return read(record, samples, scenario, rank, arguments.max_completion_length)


def configured(setting: str, scenario: Scenario) -> GRPOConfig:
    """Defaults but for what the reading needs, and the loss."""
    windows = max(1, (scenario.generation or scenario.accumulation) // scenario.accumulation)
    given: dict[str, Any] = {"loss_type": setting, "max_completion_length": LONGEST, **GIVEN.get(setting, {})}
    return GRPOConfig(
        **{**tiny_llama.arguments(scenario), "per_device_train_batch_size": len(scenario.lengths[0][0])},
        steps_per_generation=scenario.generation or scenario.accumulation,
        num_generations=2,
        max_steps=windows,
        scale_rewards="none",
        beta=0.0,
        bf16=False,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        **given,
    )


def reward(completion_ids: list[list[int]], **_: object) -> list[float]:
    """+1 and −1 inside each pair: without scaling, these are the advantages."""
    return [1.0 if i % 2 == 0 else -1.0 for i in range(len(completion_ids))]


def read(record: Record, samples: Samples, scenario: Scenario, rank: int, longest: int) -> Coefficients:
    expected = [[*sample.prompt, *sample.completion] for sample in samples.of_rank[rank]]
    if record.seen != expected[: len(record.seen)] or not record.seen:
        raise RuntimeError(f"rank {rank} trained other sequences than those that are read")
    before, after = (state.parameters for state in record.states[:2])
    gradients = token_gradients(before, samples.window)
    solution, residual = tomography(gradients, (before - after) / tiny_llama.LEARNING_RATE)
    signs = torch.tensor([float(sample.sign) for sample in samples.window for _ in sample.completion])
    return Coefficients(by_cell((solution * signs).tolist(), scenario.counts), residual, positions=longest)


def token_gradients(parameters: Tensor, samples: list[Sample]) -> Tensor:
    """[tokens, parameters] of −log p of each completion token, at `parameters`; computed in float64."""
    llama = tiny_llama.model()
    nn.utils.vector_to_parameters(parameters, llama.parameters())
    rows = []
    for sample in samples:
        logits = llama(input_ids=torch.tensor([[*sample.prompt, *sample.completion]])).logits[0].log_softmax(-1)
        for i, token in enumerate(sample.completion, start=len(sample.prompt)):
            gradient = torch.autograd.grad(-logits[i - 1, token], list(llama.parameters()), retain_graph=True)
            rows.append(torch.cat([part.flatten() for part in gradient]))
    return torch.stack(rows)
