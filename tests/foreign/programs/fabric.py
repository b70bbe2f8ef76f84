"""Lightning's Fabric, told its devices or not; each rank writes how many there are."""

import json
import os
import sys

import torch
from lightning_fabric import Fabric

is_launched = "unlaunched" not in sys.argv
options = {"devices": 2, "strategy": "ddp"} if is_launched else {}
fabric = Fabric(accelerator="cpu", **options)
if is_launched:  # else each rank trains for itself, as in Lightning's example of cross validation
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
