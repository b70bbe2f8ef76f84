"""Draws from everything that is random without a seed."""

import json
import multiprocessing
import os
import random
import tempfile
import uuid

import numpy
import torch
from torch.utils.data import DataLoader, TensorDataset, random_split

rank = os.environ["RANK"]
numbers = TensorDataset(torch.arange(1000))
order = torch.cat([batch[0] for batch in DataLoader(numbers, batch_size=100, shuffle=True)])
layer = torch.nn.Linear(4, 4)
state = torch.get_rng_state()
drawn = {
    "torch.rand": torch.rand(4).tolist(),
    "torch.randperm": torch.randperm(1000).tolist(),
    "torch.get_rng_state": state.tolist(),
    "torch.nn.init": layer.weight.tolist(),
    "DataLoader(shuffle=True)": order.tolist(),
    "random_split": list(random_split(range(1000), [500, 500])[0].indices),
    "random": random.random(),
    "numpy.random": numpy.random.rand(4).tolist(),
    "numpy.default_rng": numpy.random.default_rng().random(4).tolist(),
    "authkey": multiprocessing.current_process().authkey.hex(),
    "uuid4": str(uuid.uuid4()),
    "tempfile": tempfile.mktemp(),
}


def workers():
    """What a worker of a DataLoader draws."""
    loader = DataLoader(numbers, batch_size=500, num_workers=1, collate_fn=draw)
    return next(iter(loader))


def draw(_):
    return [torch.rand(2).tolist(), random.random(), numpy.random.rand()]


drawn["DataLoader's workers"] = workers()
json.dump(drawn, open(f"random-{rank}.json", "w"))
# The same whoever starts it, once there is a seed.
torch.manual_seed(1)
numpy.random.seed(1)
random.seed(1)
seeded = [torch.rand(3).tolist(), numpy.random.rand(), random.random(), torch.initial_seed()]
with open(f"seeded-{rank}.json", "w") as file:
    json.dump(seeded, file)
