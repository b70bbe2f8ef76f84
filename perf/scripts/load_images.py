"""Passes over a data set by one side; prints the images per second of the best one.

Usage: load_images.py plain|ours OPTIONS, the options in JSON.

plain: PIL and torchvision, as their documentation has them. ours: FastImages, and for data in
memory the loader of the jobs. Both end where a model on the CPU could take the batch.
"""

import json
import os
import sys
import time
from types import SimpleNamespace

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import datasets, transforms

from hpcdist.data import FastImages
from hpcdist.data.batches import make_batches
from hpcdist.data.catalog import find_images, load_data
from hpcdist.data.order import EpochPlan, epoch_order
from hpcdist.job.spec import Data

BATCH = 64


class PlainFiles(Dataset):
    def __init__(self, files, transform):
        steps = [transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.5] * 3)]
        if transform == "light":
            steps.insert(0, transforms.RandomAffine(5, (0.1, 0.1), (0.5, 2.0)))
        self.files, self.transform = files, transforms.Compose(steps)

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        with open(self.files.root / self.files.paths[index], "rb") as file:
            image = Image.open(file).convert("RGB")
        return self.transform(image), self.files.labels[index]


def passes_over_faces(side, options):
    files = find_images(Data(name="faces", train_samples=options.faces)).train
    usual = {"shuffle": True, "num_workers": options.workers}
    usual["persistent_workers"] = options.workers > 0
    if side == "plain":
        loader = DataLoader(PlainFiles(files, options.transform), BATCH, **usual)
        while True:
            yield loader
    images = FastImages(files, transform=options.transform, decode=options.decode)
    loader = DataLoader(images, BATCH, collate_fn=images.collate, **usual)
    while True:
        yield ((batch.to(torch.float32).div_(127.5).sub_(1), labels) for batch, labels in loader)


def passes_over_fashion(side, options):
    if side == "plain":
        last = [transforms.ToTensor(), transforms.Normalize([0.5], [0.5])]
        whole = datasets.FashionMNIST(options.fashion, transform=transforms.Compose(last))
        while True:
            yield DataLoader(Subset(whole, range(options.samples)), BATCH, shuffle=True)
    data = Data(name="fashion_mnist", root=options.fashion, train_samples=options.samples)
    samples = load_data(data).train
    batches = make_batches(samples, torch.device("cpu"), data)
    plan = EpochPlan(num_samples=len(samples), batch_size=BATCH, accumulate=1, rank=0, world_size=1)
    shares = [share for _, shares in plan.steps() for share in shares]
    while True:
        order = epoch_order(len(samples), seed=0, epoch=0)
        made = map(batches.bring, batches.epoch(order, shares, 0))
        yield ((batch.images, batch.labels) for batch in made)


def images_per_s(batches):
    """Time a pass from the second batch on: starting workers is another matter."""
    batches = iter(batches)
    next(batches)
    begin_s = time.perf_counter()
    count = sum(len(labels) for _, labels in batches)
    return count / (time.perf_counter() - begin_s)


def main():
    usual = {"fashion": None, "transform": "none", "decode": "exact"}
    options = SimpleNamespace(**usual | json.loads(sys.argv[2]))
    torch.set_num_threads(1)
    passes = passes_over_fashion if options.fashion else passes_over_faces
    loaders = passes(sys.argv[1], options)
    rates = [images_per_s(next(loaders)) for _ in range(3)]
    print(json.dumps({"images": max(rates[1:])}))  # the first one brings files into memory
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
