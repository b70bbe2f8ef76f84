"""Exercise 13: choose GPUs that nobody uses, on a machine without a scheduler.

export CUDA_VISIBLE_DEVICES=$(python choose_gpus.py 2)
python choose_gpus.py 2 --listing nvidia-smi.csv         of a machine with 8 GPUs

It runs as it is, and takes the first GPUs, whoever uses them. There is one TODO.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from pathlib import Path

QUESTION = "--query-gpu=index,memory.used,utilization.gpu"
MOST_MIB, MOST_PERCENT = 500, 5


def ask() -> str:
    """Return what nvidia-smi lists: a line per GPU with its index, MiB in use, and % busy."""
    command = ["nvidia-smi", QUESTION, "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=30
        ).stdout
    except FileNotFoundError:
        sys.exit("there is no nvidia-smi, so no NVIDIA GPU: try --listing nvidia-smi.csv")


def free_gpus(listing: str) -> list[str]:
    """Return the indices of GPUs with next to no memory in use and nothing to compute."""
    rows = csv.reader(listing.splitlines(), skipinitialspace=True)
    # TODO: only those with at most MOST_MIB in use, and at most MOST_PERCENT busy.
    return [index for index, _used_mib, _busy_percent in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description="Choose free GPUs")
    parser.add_argument("number", type=int)
    parser.add_argument("--listing", help="file with the output of nvidia-smi")
    args = parser.parse_args()
    listing = Path(args.listing).read_text() if args.listing else ask()
    free = free_gpus(listing)
    if len(free) < args.number:
        sys.exit(f"{len(free)} GPUs are free, and not {args.number}: {','.join(free) or 'none'}")
    print(",".join(free[: args.number]))


if __name__ == "__main__":
    main()
