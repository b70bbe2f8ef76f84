"""The process group of all ranks, for as long as a training needs it. Imports torch when used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpcdist.rank import RankContext


@contextmanager
def process_group(context: RankContext, *, needed: bool) -> Iterator[bool]:
    """The group of all ranks, where it is needed; gives whether there is one."""
    import torch
    import torch.distributed as dist

    if not needed:
        yield False
        return
    device = torch.device(context.device)
    dist.init_process_group(
        backend=context.backend, device_id=device if context.backend == "nccl" else None
    )
    yield True
    # Only after success: after an error, closing the group can wait for ranks that are gone.
    dist.destroy_process_group()
