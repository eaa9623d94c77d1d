"""DeepSpeed's engine; the stage of ZeRO is the argument."""

import os
import sys

os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0")
import deepspeed
import torch
from data import Model, samples

deepspeed.init_distributed(dist_backend="gloo")
made = Model()
config = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 3,
    "gradient_clipping": 0.5,
    "zero_optimization": {"stage": int(sys.argv[1])},
    "zero_allow_untested_optimizer": True,
}
engine, *_ = deepspeed.initialize(model=made, optimizer=torch.optim.AdamW(made.parameters(), lr=1e-3), config=config)
rank, size = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
data = samples()
for number in range(0, 24, 4):
    mine = data[number + 2 * rank : number + 2 * rank + 2]
    tokens, labels = (torch.stack([each[i] for each in mine]) for i in (0, 1))
    engine.backward(engine(tokens, labels))
    engine.step()
