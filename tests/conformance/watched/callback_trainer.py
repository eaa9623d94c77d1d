"""transformers' Trainer, started by somebody else: a callback watches it."""

import sys
import tempfile

import torch
from data import VOCABULARY, samples
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from samestep import watch

torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )
)  # fmt: skip
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=2, gradient_accumulation_steps=3, num_train_epochs=1, max_grad_norm=0.5,
        report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True,
        average_tokens_across_devices=sys.argv[2] == "on",
    )  # fmt: skip
    data = [{"input_ids": tokens, "labels": labels} for tokens, labels in samples()]
    callback = watch.trainer_callback(updates=3, json=sys.argv[1])
    Trainer(model, arguments, train_dataset=data, callbacks=[callback]).train()
