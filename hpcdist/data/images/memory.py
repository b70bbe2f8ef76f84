"""Memory that a rank and its workers write and read together, and that no file system limits.

Anonymous: it is gone with the last process that has it, however that ends. Containers often allow
only 64 MB in /dev/shm, where torch's own shared tensors live.
"""

from __future__ import annotations

import mmap
import os
from multiprocessing import reduction
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class SharedMemory:
    """So many bytes, which forked children have too, and started ones when they are given it."""

    def __init__(self, num_bytes: int, descriptor: int | None = None) -> None:
        """New memory, or that of a descriptor, which is closed with this object."""
        if descriptor is None:
            descriptor = os.memfd_create("hpcdist", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, num_bytes)
        self._take(descriptor, num_bytes)

    @classmethod
    def of_process(cls, pid: int, descriptor: int, num_bytes: int) -> SharedMemory:
        """The memory of another process of this user, by the number it has there; OSError."""
        path = f"/proc/{pid}/fd/{descriptor}"
        return cls(num_bytes, os.open(path, os.O_RDWR | os.O_CLOEXEC))

    @property
    def place(self) -> tuple[int, int, int]:
        """What `of_process` takes."""
        return os.getpid(), self._descriptor, self.num_bytes

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """The memory as an array, zero at first."""
        count = int(np.prod(shape))
        return np.frombuffer(self._memory, dtype, count).reshape(shape)

    def _take(self, descriptor: int, num_bytes: int) -> None:
        self._descriptor = descriptor
        self.num_bytes = num_bytes
        self._memory = mmap.mmap(descriptor, num_bytes)

    def __getstate__(self) -> tuple[Any, int]:
        """For a process that is started, not forked."""
        return reduction.DupFd(self._descriptor), self.num_bytes

    def __setstate__(self, state: tuple[Any, int]) -> None:
        duplicate, num_bytes = state
        self._take(duplicate.detach(), num_bytes)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)  # the mapping lives as long as arrays of it do
