"""A training script as a careful user of Lightning writes it, for `hpcdist submit lightning`.

Usage: torchrun --nproc-per-node N plain_lightning.py FOLDER --epochs E --batch-size B --lr LR
           --save-every EPOCHS

Model, data, batch, schedule, evaluations and checkpoints are those of plain_ddp.py, by Lightning's
own means: a DataLoader over a TensorDataset, to which Lightning adds the DistributedSampler;
DDPStrategy with gradient_as_bucket_view; a fused optimizer; a ModelCheckpoint every so many epochs;
no logger, no progress bar, no sanity check.

Each rank writes FOLDER/rank-R.json: per epoch the wall time of its training steps, data included,
evaluation and checkpoint not; and the last accuracy.
"""

import json
import math
import os
import time

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from plain_ddp import build_model, load_data, parse_options
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.strategies import DDPStrategy
from torch.utils.data import DataLoader


class Classifier(LightningModule):
    def __init__(self, options, steps_per_epoch):
        super().__init__()
        self.net = build_model()
        self.options = options
        self.num_steps = options.epochs * steps_per_epoch
        self.accuracy = 0.0

    def training_step(self, batch, _batch_idx):
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)

    def on_validation_epoch_start(self):
        self.counts = torch.zeros(2)

    def validation_step(self, batch, _batch_idx):
        images, labels = batch
        right = (self.net(images).argmax(dim=1) == labels).sum()
        self.counts += torch.tensor([right, len(labels)])

    def on_validation_epoch_end(self):
        right, samples = self.all_gather(self.counts).reshape(-1, 2).sum(dim=0)
        self.accuracy = (right / samples).item()
        if self.trainer.is_global_zero:
            print(f"epoch {self.current_epoch + 1}  accuracy {self.accuracy:.4f}")

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(
            self.parameters(), lr=self.options.lr, weight_decay=0, fused=True
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.num_steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class EpochTimes(Callback):
    def __init__(self, num_batches):
        self.num_batches = num_batches
        self.times_s = []

    def on_train_epoch_start(self, *_):
        self.begin_s = time.perf_counter()

    def on_train_batch_end(self, _trainer, _module, _outputs, _batch, batch_idx):
        if batch_idx + 1 == self.num_batches:  # the evaluation comes before the epoch's end
            self.times_s.append(time.perf_counter() - self.begin_s)


def main():
    options = parse_options()
    torch.manual_seed(0)
    train, test = load_data()
    world_size = int(os.environ["WORLD_SIZE"])
    num_batches = math.ceil(math.ceil(len(train) / world_size) / options.batch_size)
    times = EpochTimes(num_batches)
    trainer = Trainer(
        accelerator="cpu",
        devices=world_size,
        strategy=DDPStrategy(gradient_as_bucket_view=True),
        max_epochs=options.epochs,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[
            times,
            ModelCheckpoint(options.folder, every_n_epochs=options.save_every, save_top_k=1),
        ],
    )
    module = Classifier(options, num_batches)
    trainer.fit(
        module,
        DataLoader(train, batch_size=options.batch_size, shuffle=True),
        DataLoader(test, batch_size=128),
    )
    result = {
        "train_samples": len(train),
        "epoch_times_s": times.times_s,
        "accuracy": module.accuracy,
    }
    (options.folder / f"rank-{trainer.global_rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
