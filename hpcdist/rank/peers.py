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
        size = _group_size()
        if self._written is not None and size < self._written.size:
            return  # it has left its group, at the end
        found = PeerGroup(
            size=size,
            exchanges=self._exchanges if size > 1 else None,
            library=None if size else _other_library(),
        )
        if found != self._written:
            self._written = found
            self._events.write(found)


def may_exchange() -> bool:
    """Return whether this process is in a group with others, or may talk to them otherwise."""
    return _group_size() > 1 or _other_library() is not None


def _distributed() -> Any:
    """Return torch.distributed where this process is in a group of it."""
    distributed: Any = sys.modules.get("torch.distributed")
    is_used = distributed is not None and distributed.is_available()
    return distributed if is_used and distributed.is_initialized() else None


def _group_size() -> int:
    """Return the number of ranks in the default group; 0 without one."""
    distributed = _distributed()
    return int(distributed.get_world_size()) if distributed else 0


def _num_collectives() -> int | None:
    """Return how many operations were begun in all groups; None where torch does not tell."""
    try:
        groups = [*_distributed().distributed_c10d._world.pg_map]  # noqa: SLF001 - as below
        return sum(int(group._get_sequence_number_for_group()) for group in groups)  # noqa: SLF001
    except Exception:  # noqa: BLE001 - no group, or no public interface: another torch or backend
        return None


def _other_library() -> str | None:
    return next((name for name in _OTHER_LIBRARIES if name in sys.modules), None)
