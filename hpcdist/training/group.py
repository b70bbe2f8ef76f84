"""The process group of all ranks, for as long as a workload needs it. Imports torch when used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from hpcdist.rank.context import RankContext


@contextmanager
def process_group(
    context: RankContext, *, backend: str | None = None, timeout: timedelta | None = None
) -> Iterator[None]:
    """Join the group of all ranks."""
    import torch
    import torch.distributed as dist

    backend = backend or context.backend
    device = torch.device(context.device) if backend == "nccl" else None
    dist.init_process_group(backend=backend, timeout=timeout, device_id=device)
    yield
    # Only after success: after an error, closing the group can wait for ranks that are gone. The
    # process ends soon, and gloo's group need not be closed: the destructor of torch 2.7 holds
    # Python's lock while it waits for a thread that may wait for that lock.
    if backend == "nccl":
        dist.destroy_process_group()
