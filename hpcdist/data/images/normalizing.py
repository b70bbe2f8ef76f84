"""From uint8 pixels to what a model takes: float32 from -1 to 1, a batch at a time.

Bit for bit what torchvision's ToTensor and Normalize(0.5, 0.5) make of each image: x / 255, minus
0.5, over 0.5 is x / 127.5 - 1, as a factor of two rounds nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

_HALF = 127.5


def normalize(images: Tensor) -> Tensor:
    """float32 of uint8 images, on the same device, in the same memory format."""
    return torch.div(images, _HALF).sub_(1)


class Normalizer:
    """Normalises on the CPU into memory that is used again: new memory costs more than the work.

    What it gives is valid until it has given as many batches as it has buffers.
    """

    def __init__(self, memory_format: torch.memory_format, num_buffers: int = 2) -> None:
        self._memory_format = memory_format
        self._buffers: list[Tensor | None] = [None] * num_buffers
        self._turn = 0

    def __call__(self, images: Tensor) -> Tensor:
        """float32 of uint8 images on the CPU."""
        out = self._buffer(images)
        for number in range(len(images)):  # one at a time, so that it stays in the CPU's cache
            torch.div(images[number], _HALF, out=out[number])
            out[number].sub_(1)
        return out

    def _buffer(self, images: Tensor) -> Tensor:
        self._turn = (self._turn + 1) % len(self._buffers)
        buffer = self._buffers[self._turn]
        if buffer is None or len(buffer) < len(images):
            buffer = torch.empty(images.shape, memory_format=self._memory_format)
            self._buffers[self._turn] = buffer
        return buffer[: len(images)]
