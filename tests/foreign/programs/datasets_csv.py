"""Leaves a file open that it has not flushed, beside a package whose types are hard to destroy."""

import os

import datasets
import torch

rank = os.environ["RANK"]
metrics = open(f"metrics-{rank}.csv", "w")
metrics.write("epoch,loss\n")
rows = datasets.Dataset.from_dict({"x": list(range(8))}).with_format("torch")
metrics.write(f"1,{torch.stack(list(rows['x'])).sum()}\n")
print("trained")
