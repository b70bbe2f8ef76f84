"""Lightning's Fabric, told its devices or not; each rank writes how many there are."""

import json
import os
import sys

import torch
from lightning_fabric import Fabric

options = {"devices": 1} if "alone" in sys.argv else {"devices": 2, "strategy": "ddp"}
fabric = Fabric(accelerator="cpu", **options)
fabric.launch()
fabric.seed_everything(1)
model, optimizer = torch.nn.Linear(8, 1), None
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = fabric.setup(model, optimizer)
losses = []
for step in range(4):
    generator = torch.Generator().manual_seed(step * 10 + fabric.global_rank)
    inputs = torch.rand(8, 8, generator=generator)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    fabric.backward(loss)
    optimizer.step()
    losses.append(repr(loss.item()))
total = fabric.all_reduce(loss.detach(), reduce_op="sum")
with open(f"losses-{os.environ['RANK']}.json", "w") as file:
    json.dump([losses, fabric.world_size, repr(total.item())], file)
