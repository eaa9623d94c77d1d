"""TRL: trainers whose examples are pairs (DPO, Reward) or single judgements (KTO), and what a pair weighs.

The trainers are real; only which pairs make up a micro-batch is decided here. A "token" of the scenario is a pair, and
the update is read against the gradients of the pairs' own losses. DPO and Reward gather metrics of every pair, and Gloo
aborts a gather of unequal parts: so in all settings but the one that shows it, metrics are padded to one size before
they are gathered.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from datasets import Dataset
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer

from samestep.app.evidence.bags import Text
from samestep.experiments.conformance.adapter import Coefficients, Measurement, Setting, process_group
from samestep.experiments.conformance.frameworks import tiny_llama, trl
from samestep.experiments.conformance.reader import by_cell, tomography
from samestep.experiments.conformance.scenarios import Scenario

BETA = 0.1
CHOSEN, REJECTED = (2, 6, 5, 1, 3, 6, 4, 5, 2, 3), (3, 1, 6, 4, 2, 5, 5, 6, 1, 4)
"""Tokens of the answers of each pair, before the end-of-sequence token that the trainers add."""
_MICROBATCH: Text = {
    "zh": "每个微批对自己的样本取均值，微批之间再平均：样本少的微批里，每个样本更重。",
    "en": "Every micro-batch takes the mean of its examples, and micro-batches are averaged: an example among few "
    "weighs more.",
}


def _sft_cells() -> tuple[tuple[float, ...], ...]:
    """The mean over the answer's tokens in each micro-batch of scenario Q, (2, 1 | 1, 3): 1 ÷ (4 · tokens)."""
    tokens = [n + 1 for n in CHOSEN]
    places = (((0, 1), (3,)), ((2,), (4, 5, 6)))
    return tuple(tuple(1 / (4 * sum(tokens[i] for i in cell)) for cell in rank) for rank in places)


LABELS = ("batches chosen", "metrics padded")
SETTINGS = (
    Setting(
        "dpo",
        {"zh": "DPOTrainer，一个样本是一对", "en": "DPOTrainer, an example is a pair"},
        _MICROBATCH,
        {"Q": "microbatch_equal", "R": "microbatch_equal"},
        labels=LABELS,
        tolerance=tiny_llama.TOLERANCE,
    ),
    Setting(
        "dpo_gathered",
        {"zh": "DPOTrainer，照常汇总指标", "en": "DPOTrainer, metrics gathered as usual"},
        {
            "zh": "各卡的微批大小不等时，它为日志汇总每一对的指标，Gloo 在这里中止进程：drop_last 或补齐是必需的。",
            "en": "For its log it gathers the metrics of every pair, and with unequal micro-batches on the ranks Gloo "
            "aborts there: batches have to be dropped or filled up.",
        },
        {"Q": "aborts"},
        labels=("batches chosen",),
        tolerance=tiny_llama.TOLERANCE,
    ),
    Setting(
        "dpo_sft",
        {"zh": 'DPOTrainer，loss_type=["sft"]', "en": 'DPOTrainer, loss_type=["sft"]'},
        {
            "zh": "这一项对微批里全部答案 token 求均值：与按对平均的项并用时，两项的分母不是一回事。",
            "en": "This term is a mean over the answer's tokens in a micro-batch: beside one that is a mean over "
            "pairs, it has another kind of denominator.",
        },
        {"Q": _sft_cells()},
        labels=LABELS,
        tolerance=tiny_llama.TOLERANCE,
    ),
    Setting(
        "kto",
        {"zh": "KTOTrainer，一个样本是一条评判", "en": "KTOTrainer, an example is a judgement"},
        _MICROBATCH,
        {"Q": "microbatch_equal"},
        labels=LABELS,
        tolerance=tiny_llama.TOLERANCE,
    ),
    Setting(
        "reward",
        {"zh": "RewardTrainer，一个样本是一对", "en": "RewardTrainer, an example is a pair"},
        _MICROBATCH,
        {"Q": "microbatch_equal", "R": "microbatch_equal"},
        labels=LABELS,
        tolerance=tiny_llama.TOLERANCE,
    ),
)


class Batches(list[list[int]]):
    """A batch sampler: indices of each batch, in the order in which accelerate deals them to ranks."""

    batch_size, drop_last = None, False

    def __init__(self, scenario: Scenario) -> None:
        sizes = [n for turn in _turns(scenario) for n in turn]
        starts = list(accumulate(sizes, initial=0))
        super().__init__(list(range(*bounds)) for bounds in pairwise(starts))
        self.total = starts[-1]
        self.before = sum(len(turn) for turn in _turns(scenario)) - sum(map(len, scenario.counts))

    def cells(self, scenario: Scenario) -> list[list[list[int]]]:
        """Indices [r][k] of the window that is measured."""
        ranks, dealt = len(scenario.counts), self[self.before :]
        return [dealt[rank::ranks] for rank in range(ranks)]


def _turns(scenario: Scenario) -> Iterator[tuple[int, ...]]:
    """What all ranks get at once, in every micro-step."""
    for window in filter(None, (scenario.before, scenario.counts)):
        yield from zip(*window, strict=True)


class ChosenBatches:
    """For a trainer: these batches instead of those of a sampler."""

    accelerator: Any
    train_dataset: Any
    data_collator: Any
    batches: Batches

    def get_train_dataloader(self) -> Any:
        return self.accelerator.prepare(
            DataLoader(self.train_dataset, batch_sampler=self.batches, collate_fn=self.data_collator)
        )


class PairTrainer(ChosenBatches, DPOTrainer):
    pass


class JudgementTrainer(ChosenBatches, KTOTrainer):
    pass


class ScoreTrainer(ChosenBatches, RewardTrainer):
    pass


