"""Exercise 4, solved: what pinned memory and the start method of the workers change.

python handover_solved.py
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
    parser.add_argument("-contexts", default=["fork", "forkserver", "spawn"], nargs="+")
    args = parser.parse_args()
    dataset = LFWDataset(args.path_to_folder, TRANSFORM)

    # A Mac starts workers by spawn, since macOS's own libraries do not bear a fork. Where a script
    # cannot be imported again, as in a notebook, multiprocessing_context="fork" helps there.
    print(f"on {sys.platform}; seconds until the first batch of 2 workers")
    for context in args.contexts:
        begin = time.perf_counter()
        next(
            iter(
                DataLoader(dataset, args.batch_size, num_workers=2, multiprocessing_context=context)
            )
        )
        print(f"{context:10}  {time.perf_counter() - begin:.2f}", flush=True)

    if not torch.cuda.is_available():
        print("no GPU: nothing is copied, and pin_memory=True would do nothing")
        return
    batch = next(iter(DataLoader(dataset, batch_size=args.batch_size)))
    for name, source in (("pageable", batch), ("pinned", batch.pin_memory())):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(100):
            source.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - begin) / 100
        print(f"{name:10}  {batch.nbytes / seconds / 1e9:.1f} GB/s to the GPU", flush=True)


if __name__ == "__main__":
    main()
