"""The ranks that this one exchanges data with, as torch.distributed tells. Imports no torch.

A script under several ranks may train one model per rank without knowing: it joined no process
group, or joined one and never wrapped its model. Its ranks are no faster together than alone.
"""

from __future__ import annotations

import sys
from typing import Any

from hpcdist.runs.events import EventWriter, PeerGroup

_OTHER_LIBRARIES = ("horovod", "mpi4py", "byteps", "jax", "cupy")
"""Libraries that ranks may exchange data through besides torch.distributed, which DeepSpeed,
accelerate and Lightning use."""


class Peers:
    """Writes a `group` event with the first window of steps, and again when something changes."""

    def __init__(self, events: EventWriter) -> None:
        self._events = events
        self._written: PeerGroup | None = None
        self._num_collectives: int | None = None
        self._exchanges: bool | None = None
        """A collective operation ran within the steps; None where that cannot be told."""

    def begin(self) -> None:
        """Count collective operations from here on: those before belong to no step."""
        self._num_collectives = _num_collectives()

    def count(self) -> None:
        """Look at the end of a step whether an operation was begun since the last look."""
        before, now = self._num_collectives, _num_collectives()
        self._num_collectives = now
        if before is not None and now is not None and not self._exchanges:
            self._exchanges = now > before

    def write(self) -> None:
        """Write what is new, at the end of a window of steps."""
        self.count()
        size, library = _group_size(), _other_library()
        exchanges = self._exchanges if size > 1 else None
        found = PeerGroup(size=size, exchanges=exchanges, library=None if size else library)
        has_left = self._written is not None and size < self._written.size  # as it does at the end
        if found != self._written and not has_left:
            self._written = found
            self._events.write(found)


def may_exchange() -> bool:
    """Return whether this process is in a group with others, or may talk to them otherwise."""
    return _group_size() > 1 or _other_library() is not None


def _group_size() -> int:
    """Return the number of ranks in torch.distributed's default group; 0 without one."""
    distributed: Any = sys.modules.get("torch.distributed")
    is_used = distributed and distributed.is_available() and distributed.is_initialized()
    return int(distributed.get_world_size()) if is_used else 0


def _num_collectives() -> int | None:
    """Return how many operations were begun in all groups; None where torch does not tell."""
    distributed: Any = sys.modules.get("torch.distributed")
    try:
        groups = [*distributed.distributed_c10d._world.pg_map]  # noqa: SLF001 - as below
        counts = [int(group._get_sequence_number_for_group()) for group in groups]  # noqa: SLF001
    except Exception:  # noqa: BLE001 - no group, or no public interface: another torch or backend
        return None
    return sum(counts) if counts else None


def _other_library() -> str | None:
    return next((name for name in _OTHER_LIBRARIES if name in sys.modules), None)