def run(setting: str, scenario: Scenario, rank: int, world_size: int) -> Measurement:
    """Train the windows of the scenario as one epoch, and read the last update."""
    process_group()
    tiny_llama.forget()
    batches = Batches(scenario)
    model = scorer() if setting == "reward" else tiny_llama.model()
    record = tiny_llama.Record(model)
    trainer = built(setting, scenario, model, record, batches.total)
    trainer.batches = batches
    if setting != "dpo_gathered":
        gather, padded = trainer.accelerator.gather, trainer.accelerator.pad_across_processes
        trainer.accelerator.gather = lambda value: gather(padded(value))
    trainer.train()
    rows = [trainer.train_dataset[i] for i in range(batches.total)]
    before, after = (record.states[i].parameters for i in (-2, -1))
    if len(record.states) != 1 + sum(map(bool, (scenario.before, scenario.counts))):
        raise RuntimeError(f"{len(record.states) - 1} updates were made")
    order = [i for cells in batches.cells(scenario) for cell in cells for i in cell]
    gradients = torch.stack([pair_gradient(setting, before, rows[i]) for i in order])
    solution, residual = tomography(gradients, (before - after) / tiny_llama.LEARNING_RATE)
    return Coefficients(by_cell(solution.tolist(), scenario.counts), residual)


def built(setting: str, scenario: Scenario, model: nn.Module, record: tiny_llama.Record, total: int) -> Any:
    given: dict[str, Any] = {
        **tiny_llama.arguments(scenario),
        "per_device_train_batch_size": 2,  # asked for by KTO; the batches are chosen
        "accelerator_config": {"even_batches": False},
        "max_length": None,
        "bf16": False,
        "gradient_checkpointing": False,
    }
    shared: dict[str, Any] = {"model": model, "processing_class": tokenizer(), "callbacks": [record]}
    if setting == "reward":
        return ScoreTrainer(args=RewardConfig(**given), train_dataset=Dataset.from_list(texts(total)), **shared)
    if setting == "kto":
        judged = [
            {"prompt": text["prompt"], "completion": text["chosen"], "label": i % 2 == 0}
            for i, text in enumerate(texts(total))
        ]
        arguments = KTOConfig(beta=BETA, **given)
        return JudgementTrainer(
            ref_model=tiny_llama.model(), args=arguments, train_dataset=Dataset.from_list(judged), **shared
        )
    loss = ["sft"] if setting == "dpo_sft" else ["sigmoid"]
    return PairTrainer(
        ref_model=tiny_llama.model(),
        args=DPOConfig(beta=BETA, loss_type=loss, **given),
        train_dataset=Dataset.from_list(texts(total)),
        **shared,
    )


def texts(total: int) -> list[dict[str, str]]:
    """Pairs of answers of different lengths, as words of one token each: none begins with `t2`, the special one."""
    generator = torch.Generator().manual_seed(3)

    def words(n: int) -> str:
        return "".join(f" t{i}" for i in torch.randint(30, tiny_llama.VOCABULARY, (n,), generator=generator).tolist())

    return [
        {"prompt": f"t3 t{4 + i}", "chosen": words(CHOSEN[i]), "rejected": words(REJECTED[i])} for i in range(total)
    ]


def tokenizer() -> PreTrainedTokenizerFast:
    made = trl.tokenizer()
    made.backend_tokenizer.pre_tokenizer = WhitespaceSplit()
    return made


def scorer() -> LlamaForSequenceClassification:
    """A reward model of the same size; the same weights each time."""
    torch.manual_seed(0)
    config = tiny_llama.config()
    config.pad_token_id, config.num_labels = 0, 1
    return LlamaForSequenceClassification(config).double()


def pair_gradient(setting: str, parameters: Tensor, row: Any) -> Tensor:
    """[parameters] of one example's loss at `parameters`, computed in float64 in this process."""
    model: nn.Module = scorer() if setting == "reward" else tiny_llama.model()
    nn.utils.vector_to_parameters(parameters, model.parameters())
    gradient = torch.autograd.grad(loss_of(setting, model, row), list(model.parameters()))
    return torch.cat([part.flatten() for part in gradient])


def loss_of(setting: str, model: nn.Module, row: Any) -> Tensor:
    if setting == "reward":
        return -functional.logsigmoid(score(model, row["chosen_ids"]) - score(model, row["rejected_ids"]))
    reference, prompt = tiny_llama.model(), row["prompt_ids"]
    if setting == "dpo_sft":
        return -log_probability(model, prompt, row["chosen_ids"])
    if setting == "kto":
        ratio = _ratio(model, reference, prompt, row["completion_ids"])
        return 1 - torch.sigmoid(BETA * ratio if row["label"] else -BETA * ratio)
    chosen, rejected = (_ratio(model, reference, prompt, row[name]) for name in ("chosen_ids", "rejected_ids"))
    return -functional.logsigmoid(BETA * (chosen - rejected))


def _ratio(model: nn.Module, reference: LlamaForCausalLM, prompt: list[int], answer: list[int]) -> Tensor:
    """log of the model's probability of the answer over the reference's, which has no gradient."""
    return log_probability(model, prompt, answer) - log_probability(reference, prompt, answer).detach()


def log_probability(model: nn.Module, prompt: list[int], answer: Sequence[int]) -> Tensor:
    logits = model(input_ids=torch.tensor([[*prompt, *answer]])).logits[0].log_softmax(-1)
    return torch.stack([logits[len(prompt) + i - 1, token] for i, token in enumerate(answer)]).sum()


def score(model: nn.Module, ids: list[int]) -> Tensor:
    found: Tensor = model(input_ids=torch.tensor([ids])).logits[0, 0]
    return found
