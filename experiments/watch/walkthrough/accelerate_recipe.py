"""accelerate, by the recipe of its guide: the labels of a whole window are gathered first; sum × K × P / N."""

from contextlib import nullcontext

import torch
from accelerate import Accelerator
from common import Model, windows
from torch.nn import functional

accelerator = Accelerator(gradient_accumulation_steps=3, cpu=True)
model = Model()
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
for window in windows(accelerator.process_index):
    mine = torch.stack([(labels != -100).sum() for _, labels in window]).sum()
    total = accelerator.gather(mine).sum()
    for k, (tokens, labels) in enumerate(window):
        with nullcontext() if k == len(window) - 1 else accelerator.no_sync(model):
            loss = functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), reduction="sum")
            factor = accelerator.gradient_accumulation_steps * accelerator.num_processes / total
            accelerator.backward(loss * factor)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
accelerator.end_training()
