"""One transform of whole batches: what it draws for each image, and what it then does to all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

Shape = tuple[int, int, int]
"""(channels, height, width)"""


class BatchStep(Protocol):
    """A transform of images [images, height, width, channels] of uint8, on any device.

    Between two steps pixels are uint8, as between two transforms of PIL's images: what differs by
    rounding in one does not grow in the next.
    """

    @property
    def names(self) -> Sequence[str]:
        """Of the values that are drawn for an image."""

    @property
    def shape(self) -> Shape:
        """Of the images that it makes."""

    def values(self, parameters: Mapping[str, Any]) -> Sequence[float]:
        """What torchvision's transform has drawn, as numbers."""

    def change(self, images: Tensor, values: Tensor) -> Tensor:
        """New images; `values`: float64 on the CPU, [images, names]."""


class Plain:
    """A transform that draws nothing but whether it is done."""

    names = ()

    def __init__(self, shape: Shape, change: Callable[[Tensor], Tensor]) -> None:
        """`change`: what it makes of images."""
        self.shape = shape
        self._change = change

    def values(self, parameters: Mapping[str, Any]) -> Sequence[float]:
        """Nothing."""
        del parameters
        return ()

    def change(self, images: Tensor, values: Tensor) -> Tensor:
        """All of them changed."""
        del values
        return self._change(images)


def per_image(values: Tensor, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers, one per image, beside its pixels: on their device, [images, 1, 1, 1]."""
    beside = values.to(dtype).reshape(-1, 1, 1, 1)
    return beside.to(images.device, non_blocking=True)


def on_some(images: Tensor, rows: Tensor, changed: Tensor) -> Tensor:
    """The images with some of them, by their numbers, in exchange for changed ones."""
    return images.index_copy(0, rows, changed)
