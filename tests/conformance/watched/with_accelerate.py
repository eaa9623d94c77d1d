"""accelerate's loop as its guide shows it: `accumulate`, `backward`, `clip_grad_norm_`."""

import torch
from accelerate import Accelerator
from data import Model, samples
from torch.utils.data import DataLoader

accelerator = Accelerator(gradient_accumulation_steps=3, cpu=True)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
model, optimizer, loader, scheduler = accelerator.prepare(
    model, optimizer, DataLoader(samples(), batch_size=2), scheduler
)
for tokens, labels in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(tokens, labels))
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
accelerator.end_training()
