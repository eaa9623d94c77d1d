"""Lightning's Trainer, started by somebody else, with a callback that watches it; its second rank it starts itself."""

import sys

import lightning
import torch
from data import Model, samples
from torch import Tensor
from torch.utils.data import DataLoader

from samestep import watch


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        loss: Tensor = self.model(*batch)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, accumulate_grad_batches=3, gradient_clip_val=0.5,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[watch.lightning_callback(updates=3, json=sys.argv[1])],
    ).fit(Module(), DataLoader(samples(), batch_size=2))  # fmt: skip
