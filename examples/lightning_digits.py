"""Handwritten digits with Lightning; goes on where it was stopped.

torchrun --nproc-per-node 2 examples/lightning_digits.py
hpcdist submit examples/lightning_digits.py --gpus 2 --local
"""

import os
import sys

import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hpcdist import record

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
BATCH_SIZE = 16


class Digits(pl.LightningModule):
    """A small network, as in any Lightning script."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    pl.seed_everything(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    data = TensorDataset(images, labels)
    loader = DataLoader(data, batch_size=BATCH_SIZE, shuffle=True, drop_last=True)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy="ddp" if world_size > 1 else "auto",
        callbacks=[record.LightningCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Digits()
    trainer.fit(model, loader, ckpt_path=record.LightningCallback.newest())

    with torch.inference_mode():
        predicted = model.net(images.to(model.device)).argmax(1).cpu()
    accuracy = float((predicted == labels).float().mean())
    record.evaluate(accuracy=accuracy, samples=len(data))
    if trainer.is_global_zero:
        print(f"accuracy {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
