"""DeepSpeed's ZeRO-1 on gloo."""

import json
import os

import deepspeed
import torch

deepspeed.init_distributed(dist_backend="gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
config = {
    "train_micro_batch_size_per_gpu": 8,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
    "zero_force_ds_cpu_optimizer": False,
}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
losses = []
for step in range(4):
    generator = torch.Generator().manual_seed(step * 10 + torch.distributed.get_rank())
    inputs = torch.rand(8, 8, generator=generator)
    loss = (engine(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    engine.backward(loss)
    engine.step()
    losses.append(repr(loss.item()))
with open(f"losses-{os.environ['RANK']}.json", "w") as file:
    json.dump(losses, file)
torch.distributed.destroy_process_group()
