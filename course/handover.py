"""Exercise 4: what pinned memory and the start method of the workers change.

python handover.py

It runs as it is, with the usual start method. There are two TODOs.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from lfw_dataset_solved import TRANSFORM, LFWDataset
from torch.utils.data import DataLoader


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the start of workers, and copies to a GPU")
    parser.add_argument("-path_to_folder", default="../lfw")
    parser.add_argument("-batch_size", default=8, type=int)
    args = parser.parse_args()
    dataset = LFWDataset(args.path_to_folder, TRANSFORM)

    print(f"on {sys.platform}; seconds until the first batch of 2 workers")
    # TODO 1: compare multiprocessing_context="fork", "forkserver" and "spawn".
    begin = time.perf_counter()
    next(iter(DataLoader(dataset, args.batch_size, num_workers=2)))
    print(f"as usual    {time.perf_counter() - begin:.2f}", flush=True)

    if not torch.cuda.is_available():
        print("no GPU: nothing is copied, and pin_memory=True would do nothing")
        return
    # TODO 2: time batch.to("cuda", non_blocking=True), and batch.pin_memory() in its place.


if __name__ == "__main__":
    main()
