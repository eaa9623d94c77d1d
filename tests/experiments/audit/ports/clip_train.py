# The reader's own: a training script in the manner of CLIP.
import os

import numpy as np
import torch
import torch.distributed.nn
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual = nn.Sequential(nn.Linear(20, 16), nn.GELU(), nn.Linear(16, 8))
        self.text = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 8))
        self.logit_scale = nn.Parameter(torch.ones([]) * np.log(1 / 0.07))

    def forward(self, images, texts):
        return F.normalize(self.visual(images), dim=-1), F.normalize(self.text(texts), dim=-1), self.logit_scale.exp()


def clip_loss(image_features, text_features, logit_scale):
    images = torch.cat(torch.distributed.nn.all_gather(image_features))
    texts = torch.cat(torch.distributed.nn.all_gather(text_features))
    logits = logit_scale * images @ texts.T
    labels = torch.arange(len(logits))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
model = CLIP()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.2)
ddp = DDP(model)
for images, texts in torch.load(os.environ["BATCHES"]):
    optimizer.zero_grad()
    loss = clip_loss(*ddp(images, texts))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        model.logit_scale.clamp_(0, np.log(100))
