import torch
import torch.distributed as dist
from gpt import GPT, GPTConfig
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def build():
    torch.manual_seed(0)
    model = GPT(GPTConfig())
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def data():
    tokens = torch.randint(64, (24, 17), generator=torch.Generator().manual_seed(1))
    return {"x": tokens[:, :-1].contiguous(), "y": tokens[:, 1:].contiguous()}


def weights(data):
    return torch.full((24,), 16)


def step(ctx, model, optimizer, data):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.transformer.h:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    window = ctx.microbatches(data)
    tokens = ctx.global_count()
    optimizer.zero_grad()
    for batch in window:
        model.set_requires_gradient_sync(batch is window[-1])
        logits, loss = model(batch["x"], batch["y"])
        (loss * batch["y"].numel() * dist.get_world_size() / tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
