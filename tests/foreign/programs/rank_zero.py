"""What libraries do on rank 0 only, by what they remember of the rank since their import."""

import os

import torch
from lightning_fabric.utilities.rank_zero import rank_zero_only as of_fabric
from lightning_utilities.core.rank_zero import rank_zero_only as of_utilities
from pytorch_lightning.utilities import rank_zero_only as of_lightning
from torchmetrics.utilities.prints import rank_zero_only as of_torchmetrics

for name, only in {
    "fabric": of_fabric,
    "utilities": of_utilities,
    "lightning": of_lightning,
    "torchmetrics": of_torchmetrics,
}.items():
    only(lambda name=name: print(f"{name} on rank {os.environ['RANK']}"))()
