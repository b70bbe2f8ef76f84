"""Exercise 2: the time of 100 batches with 0 to 4 workers, five times each, as error bars.

python workers.py

It runs as it is, without workers and without error bars. There are two TODOs.
"""

from __future__ import annotations

import argparse
import os
import statistics

import matplotlib.pyplot as plt
from lfw_dataset_solved import TRANSFORM, LFWDataset, time_passes
from torch.utils.data import DataLoader


def main() -> None:
    parser = argparse.ArgumentParser(description="Time loading by the number of workers")
    parser.add_argument("-path_to_folder", default="../lfw")
    parser.add_argument("-batch_size", default=8, type=int)
    parser.add_argument("-workers", default=[0], type=int, nargs="+")  # TODO 1: 0 to 4
    parser.add_argument("-batches_to_check", default=100, type=int)
    parser.add_argument("-passes", default=5, type=int)
    args = parser.parse_args()

    dataset = LFWDataset(args.path_to_folder, TRANSFORM)
    print(f"{len(os.sched_getaffinity(0))} CPUs")
    print("workers  seconds (mean ± sd)")
    means, sds = [], []
    for num_workers in args.workers:
        loader = DataLoader(dataset, batch_size=args.batch_size, num_workers=num_workers)
        seconds = time_passes(loader, args.batches_to_check, args.passes)
        means.append(statistics.mean(seconds))
        sds.append(statistics.stdev(seconds))
        print(f"{num_workers:7}  {means[-1]:.2f} ± {sds[-1]:.2f}", flush=True)

    # TODO 2: draw error bars of the standard deviations instead of a line; see plt.errorbar.
    plt.plot(args.workers, means)
    plt.xlabel("workers")
    plt.ylabel("seconds per pass")
    plt.savefig("workers.png", dpi=110)
    print("the times are drawn in workers.png")


if __name__ == "__main__":
    main()
