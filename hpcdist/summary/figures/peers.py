"""Decide whether the ranks of a run trained one model together, or each its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hpcdist.summary.read.records import PeerGroup


class Together(NamedTuple):
    """Conclusion from the process groups of all ranks."""

    is_so: bool | None
    """None for a single rank, and where nothing tells."""
    why: str | None = None
    """Why not, or why that is not known: a sentence's words."""


def find_together(groups: Iterable[PeerGroup], *, world_size: int) -> Together:
    """Judge by the group that each rank was in; one rank that exchanges data speaks for all."""
    found = list(groups)
    if world_size < 2 or not found:
        return Together(None)
    largest = max(group.size for group in found)
    library = next((group.library for group in found if group.library), None)
    if largest == 0 and library is not None:
        return Together(
            None,
            f"whether {world_size} ranks trained together is not known: they were in no process "
            f"group of torch.distributed, but may exchange data through {library}",
        )
    why = None
    if largest == 0:
        why = "they joined no process group"
    elif largest < world_size:
        why = f"the largest process group has {largest}"
    elif any(group.exchanges for group in found):
        return Together(True)
    elif any(group.exchanges is False for group in found):
        why = (
            "they joined a process group, but no collective operation ran in their steps (is the "
            "model wrapped?)"
        )
    if why is None:
        return Together(None)
    return Together(False, f"{world_size} ranks trained apart from each other: {why}")
