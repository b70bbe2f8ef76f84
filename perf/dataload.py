"""Loading images by hpcdist.data.FastImages beside PIL and torchvision, each in torch's DataLoader
with the same workers; and data in memory by the loader of the jobs beside torchvision's data set.

The faces are the made ones, 250 x 250 pixels; both sides have them in the page cache. Each side is
a process of its own (`dataload.py side NAME OPTIONS`), which times whole passes, up to where a
model on the CPU could take the batch, and tells its best. The latency of opening a file is real: a
preloaded library sleeps in each open.
"""

import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from PIL import Image
from sidebyside import Measure, compare, parse_options, run_command
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import datasets, transforms

from hpcdist.data import FastImages
from hpcdist.data.batches import make_batches
from hpcdist.data.catalog import find_data_set, find_images, load_data
from hpcdist.data.order import EpochPlan, epoch_order
from hpcdist.job.spec import Data

BATCH = 64
_SLOW_FILES = Path(__file__).parent.parent / "tests" / "support" / "slow_files.c"


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
        yield ((images.normalize(batch), labels) for batch, labels in loader)


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


def run_side(side, given):
    """Print the images per second of the best of some passes."""
    usual = {"fashion": None, "transform": "none", "decode": "exact"}
    options = SimpleNamespace(**usual | given)
    torch.set_num_threads(1)
    passes = passes_over_fashion if options.fashion else passes_over_faces
    loaders = passes(side, options)
    rates = [images_per_s(next(loaders)) for _ in range(3)]
    print(json.dumps({"images": max(rates[1:])}), flush=True)  # the first brings files into memory
    os._exit(0)


def load(side, options, variables):
    """Run one side."""
    words = [__file__, "side", side, json.dumps(options)]
    return json.loads(run_command([sys.executable, *words], Path(), variables))


def write_fashion(root):
    """IDX files of FashionMNIST's size and layout, with random pixels."""
    raw = root / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    drawing = random.Random(0)
    for prefix, number in (("train", 60_000), ("t10k", 10_000)):
        pixels = struct.pack(">4I", 0x803, number, 28, 28) + drawing.randbytes(number * 784)
        labels = struct.pack(">2I", 0x801, number) + bytes(index % 10 for index in range(number))
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(pixels)
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(labels)


def main():
    if sys.argv[1:2] == ["side"]:
        run_side(sys.argv[2], json.loads(sys.argv[3]))
    options = parse_options(__doc__, pairs=3, workers=[0, 1, 2], faces=768)
    find_data_set(Data(name="faces")).prepare(Data(name="faces"))
    parts = find_images(Data(name="faces"))
    assert parts is not None
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        library = Path(name) / "slow_files.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, _SLOW_FILES, "-ldl"], check=True)
        write_fashion(Path(name))
        cases = []
        for workers in options.workers:
            plain = {"faces": options.faces, "workers": workers}
            light, fast = plain | {"transform": "light"}, plain | {"decode": "fast"}
            cases.append((f"faces, exact, light, {workers} workers", light, light, 1.9, {}))
            cases.append((f"faces, fast, {workers} workers", fast, plain, 2.5, {}))
        slow = {"faces": options.faces, "workers": 1}
        preloaded = {"LD_PRELOAD": str(library), "SLOW_FOLDER": str(parts.train.root)}
        preloaded["SLOW_US"] = "10000"
        cases.append(("faces, 10 ms for each open, 1 worker", slow, slow, 15, preloaded))
        fashion = {"fashion": name, "samples": 20 * options.faces}
        cases.append(("FashionMNIST in memory", fashion, fashion, 50, {}))
        for title, ours, theirs, at_least, variables in cases:
            compare(
                title,
                [Measure(name="images", unit="images/s", at_least=at_least)],
                {
                    "hpcdist": partial(load, "ours", ours, variables),
                    "plain": partial(load, "plain", theirs, variables),
                },
                pairs=options.pairs,
            )


if __name__ == "__main__":
    main()
