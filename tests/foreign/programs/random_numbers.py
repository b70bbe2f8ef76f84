"""Draws from everything that is random without a seed."""

import json
import multiprocessing
import os
import random
import tempfile
import uuid

import numpy
import torch
from torch.utils.data import DataLoader, TensorDataset

rank = os.environ["RANK"]
numbers = TensorDataset(torch.arange(1000))


def draw(_):
    """In a worker of a DataLoader."""
    return [torch.rand(2).tolist(), random.random(), numpy.random.rand()]


loader = DataLoader(numbers, batch_size=500, num_workers=1, collate_fn=draw)
order = torch.cat([batch[0] for batch in DataLoader(numbers, batch_size=100, shuffle=True)])
drawn = {
    "torch.rand": torch.rand(4).tolist(),
    "torch.get_rng_state": torch.get_rng_state().tolist(),
    "torch.nn.init": torch.nn.Linear(4, 4).weight.tolist(),
    "DataLoader(shuffle=True)": order.tolist(),
    "DataLoader's workers": next(iter(loader)),
    "random": random.random(),
    "numpy.random": numpy.random.rand(4).tolist(),
    "numpy.default_rng": numpy.random.default_rng().random(4).tolist(),
    "authkey": multiprocessing.current_process().authkey.hex(),
    "uuid4": str(uuid.uuid4()),
    "tempfile": tempfile.mktemp(),
}
json.dump(drawn, open(f"random-{rank}.json", "w"))
# The same whoever starts it, once there is a seed.
torch.manual_seed(1)
numpy.random.seed(1)
random.seed(1)
seeded = [torch.rand(3).tolist(), numpy.random.rand(), random.random(), torch.initial_seed()]
with open(f"seeded-{rank}.json", "w") as file:
    json.dump(seeded, file)
