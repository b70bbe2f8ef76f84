"""Page-locked places for batches, and when a copy from one to a GPU is over."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import torch

from hpcdist.data.images.memory import SharedMemory


class Pinned:
    """Locks memory that workers write to, so that the GPU copies from it by itself."""

    def __init__(self, memory: SharedMemory) -> None:
        """Lock all of it; the memory stays as it is where that is refused."""
        self._bytes = memory.array((memory.num_bytes,), np.uint8)
        self._copied: dict[int, Any] = {}
        self._runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        address = self._bytes.ctypes.data
        self.is_locked = int(self._runtime.cudaHostRegister(address, memory.num_bytes, 0)) == 0
        if not self.is_locked:
            with suppress(RuntimeError):  # CUDA tells the refusal to whoever asks next, and once
                torch.ones(1, device="cuda")

    def note_copy(self, place: int) -> None:
        """A copy from this place has been queued."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._copied[place] = event

    def wait(self, place: int) -> None:
        """Until the last copy from this place is over: it is about to be written to."""
        event = self._copied.pop(place, None)
        if event is not None:
            event.synchronize()

    def close(self) -> None:
        """Unlock the memory, when all copies are over."""
        for place in list(self._copied):
            self.wait(place)
        if self.is_locked:
            self._runtime.cudaHostUnregister(self._bytes.ctypes.data)
            self.is_locked = False
