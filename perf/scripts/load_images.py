"""Passes over a data set by one side; prints what they took, and the memory of each worker.

plain: PIL, torchvision, torch's DataLoader, as its documentation has them. ours: hpcdist's loader.
webdataset: the same files in tar shards (--shards), by webdataset as its documentation has it, with
the decoder and transforms of plain. bare: libjpeg-turbo alone, one file after the other, in as many
processes as there are workers. Every side ends where a model on the CPU could take the batch, but
for `bare`, and `ours --raw`, which end with uint8.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from pathlib import Path

import psutil
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from hpcdist.data.batches import make_batches
from hpcdist.data.catalog import find_images, load_data, open_images
from hpcdist.data.order import EpochPlan, epoch_order
from hpcdist.job.spec import Data
from hpcdist.machine.memory import proportional_bytes
from hpcdist.machine.process import descendants

BATCH = 64
CPU = torch.device("cpu")


def plain_transform(name):
    from torchvision import transforms

    affine = [transforms.RandomAffine(5, (0.1, 0.1), (0.5, 2.0))]
    return transforms.Compose(
        [
            *(affine if name == "light" else []),
            transforms.ToTensor(),
            transforms.Normalize([0.5] * 3, [0.5] * 3),
        ]
    )


class PlainFiles(Dataset):
    def __init__(self, files, transform):
        self._files = files
        self._transform = plain_transform(transform)

    def __len__(self):
        return len(self._files)

    def __getitem__(self, index):
        with open(self._files.root / self._files.paths[index], "rb") as file:
            image = Image.open(file).convert("RGB")
        return self._transform(image), self._files.labels[index]


def plain_passes(options, data):
    if options.name != "faces":
        from torchvision import datasets, transforms

        whole = datasets.FashionMNIST(
            data.root,
            transform=transforms.Compose(
                [transforms.ToTensor(), transforms.Normalize([0.5], [0.5])]
            ),
        )
    else:
        whole = PlainFiles(find_images(data).train, options.transform)
    loader = DataLoader(
        whole,
        BATCH,
        shuffle=True,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
    )
    while True:
        yield from timed_pass(iter(loader), lambda batch: len(batch[1]))


def shard_passes(options, _):
    import webdataset

    shards = sorted(str(path) for path in Path(options.shards).glob("*.tar"))
    dataset = (
        webdataset.WebDataset(shards, shardshuffle=len(shards))
        .shuffle(200)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(plain_transform(options.transform), int)
        .batched(BATCH)
    )
    loader = webdataset.WebLoader(
        dataset,
        batch_size=None,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
    )
    while True:
        yield from timed_pass(iter(loader), lambda batch: len(batch[1]))


def our_passes(options, data):
    files = options.name == "faces"
    samples = open_images(find_images(data).train, data, 0) if files else load_data(data).train
    batches = make_batches(samples, CPU, data, memory_format=torch.channels_last)
    plan = EpochPlan(num_samples=len(samples), batch_size=BATCH, accumulate=1, rank=0, world_size=1)
    shares = [share for _, shares in plan.steps() for share in shares]
    epoch = 0
    while True:
        order = epoch_order(len(samples), seed=0, epoch=epoch)
        made = batches.epoch(order, shares, epoch)
        if not options.raw:
            made = map(batches.bring, made)
        yield from timed_pass(made, len)
        epoch += 1


def bare_passes(options, data):
    """Decode alone: the files' contents are in memory, and the pixels go nowhere."""
    from simplejpeg import decode_jpeg

    files = find_images(data).train
    contents = [(files.root / path).read_bytes() for path in files.paths]
    shares = [contents[part :: max(1, options.workers)] for part in range(max(1, options.workers))]
    while True:
        begin_s, begin_cpu_s = time.perf_counter(), cpu_s()
        children = []
        for share in shares:
            pid = os.fork()
            if not pid:
                for content in share:
                    decode_jpeg(content, "RGB")
                os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        yield time.perf_counter() - begin_s, len(contents), cpu_s() - begin_cpu_s, None


def timed_pass(batches, size):
    """The time from the second batch on: starting workers is another matter."""
    count = 0
    first = True
    begin_s = begin_cpu_s = 0.0
    for batch in batches:
        if first:
            first, begin_s, begin_cpu_s = False, time.perf_counter(), cpu_s()
        else:
            count += size(batch)
    time_s, cpu_time_s = time.perf_counter() - begin_s, cpu_s() - begin_cpu_s
    pids = descendants(os.getpid())
    memory = sum(map(proportional_bytes, pids)) / len(pids) if pids else None
    yield time_s, count, cpu_time_s, memory


def cpu_s():
    """CPU time of this process and all that it started, so far."""
    spent = [sum(os.times()[:4])]
    for pid in descendants(os.getpid()):
        with contextlib.suppress(psutil.NoSuchProcess):
            spent.append(sum(psutil.Process(pid).cpu_times()[:2]))
    return sum(spent)


SIDES = {
    "plain": plain_passes,
    "webdataset": shard_passes,
    "ours": our_passes,
    "bare": bare_passes,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("--name", default="faces")
    parser.add_argument("--root")
    parser.add_argument("--shards")
    parser.add_argument("--transform", default="none")
    parser.add_argument("--decoder", default="exact")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--samples", type=int)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--raw", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = Data(
        name=options.name,
        root=options.root,
        transform=options.transform,
        decoder=options.decoder,
        workers=options.workers,
        train_samples=options.samples,
    )
    passes = SIDES[options.side](options, data)
    next(passes)  # files come into the page cache, workers start
    found = [next(passes) for _ in range(options.passes)]
    time_s, count, _, memory = min(found, key=lambda each: each[0] / each[1])
    cpu_time_s = min(cpu_time_s / count for _, count, cpu_time_s, _ in found)
    figures = {"images": count / time_s, "cpu": cpu_time_s * 1e6, "memory": (memory or 0) / 1e6}
    print(json.dumps(figures))
    os._exit(0)


if __name__ == "__main__":
    main()
