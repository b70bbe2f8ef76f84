"""Exercise 9, solved: a training with Lightning, on several devices by three arguments.

python lightning_fashion_solved.py
hpcdist submit lightning_fashion_solved.py --gpus 2 --local
"""

from __future__ import annotations

import argparse
import os
import time

import pytorch_lightning as pl
import torch
from fashion_cnn import FashionCNN, load_data
from torch import nn
from torch.utils.data import DataLoader


class Fashion(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = FashionCNN()

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with Lightning")
    parser.add_argument("--epochs", default=2, type=int)
    args = parser.parse_args()
    pl.seed_everything(0)
    train_data, _ = load_data()
    trainer = pl.Trainer(
        accelerator="auto",  # GPUs if there are any
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),  # set by torchrun and hpcdist
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        max_epochs=args.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    begin = time.perf_counter()
    trainer.fit(Fashion(), DataLoader(train_data, batch_size=32, shuffle=True))
    seconds = time.perf_counter() - begin
    print(
        f"rank {trainer.global_rank} of {trainer.world_size}: "
        f"{trainer.num_training_batches} batches per epoch, {seconds:.1f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
