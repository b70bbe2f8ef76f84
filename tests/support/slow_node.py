"""A node whose all-reduces are slow."""

import os
import time

import torch.distributed as dist

DELAY_S = 0.3  # long beside what an all-reduce of 16 MiB takes on a busy machine


def delay_all_reduces():
    """Those of node 1: it sleeps, and so takes no CPU time from the other nodes."""
    all_reduce = dist.all_reduce

    def delayed(*args, **options):
        if os.environ["GROUP_RANK"] == "1":
            time.sleep(DELAY_S)
        return all_reduce(*args, **options)

    dist.all_reduce = delayed
