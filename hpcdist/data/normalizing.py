"""From uint8 pixels to what a model takes: float32, normalised, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

_HALF = 127.5


class Normalization(Protocol):
    """Normalizes uint8 images [samples, channels, height, width]."""

    def __call__(self, images: Tensor) -> Tensor:
        """float32 of the images, on their device and in their memory format."""

    def into(self, out: Tensor, image: Tensor) -> None:
        """The same on the CPU for one image, without new memory."""


class ToUnitRange:
    """From -1 to 1, for photographs.

    Bit for bit what torchvision's ToTensor and Normalize(0.5, 0.5) make of each image: x / 255,
    minus 0.5, over 0.5 is x / 127.5 - 1, as a factor of two rounds nothing.
    """

    def __call__(self, images: Tensor) -> Tensor:
        # A tensor: by a number, CUDA multiplies with its reciprocal, which is another value.
        half = torch.full((), _HALF, device=images.device)
        return torch.div(images, half).sub_(1)

    def into(self, out: Tensor, image: Tensor) -> None:
        torch.div(image, _HALF, out=out)
        out.sub_(1)


@dataclass(frozen=True, kw_only=True)
class Standardization:
    """Mean 0 and deviation 1 over the training images, for data sets in memory."""

    mean: Tensor
    """[1, channels, 1, 1]"""
    deviation: Tensor

    def __call__(self, images: Tensor) -> Tensor:
        device = images.device
        return images.float().sub_(self.mean.to(device)).div_(self.deviation.to(device))

    def into(self, out: Tensor, image: Tensor) -> None:
        out.copy_(image).sub_(self.mean[0]).div_(self.deviation[0])


class BufferedNormalizer:
    """Normalises on the CPU into memory that is used again: new memory costs more than the work.

    What it gives is valid until the next but one is asked for.
    """

    def __init__(self, normalization: Normalization, memory_format: torch.memory_format) -> None:
        self._into = normalization.into
        self._memory_format = memory_format
        self._buffers = [torch.empty(0), torch.empty(0)]

    def __call__(self, images: Tensor) -> Tensor:
        """float32 of uint8 images on the CPU."""
        buffer = self._buffers.pop(0)
        if len(buffer) < len(images):
            buffer = torch.empty(images.shape, memory_format=self._memory_format)
        self._buffers.append(buffer)
        with one_thread():
            for out, image in zip(buffer, images, strict=False):  # one at a time, so that it
                self._into(out, image)  # stays in the CPU's cache
        return buffer[: len(images)]


@contextmanager
def one_thread() -> Iterator[None]:
    """Have torch compute in this thread alone.

    The threads meet after each of many short pieces of work. Where workers or others use the CPUs,
    one always waits for its turn: 64 images took 160 ms with two threads, 17 with one.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
