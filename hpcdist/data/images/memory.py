"""Memory that the ranks and workers of a node share: places for batches, and decoded pictures.

It is anonymous: it is gone with the last process that has it, however that ends, and no other run
ever sees it. Containers often allow only 64 MB in /dev/shm, where torch keeps shared tensors.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import reduction
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import DTypeLike, NDArray

from hpcdist.data.arrays import Shape
from hpcdist.data.images.samples import ImageSamples
from hpcdist.job.spec import Data
from hpcdist.machine.memory import free_bytes


class SharedMemory:
    """So many bytes, which forked children have too, and started ones when they are given it."""

    def __init__(self, num_bytes: int, descriptor: int | None = None) -> None:
        """New memory, or that of a descriptor, which is closed with this object."""
        if descriptor is None:
            descriptor = os.memfd_create("hpcdist", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, num_bytes)
        self._descriptor = descriptor
        self.num_bytes = num_bytes
        self._memory = mmap.mmap(descriptor, num_bytes)

    @classmethod
    def of_process(cls, pid: int, descriptor: int, num_bytes: int) -> SharedMemory:
        """The memory of another process of this user, by the number it has there; OSError."""
        path = f"/proc/{pid}/fd/{descriptor}"
        return cls(num_bytes, os.open(path, os.O_RDWR | os.O_CLOEXEC))

    @property
    def place(self) -> tuple[int, int, int]:
        """The arguments of `of_process`."""
        return os.getpid(), self._descriptor, self.num_bytes

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return the memory as an array, zero at first."""
        count = int(np.prod(shape))
        return np.frombuffer(self._memory, dtype, count).reshape(shape)

    def __getstate__(self) -> tuple[int, Any]:
        """Return what a process needs that is started, not forked."""
        return self.num_bytes, reduction.DupFd(self._descriptor)

    def __setstate__(self, state: tuple[int, Any]) -> None:
        num_bytes, duplicate = state
        SharedMemory.__init__(self, num_bytes, duplicate.detach())

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)  # the mapping lives as long as arrays of it do


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


_SHARE = 4
"""A cache may have one part in so many of the memory that is free."""


class DecodedCache:
    """Room for each picture of a part of a data set; filled by whoever decodes one first."""

    def __init__(self, number: int, shape: Shape, memory: SharedMemory | None = None) -> None:
        """Pictures of a shape (channels, height, width); new memory is taken up as it is filled."""
        channels, height, width = shape
        size = number * channels * height * width
        self.memory = memory or SharedMemory(_needed_bytes(number, shape))
        whole = self.memory.array((size + number,), np.uint8)
        self._pixels = whole[:size].reshape(number, height, width, channels)
        self._is_there = whole[size:]
        self._arguments = number, shape, self.memory

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what a process needs that is started, not forked."""
        return DecodedCache, self._arguments

    def get(self, index: int) -> NDArray[np.uint8] | None:
        """Return a picture [height, width, channels]; None where it is still to be decoded."""
        if not self._is_there[index]:
            return None
        pixels: NDArray[np.uint8] = self._pixels[index]
        return pixels

    def put(self, index: int, pixels: NDArray[np.uint8]) -> None:
        self._pixels[index] = pixels
        self._is_there[index] = 1  # last, for those who read it meanwhile


def _needed_bytes(number: int, shape: Shape) -> int:
    return number * (int(np.prod(shape)) + 1)


def share_parts(
    parts: list[ImageSamples],
    data: Data,
    *,
    node_rank: int,
    local_rank: int,
    mem_gb: float | None,
    note: Callable[[str], None],
) -> None:
    """Give parts of a data set their caches where `data` asks for them and they fit into `mem_gb`.

    Every rank calls this, once. One rank of each node makes the memory, and the others take it from
    there: each picture is decoded once per node.
    """
    if not parts or data.cache is False:
        return
    made = _make_caches(parts, data, mem_gb) if local_rank == 0 else []
    own = (node_rank, [cache.memory.place for cache in made])
    everybodys: list[Any] = [own]
    if dist.is_initialized():
        everybodys = [None] * dist.get_world_size()
        dist.all_gather_object(everybodys, own)
    places: list[tuple[int, int, int]] = next(
        (here for node, here in everybodys if node == node_rank and here), []
    )
    for part, place in zip(parts, places, strict=False):  # fewer, where not all fit
        if made:
            part.cache = made.pop(0)
            continue
        try:
            memory = SharedMemory.of_process(*place)
        except OSError as error:  # this rank does without
            reason = error.strerror or error
            note(f"decoded photographs are not shared with this rank: {reason}")
        else:
            part.cache = DecodedCache(len(part), part.decoded_shape, memory)


def _make_caches(parts: list[ImageSamples], data: Data, mem_gb: float | None) -> list[DecodedCache]:
    """Return caches for as many parts as fit into what the job may use on this node."""
    free = free_bytes()
    left = (free if mem_gb is None else min(free, int(mem_gb * 1e9))) // _SHARE
    made: list[DecodedCache] = []
    for part in parts:
        left -= _needed_bytes(len(part), part.decoded_shape)
        if left < 0 and data.cache == "auto":
            break
        made.append(DecodedCache(len(part), part.decoded_shape))
    return made
