"""Ranks that meet and all-reduce: for torchrun and hpcdist alike. Usage: all_reduces.py FOLDER

After its first all-reduce each rank writes FOLDER/attempt-A-rank-R.json: when that was, in the
machine's monotonic clock, and its process. Then it goes on with an all-reduce now and again, as a
training does, until there is FOLDER/release.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    report = {"done_s": time.monotonic(), "pid": os.getpid()}
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    path = folder / f"attempt-{attempt}-rank-{dist.get_rank()}.json"
    path.with_suffix(".aside").write_text(json.dumps(report))
    path.with_suffix(".aside").rename(path)  # whoever waits for the file sees all of it
    released = torch.zeros(1)
    while not released:
        time.sleep(0.05)
        released.fill_((folder / "release").exists())
        dist.all_reduce(released)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
