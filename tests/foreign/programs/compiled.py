"""A small model through torch.compile, by the C++ that it generates."""

import json
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
model = torch.compile(DistributedDataParallel(model))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(5):
    generator = torch.Generator().manual_seed(step * 10 + dist.get_rank())
    inputs = torch.rand(16, 8, generator=generator)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(repr(loss.item()))
with open(f"losses-{dist.get_rank()}.json", "w") as file:
    json.dump(losses, file)
dist.destroy_process_group()
