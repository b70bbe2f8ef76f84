"""Pixels of a whole batch from anywhere in its images, as PIL takes them.

PIL's pixel (column, row) is the square from there to (column + 1, row + 1). What comes from beyond
the image is filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_ALMOST = 2**-9
"""PIL cuts off what is behind the point, of sums that it has in double precision: those of single
precision that fall this little short of a whole number are one."""


def fill_colour(fill: Any, channels: int) -> list[int]:
    """The argument `fill` of a transform, a number per channel; ValueError for another count."""
    numbers = fill if isinstance(fill, Sequence) and not isinstance(fill, str) else [fill or 0]
    if len(numbers) not in {1, channels}:
        raise ValueError(f"fill has {len(numbers)} numbers, and images have {channels} channels")
    levels = [min(max(int(number), 0), 255) for number in numbers]  # as PIL cuts them off
    return levels * channels if len(levels) == 1 else levels


def sample_nearest(images: Tensor, columns: Tensor, rows: Tensor, fill: Sequence[int]) -> Tensor:
    """The pixels at whole numbers [images, height, width]."""
    number, height, width, channels = images.shape
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    first = torch.arange(number, device=images.device).mul_(height * width).reshape(-1, 1, 1)
    places = (rows * width + columns).mul_(inside).add_(first)
    found = images.reshape(-1, channels).index_select(0, places.reshape(-1))
    return _filled(found.reshape(*columns.shape, channels), inside, fill)


def sample_bilinear(images: Tensor, x: Tensor, y: Tensor, fill: Sequence[int]) -> Tensor:
    """The pixels at points [images, height, width] of float64, between the four around each."""
    _, height, width, _ = images.shape
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    grid = torch.stack((x * (2 / width) - 1, y * (2 / height) - 1), dim=-1).float()
    pixels = functional.grid_sample(
        images.permute(0, 3, 1, 2).float(),
        grid,
        mode="bilinear",
        padding_mode="border",
        align_corners=False,
    )
    found = (pixels + _ALMOST).to(torch.uint8).permute(0, 2, 3, 1)
    return _filled(found, inside, fill)


def _filled(pixels: Tensor, inside: Tensor, fill: Sequence[int]) -> Tensor:
    if not any(fill):
        return pixels * inside.unsqueeze(-1)
    colour = torch.tensor(fill, dtype=torch.uint8).to(pixels.device, non_blocking=True)
    return torch.where(inside.unsqueeze(-1), pixels, colour)
