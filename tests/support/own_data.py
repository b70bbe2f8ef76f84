"""Data sets as users have them."""

import torch
from torch.utils.data import Dataset


class Pairs(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {"image": torch.full((3, 8, 8), float(index)), "name": str(index)}


def make():
    return Pairs()


def nothing():
    return []
