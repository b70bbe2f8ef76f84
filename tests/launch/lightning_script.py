"""A user's script with Lightning, as written for torchrun; the Trainer's options as JSON."""

import json
import sys

import torch
from pytorch_lightning import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 2)

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 4), torch.randint(0, 2, (32,)))
trainer = Trainer(max_epochs=1, logger=False, enable_checkpointing=False, **json.loads(sys.argv[1]))
model = Model()
trainer.fit(model, DataLoader(data, batch_size=4))
told = {
    "rank": trainer.global_rank,
    "world_size": trainer.world_size,
    "steps": trainer.global_step,
    "weights": model.net.weight.tolist(),
}
print("told:", json.dumps(told))
