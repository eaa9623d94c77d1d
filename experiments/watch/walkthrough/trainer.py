"""transformers' Trainer on a small Llama: its defaults, or `average_tokens_across_devices=False` (`average_off`)."""

import sys
import tempfile
from typing import Any

import torch
from common import LABELS, LENGTH, VOCABULARY, batch
from torch.utils.data import SequentialSampler
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class InOrder(Trainer):
    """The data as it is dealt below, instead of shuffled."""

    def _get_train_sampler(self, *_: object) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)


def dealt() -> list[dict[str, Any]]:
    """In the order in which the Trainer deals them out: a batch of two to each rank, microstep after microstep.

    The model shifts labels by itself, so that the first one of a sequence is never predicted: one more is given.
    """
    generator = torch.Generator().manual_seed(5)
    data = []
    for update in LABELS:
        for microstep in zip(*update, strict=True):
            for count in microstep:
                tokens, labels = batch(count, generator)
                kept = (labels != -100).sum(1, keepdim=True)
                shown = torch.arange(LENGTH + 1)
                tokens = torch.cat([tokens, tokens[:, :1]], 1)
                data += [
                    {"input_ids": row, "labels": row.masked_fill((shown == 0) | (shown > n), -100)}
                    for row, n in zip(tokens, kept, strict=True)
                ]
    return data


torch.manual_seed(0)
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH + 1, **sizes))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=3,
        num_train_epochs=1,
        max_grad_norm=1.0,
        average_tokens_across_devices="average_off" not in sys.argv,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    InOrder(model, arguments, train_dataset=dealt()).train()
