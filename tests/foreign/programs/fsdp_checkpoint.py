"""fully_shard on gloo, with torch.distributed.checkpoint's save and load."""

import json
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model, optimizer, first, last):
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step * 10 + dist.get_rank())
        inputs = torch.rand(8, 16, generator=generator)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(repr(loss.item()))


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
losses = []
model, optimizer = build()
train(model, optimizer, 0, 5)
weights, state = get_state_dict(model, optimizer)
dcp.save({"model": weights, "optimizer": state}, checkpoint_id="checkpoint")
model, optimizer = build()
weights, state = get_state_dict(model, optimizer)
dcp.load({"model": weights, "optimizer": state}, checkpoint_id="checkpoint")
set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
train(model, optimizer, 5, 10)
with open(f"losses-{dist.get_rank()}.json", "w") as file:
    json.dump(losses, file)
dist.destroy_process_group()
