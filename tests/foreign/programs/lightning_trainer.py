"""Lightning's Trainer, over all ranks, with its own files, and one for each rank by itself."""

import json
import os

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.utilities import rank_zero_only
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanSquaredError


class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.error = MeanSquaredError()

    def training_step(self, batch, _):
        inputs, targets = batch
        found = self.layer(inputs)
        loss = torch.nn.functional.mse_loss(found, targets)
        self.error.update(found, targets)
        self.log("loss", loss, sync_dist=True)
        losses.append(repr(loss.item()))
        return loss

    def on_train_epoch_end(self):
        losses.append(repr(self.error.compute().item()))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@rank_zero_only
def only_once():
    with open("rank-zero.txt", "a") as file:
        file.write("once\n")


losses = []
pl.seed_everything(1, verbose=False)
inputs = torch.rand(64, 8)
data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8)
common = {
    "accelerator": "cpu",
    "max_epochs": 2,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "log_every_n_steps": 1,
}
trainer = pl.Trainer(devices=2, logger=CSVLogger("logs", name="first"), **common)
trainer.fit(Line(), data)
only_once()
alone = pl.Trainer(devices=1, logger=False, enable_checkpointing=False, **common)
losses.append(alone.world_size)
with open(f"losses-{os.environ['RANK']}.json", "w") as file:
    json.dump([losses, trainer.world_size, trainer.num_nodes], file)
