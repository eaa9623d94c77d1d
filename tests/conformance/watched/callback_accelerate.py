"""accelerate's loop, started by somebody else: one line watches it to its `end_training`."""

import sys

import torch
from accelerate import Accelerator
from data import Model, samples
from torch.utils.data import DataLoader

from samestep import watch

accelerator = Accelerator(gradient_accumulation_steps=3, cpu=True)
watch.accelerator(accelerator, updates=3, json=sys.argv[1])
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(samples(), batch_size=2))
for tokens, labels in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(tokens, labels))
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
accelerator.end_training()
