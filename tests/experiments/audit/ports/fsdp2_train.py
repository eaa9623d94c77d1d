# The reader's own: FSDP2 with a mixed-precision policy, in the manner of torchtitan.
import os

import torch
import torch.distributed as dist
from gpt import GPT, GPTConfig
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
model = GPT(GPTConfig())
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in model.transformer.h:
    fully_shard(block, mp_policy=policy)
fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for window in torch.load(os.environ["WINDOWS"]):
    tokens = dist.get_world_size() * sum(batch["y"].numel() for batch in window)
    optimizer.zero_grad()
    for batch in window:
        model.set_requires_gradient_sync(batch is window[-1])
        logits, loss = model(batch["x"], batch["y"])
        (loss * batch["y"].numel() * dist.get_world_size() / tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
