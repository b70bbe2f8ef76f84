"""A user's script with Lightning, as written for torchrun.

Trains over all ranks, tests on one device, and makes a Fabric.
"""

import json
import os

import torch
from lightning_fabric import Fabric
from pytorch_lightning import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.utilities import prints


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 2)

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def test_step(self, batch):
        self.log("loss", torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 4), torch.randint(0, 2, (32,)))
KINDS = {"devices": "LOCAL", "num_nodes": "GROUP"}
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
SIZE = {name: int(os.environ[f"{kind}_WORLD_SIZE"]) for name, kind in KINDS.items()}
trainer = Trainer(max_epochs=1, **QUIET, **SIZE)
model = Model()
trainer.fit(model, DataLoader(data, batch_size=4))
testing = Trainer(devices=1, **QUIET)
testing.test(model, DataLoader(data, batch_size=4), verbose=False)
fabric = Fabric(**SIZE)
fabric.launch()
told = {
    "rank": trainer.global_rank,
    "of torchmetrics": prints.rank_zero_only.rank,
    "world_size": trainer.world_size,
    "steps": trainer.global_step,
    "testing": [testing.world_size, *testing.num_test_batches],
    "fabric": fabric.all_reduce(torch.tensor(1.0), reduce_op="sum").item(),
    "weights": model.net.weight.tolist(),
}
print("told:", json.dumps(told))
