"""What the adapters of Hugging Face trainers share: a tiny Llama, its samples, a record of training, and the reading.

The model is a real `LlamaForCausalLM` in float64; its loss casts logits to float32, so updates are known to about 1e-7.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import SequentialSampler
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback

from samestep.experiments.conformance.adapter import Clipping, Coefficients, Measurement, Setting
from samestep.experiments.conformance.frameworks.bigram_training import State, clipping, state, state_change
from samestep.experiments.conformance.reader import IGNORED, by_cell, tomography
from samestep.experiments.conformance.scenarios import Kind, Scenario

VOCABULARY = 64
WIDTH = 12
TOLERANCE = 1e-6
LEARNING_RATE = 0.1
MAX_NORM = 0.1
Sample = Mapping[str, Tensor]
AVERAGE_OFF = Setting(
    "average_off",
    {"zh": "average_tokens_across_devices=False", "en": "average_tokens_across_devices=False"},
    {
        "zh": "每张卡只数自己的标签：各卡的均值再取平均。",
        "en": "Every rank counts its own labels only: the mean of the ranks' means.",
    },
    {**dict.fromkeys("ABCDE", "replica_equal"), "F": "moved"},
    tolerance=TOLERANCE,
)
"""A setting that all of these trainers have."""


def config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=WIDTH,
        use_cache=False,
    )


def model(kind: type[LlamaForCausalLM] = LlamaForCausalLM) -> LlamaForCausalLM:
    """The same weights each time."""
    torch.manual_seed(0)
    return kind(config()).double()


class Samples:
    """A scenario's samples: one per rank and micro-batch, with as many valid labels as it says, on positions 1 … n.

    `first`: position 0 has a label too, which no model predicts: the loss shifts labels by one, and it falls out.
    """

    def __init__(self, scenario: Scenario, *, first: bool = False) -> None:
        self.scenario = scenario
        generator = torch.Generator().manual_seed(1)
        self.windows = [
            [[_sample(n, first, generator) for n in rank] for rank in counts]
            for counts in (scenario.before, scenario.counts)
            if counts
        ]

    def dealt(self) -> list[Sample]:
        """Round robin, as a loader deals one data set to its ranks."""
        return [sample for window in self.windows for turn in zip(*window, strict=True) for sample in turn]

    def of_rank(self, rank: int) -> list[Sample]:
        return [sample for window in self.windows for sample in window[rank]]


def _sample(n: int, first: bool, generator: torch.Generator) -> Sample:
    ids = torch.randint(3, VOCABULARY, (WIDTH,), generator=generator)
    labels = torch.full((WIDTH,), IGNORED)
    labels[0 if first else 1 : n + 1] = ids[0 if first else 1 : n + 1]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


class InOrder:
    """For a Trainer: the data set as it is, instead of shuffled."""

    train_dataset: Any

    def _get_train_sampler(self, *_: object) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)


class Record(TrainerCallback):
    """What a training run did: `states` at the start and after every update; `seen`, the ids this rank was given."""

    def __init__(self, model: nn.Module) -> None:
        self.states: list[State] = []
        self.seen: list[list[int]] = []
        self.logs: list[Mapping[str, float]] = []
        model.register_forward_pre_hook(self._look, with_kwargs=True)

    def _look(self, module: nn.Module, positional: object, given: Mapping[str, Tensor]) -> None:
        self.seen += given["input_ids"].tolist()

    def on_train_begin(self, *_: object, model: nn.Module, optimizer: Any, **__: object) -> None:
        self._remember(model, optimizer)

    def on_step_end(self, *_: object, model: nn.Module, optimizer: Any, **__: object) -> None:
        self._remember(model, optimizer)

    def on_log(self, *_: object, logs: Mapping[str, float], **__: object) -> None:
        if "loss" in logs:
            self.logs.append(dict(logs))

    def _remember(self, model: nn.Module, optimizer: Any) -> None:
        self.states.append(state(flat(model), getattr(optimizer, "optimizer", optimizer)))


def flat(model: nn.Module) -> Tensor:
    """All parameters in one vector, whole ones where they are sharded."""
    whole = [_whole(parameter.detach()) for parameter in model.parameters()]
    return torch.cat([parameter.flatten().double() for parameter in whole])


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def arguments(scenario: Scenario) -> dict[str, Any]:
    """Of a `TrainingArguments`: nothing but what the reading needs, all else is the default."""
    return {
        "output_dir": "out",
        "use_cpu": True,
        "ddp_backend": "gloo",
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": scenario.accumulation,
        "num_train_epochs": 1,
        "optim": "adamw_torch" if scenario.kind is Kind.STATE else "sgd",
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "max_grad_norm": MAX_NORM if scenario.kind is Kind.CLIPPING else 0.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def forget() -> None:
    """Nothing of an earlier trainer: accelerate keeps its state in singletons, and FSDP in the environment."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    for name in [name for name in os.environ if name.startswith(("ACCELERATE_", "FSDP_"))]:
        del os.environ[name]


def read(record: Record, samples: Samples, rank: int) -> Measurement:
    """What the last window did. A window that the trainer never ended with an update has coefficients 0."""
    scenario, windows = samples.scenario, len(samples.windows)
    expected = [sample["input_ids"].tolist() for sample in samples.of_rank(rank)]
    if record.seen != expected[: len(record.seen)]:
        raise RuntimeError(f"rank {rank} was given other samples than those that are read")
    if scenario.kind is Kind.STATE:
        return state_change(record.states, record.logs[-1]["loss"])
    before = record.states[windows - 1].parameters
    after = record.states[windows].parameters if len(record.states) > windows else before
    update = (before - after) / LEARNING_RATE
    gradients = token_gradients(before, samples.windows[-1])
    if scenario.kind is Kind.CLIPPING:
        return _clipping(gradients, update, scenario, record.logs[-1]["grad_norm"])
    if not update.any():
        return Coefficients(by_cell([0.0] * scenario.total, scenario.counts), 0.0)
    solution, residual = tomography(gradients, update)
    return Coefficients(by_cell(solution.tolist(), scenario.counts), residual)


def _clipping(gradients: Tensor, update: Tensor, scenario: Scenario, reported: float) -> Clipping:
    """All settings that are clipped here have the global token mean as their objective."""
    return clipping(gradients.mean(0), update, MAX_NORM, float(reported))


def token_gradients(parameters: Tensor, window: Sequence[Sequence[Sample]]) -> Tensor:
    """[tokens, parameters] at `parameters`, in the order rank, micro-batch, position; computed in float64."""
    llama = model()
    nn.utils.vector_to_parameters(parameters, llama.parameters())
    rows = []
    for sample in (sample for rank in window for sample in rank):
        logits = llama(input_ids=sample["input_ids"].unsqueeze(0)).logits[0]
        for position in range(1, WIDTH):
            if sample["labels"][position] != IGNORED:
                loss = functional.cross_entropy(logits[position - 1], sample["labels"][position])
                gradient = torch.autograd.grad(loss, list(llama.parameters()), retain_graph=True)
                rows.append(torch.cat([part.flatten() for part in gradient]))
    return torch.stack(rows)
