"""Decoded pictures in memory that all ranks and workers of a node share.

The memory is anonymous: it is gone with the last process that has it, and nothing of one run is
ever seen by another, so that files changed between runs are read anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcdist.data.images.memory import SharedMemory
from hpcdist.machine.memory import free_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHARE = 4
"""A cache may have one part in so many of the memory that is free."""


class DecodedCache:
    """Room for each picture of a part of a data set; filled by whoever decodes one first."""

    def __init__(self, memory: SharedMemory, number: int, shape: tuple[int, int, int]) -> None:
        """`shape`: (channels, height, width)"""
        self.memory = memory
        self._number = number
        self._shape = shape
        self._take_arrays()

    @property
    def place(self) -> tuple[int, int, int]:
        """Where another process of this node finds it, see `open_at`."""
        return self.memory.place

    @classmethod
    def open_at(
        cls, place: tuple[int, int, int], number: int, shape: tuple[int, int, int]
    ) -> DecodedCache:
        """That of another process of this user; OSError where it cannot be reached."""
        return cls(SharedMemory.of_process(*place), number, shape)

    @classmethod
    def make(cls, number: int, shape: tuple[int, int, int]) -> DecodedCache:
        """An empty one, which takes up memory only as it is filled."""
        return cls(SharedMemory(needed_bytes(number, shape)), number, shape)

    def get(self, index: int) -> NDArray[np.uint8] | None:
        """A picture [height, width, channels]; None where it is still to be decoded."""
        if not self._is_there[index]:
            return None
        pixels: NDArray[np.uint8] = self._pixels[index]
        return pixels

    def put(self, index: int, pixels: NDArray[np.uint8]) -> None:
        """Keep a picture."""
        self._pixels[index] = pixels
        self._is_there[index] = 1  # last, for those who read it meanwhile

    def _take_arrays(self) -> None:
        channels, height, width = self._shape
        size = self._number * channels * height * width
        whole = self.memory.array((size + self._number,), np.uint8)
        self._pixels = whole[:size].reshape(self._number, height, width, channels)
        self._is_there = whole[size:]

    def __getstate__(self) -> tuple[SharedMemory, int, tuple[int, int, int]]:
        """For a process that is started, not forked."""
        return self.memory, self._number, self._shape

    def __setstate__(self, state: tuple[SharedMemory, int, tuple[int, int, int]]) -> None:
        self.memory, self._number, self._shape = state
        self._take_arrays()


def needed_bytes(number: int, shape: tuple[int, int, int]) -> int:
    """Memory for so many pictures, when all are decoded."""
    return number * (int(np.prod(shape)) + 1)


def affordable_bytes(limit_bytes: float | None = None) -> int:
    """What a cache may take of this node's memory; `limit_bytes`: what the job may use of it."""
    free = free_bytes()
    return (free if limit_bytes is None else min(free, int(limit_bytes))) // _SHARE
