"""The workers of a DataLoader: how each begins, and how all end."""

from __future__ import annotations

import multiprocessing
import signal
from typing import Any

from torch.utils.data import DataLoader

from hpcdist.machine.process import die_with_parent
from hpcdist.rank.exit import shield_worker


def start_worker(rank_pid: int, _worker: int) -> None:
    """Leave all signals to the rank, and end with it, however that ends."""
    shield_worker()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the rank's to answer
    if not _has_server():
        die_with_parent(rank_pid)


def _has_server() -> bool:
    """Return whether a fork server is the parent of this worker: then torch watches the rank."""
    kind = type(multiprocessing.current_process()).__name__
    return kind == "ForkServerProcess"


def end_workers(loader: DataLoader[Any]) -> None:
    """End the workers that a DataLoader keeps, which it has no public word for."""
    iterator: Any = loader._iterator  # noqa: SLF001
    loader._iterator = None  # noqa: SLF001 - the next epoch starts new ones
    if iterator is not None:
        iterator._shutdown_workers()  # noqa: SLF001
