import numpy as np
import torch
import torch.distributed
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


def gathered(features):
    found = [torch.zeros_like(features) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(found, features)
    return torch.cat(found)


def clip_loss(image_features, text_features, logit_scale):
    images = gathered(image_features)
    texts = gathered(text_features)
    logits = logit_scale * images @ texts.T
    labels = torch.arange(len(logits))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


def build():
    torch.manual_seed(0)
    model = CLIP()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.2)
    return model, optimizer


def data():
    chance = torch.Generator().manual_seed(1)
    return {"images": torch.randn(24, 20, generator=chance), "texts": torch.randn(24, 12, generator=chance)}


def step(ctx, model, optimizer, data):
    ddp = DDP(model)
    for batch in ctx.microbatches(data):
        images, texts = batch.values()
        optimizer.zero_grad()
        loss = clip_loss(*ddp(images, texts))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, np.log(100))
