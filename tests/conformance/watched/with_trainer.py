"""transformers' Trainer over a small Llama; what is given on the command line goes into its TrainingArguments."""

import sys
import tempfile

import torch
from data import VOCABULARY, samples
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

given = {name: {"on": True, "off": False}[value] for name, _, value in (each.partition("=") for each in sys.argv[1:])}
torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=3,
        num_train_epochs=1,
        max_grad_norm=0.5,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        **given,
    )
    data = [{"input_ids": tokens, "labels": labels} for tokens, labels in samples()]
    Trainer(model, arguments, train_dataset=data).train()
