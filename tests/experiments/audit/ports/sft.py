import torch
import torch.distributed as dist
from gpt import GPT, GPTConfig
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def collate(examples):
    longest = max(len(example) for example in examples)
    ids = torch.stack([F.pad(example, (0, longest - len(example))) for example in examples])
    return ids, ids.masked_fill(ids == 0, -100)


def loss_of(model, ids, labels, num_items):
    logits = model(ids, ids)[0].float()
    shifted = F.pad(labels, (0, 1), value=-100)[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), shifted.flatten(), ignore_index=-100, reduction="sum") / num_items


def examples():
    chance = torch.Generator().manual_seed(1)
    lengths = torch.randint(4, 17, (24,), generator=chance)
    return [torch.randint(1, 64, (int(length),), generator=chance) for length in lengths]


def build():
    torch.manual_seed(0)
    model = GPT(GPTConfig())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimizer


def data():
    return {"ids": collate(examples())[0]}


def weights(data):
    return (data["ids"][:, 1:] != 0).sum(1)


def step(ctx, model, optimizer, data):
    batches = lambda: [[row[row != 0] for row in batch["ids"]] for batch in ctx.microbatches(data)]
    ddp = DDP(model)
    window = [collate(batch) for batch in batches()]
    num_items = sum((labels[:, 1:] != -100).sum() for _, labels in window)
    dist.all_reduce(num_items)
    for i, (ids, labels) in enumerate(window):
        ddp.require_backward_grad_sync = i == len(window) - 1
        (loss_of(ddp, ids, labels, num_items) * dist.get_world_size()).backward()
    torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
