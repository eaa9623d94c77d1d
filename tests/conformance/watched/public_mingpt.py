"""The loop of karpathy/minGPT's trainer.py, rebuilt from its structure (read at 00aa9cb2).

One process; the model clears its gradients itself, after the forward; data with replacement, loaded by a worker.
"""

import torch
from data import Model, samples
from torch.utils.data import DataLoader, RandomSampler


def main() -> None:
    data = samples()
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1)
    sampler = RandomSampler(data, replacement=True, num_samples=12)
    for tokens, labels in DataLoader(data, sampler=sampler, shuffle=False, batch_size=4, num_workers=1):
        loss = model(tokens, labels)
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


if __name__ == "__main__":
    main()
