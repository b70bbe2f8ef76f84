"""A training script as a careful user of Lightning writes it, for `hpcdist submit lightning`.

Usage and results are those of plain_ddp.py, and so are model, data, batch, schedule, evaluations
and checkpoints, by Lightning's own means: a DataLoader over a TensorDataset, to which Lightning
adds the DistributedSampler; DDPStrategy with gradient_as_bucket_view; a fused optimizer; a
ModelCheckpoint every so many epochs; no logger, no progress bar, no sanity check.
"""

import json
import math
import os
import time

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from plain_ddp import build_model, load_data, parse_options
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.strategies import DDPStrategy
from torch.utils.data import DataLoader


class Classifier(LightningModule):
    def __init__(self, options, num_batches):
        super().__init__()
        self.net = build_model()
        self.lr, self.epochs, self.num_batches = options.lr, options.epochs, num_batches
        self.epoch_times_s = []

    def on_train_epoch_start(self):
        self.begin_s = time.perf_counter()

    def training_step(self, batch, _batch_idx):
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)

    def on_train_batch_end(self, _outputs, _batch, batch_idx):
        if batch_idx + 1 == self.num_batches:  # the evaluation comes before the epoch's end
            self.epoch_times_s.append(time.perf_counter() - self.begin_s)

    def validation_step(self, batch, _batch_idx):
        images, labels = batch
        right = (self.net(images).argmax(dim=1) == labels).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0, fused=True)
        steps = self.epochs * self.num_batches
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def main():
    options = parse_options()
    torch.manual_seed(0)
    train, test = load_data()
    world_size = int(os.environ["WORLD_SIZE"])
    num_batches = math.ceil(math.ceil(len(train) / world_size) / options.batch_size)
    module = Classifier(options, num_batches)
    trainer = Trainer(
        accelerator="cpu",
        devices=world_size,
        strategy=DDPStrategy(gradient_as_bucket_view=True),
        max_epochs=options.epochs,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[ModelCheckpoint(options.folder, every_n_epochs=options.save_every)],
    )
    batches = DataLoader(train, batch_size=options.batch_size, shuffle=True)
    trainer.fit(module, batches, DataLoader(test, batch_size=128))
    result = {"train_samples": len(train), "epoch_times_s": module.epoch_times_s}
    (options.folder / f"rank-{trainer.global_rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
