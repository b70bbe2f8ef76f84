"""Blurs and erasures of whole batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hpcdist.data.images.whole_batch.step import Shape, per_image


class Blur:
    """GaussianBlur: along the rows, and then the columns.

    Sums of shifted images, not a convolution: what CUDA's libraries make of that depends on the
    batch's size, and on whether TF32 is allowed, and a pixel must depend on its image alone.
    """

    names = ("sigma_x", "sigma_y")

    def __init__(self, shape: Shape, transform: Any) -> None:
        self.shape = shape
        self._width, self._height = transform.kernel_size

    def values(self, parameters: Mapping[str, Any]) -> Sequence[float]:
        """Standard deviations, in pixels."""
        values: Sequence[float] = parameters["sigma"]
        return values

    def change(self, images: Tensor, values: Tensor) -> Tensor:
        """All blurred; beyond its edges an image is seen as in a mirror."""
        edges = [self._width // 2, self._width // 2, self._height // 2, self._height // 2]
        planes = functional.pad(images.permute(0, 3, 1, 2).float(), edges, mode="reflect")
        sigmas = values.float()
        planes = _weighted_sum(planes, 3, _gaussian(self._width, sigmas[:, 0]))
        planes = _weighted_sum(planes, 2, _gaussian(self._height, sigmas[:, 1]))
        return planes.round_().to(torch.uint8).permute(0, 2, 3, 1)


class Erasure:
    """RandomErasing, with a colour."""

    names = ("left", "top", "width", "height")

    def __init__(self, shape: Shape, transform: Any) -> None:
        self.shape = shape
        self._colour = [int(level) for level in transform.value]

    def values(self, parameters: Mapping[str, Any]) -> Sequence[float]:
        """The part that is erased, in pixels; none where no part would do."""
        if parameters["v"] is None:
            return 0, 0, 0, 0
        return parameters["j"], parameters["i"], parameters["w"], parameters["h"]

    def change(self, images: Tensor, values: Tensor) -> Tensor:
        """A part of each in one colour."""
        _, height, width, _ = images.shape
        left, top, right, bottom = (
            per_image(edge, images, torch.int64)
            for edge in (*values.T[:2], values[:, 0] + values[:, 2], values[:, 1] + values[:, 3])
        )
        x = torch.arange(width, device=images.device).reshape(-1, 1)
        y = torch.arange(height, device=images.device).reshape(-1, 1, 1)
        erased = (x >= left) & (x < right) & (y >= top) & (y < bottom)
        colour = torch.tensor(self._colour, dtype=torch.uint8)
        return torch.where(erased, colour.to(images.device, non_blocking=True), images)


def _weighted_sum(planes: Tensor, dimension: int, weights: Tensor) -> Tensor:
    """Each pixel and those after it in a dimension, as far as there are weights [images, size]."""
    length = planes.shape[dimension] - weights.shape[1] + 1
    parts = (
        planes.narrow(dimension, begin, length) * per_image(weight, planes)
        for begin, weight in enumerate(weights.T)
    )
    total = next(parts)
    for part in parts:
        total += part
    return total


def _gaussian(size: int, sigmas: Tensor) -> Tensor:
    """Weights [sigmas, size], at torchvision's places."""
    limit = (size - 1) / (2 * math.sqrt(2))
    places = torch.linspace(-limit, limit, steps=size)
    return (places / sigmas.unsqueeze(1)).square().neg().softmax(dim=1)
