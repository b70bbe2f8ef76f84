"""What the benchmarks' workloads share: their process group, and leaving when they are told to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from hpcdist.base.errors import EXIT_STOPPED
from hpcdist.rank.context import RankContext
from hpcdist.training import group

_BEAT_S = 5.0
_GROUP_TIMEOUT = timedelta(days=1)
"""A rank that waits this long waits for one that is measured; a hang is seen by the agents."""


@contextmanager
def process_group(context: RankContext, backend: str) -> Iterator[None]:
    """The group of all ranks, on the rank's device where the backend uses it."""
    import torch

    device = torch.device(context.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with group.process_group(context, backend=backend, timeout=_GROUP_TIMEOUT):
        yield


def alive(context: RankContext) -> None:
    """Tell the agent that something goes on."""
    if context.progress is not None:
        context.progress.alive()


def finish_step(context: RankContext, number: int) -> None:
    """Tell the agent that so many measurements are done."""
    if context.progress is not None:
        context.progress.step(number)


def should_stop(context: RankContext) -> bool:
    """Whether to leave before the next measurement; all ranks ask equally often."""
    return context.progress is not None and context.progress.should_stop()


def is_asked_to_stop(context: RankContext) -> bool:
    """Whether to cut a measurement short; ranks learn it at different moments, and those that
    measure together have to agree."""
    return context.progress is not None and context.progress.is_asked_to_stop()


def leave(context: RankContext) -> None:
    """Come to the boundary where all stop, once all ranks know that a measurement was cut short."""
    while not should_stop(context):
        pass


def stop(context: RankContext, done: int, planned: int, what: str) -> SystemExit:
    """What to raise after `done` measurements of those planned, with all that is known written."""
    if context.rank == 0:
        message = f"stopped when it was asked to, after {done} of {planned} {what}"
        context.events.write("note", message=message)
        context.say(message)
    return SystemExit(EXIT_STOPPED)


@contextmanager
def waiting(context: RankContext) -> Iterator[None]:
    """Give signs of life while this rank only waits for others, which give their own.

    Without them the agent would take a long measurement of another rank for a hang of this one.
    """
    over = threading.Event()
    beat = threading.Thread(target=_beat, args=(context, over), daemon=True)
    beat.start()
    try:
        yield
    finally:
        over.set()
        beat.join()


def _beat(context: RankContext, over: threading.Event) -> None:
    while not over.wait(_BEAT_S):
        alive(context)


def gather(context: RankContext, value: Any) -> list[Any]:
    """What every rank has, in every rank, by rank."""
    import torch.distributed as dist

    found: list[Any] = [None] * context.world_size
    with waiting(context):
        dist.all_gather_object(found, value)
    return found


def largest(context: RankContext, value: float) -> float:
    """Of what all ranks say, once all have."""
    import torch
    import torch.distributed as dist

    told = torch.tensor([value], dtype=torch.float64)
    with waiting(context):
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
    return float(told.item())
