"""Crops of whole batches, each scaled to one size: two products of matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hpcdist.data.images.whole_batch.step import Shape

_WHOLE = 2.0**22
"""PIL's weights are whole numbers, of which this stands for 1."""


class ResizedCrop:
    """RandomResizedCrop.

    Along the rows first, as Pillow does; its newer versions take the columns first where that is
    less work, and round there. In double precision, where products and sums of whole numbers are
    exact: it does not matter in which order a library adds up.
    """

    names = ("left", "top", "width", "height")

    def __init__(self, shape: Shape, transform: Any) -> None:
        height, width = transform.size
        self.shape = (shape[0], height, width)

    def values(self, parameters: Mapping[str, Any]) -> Sequence[float]:
        """The part that is taken, in pixels."""
        return [parameters[name] for name in self.names]

    def change(self, images: Tensor, values: Tensor) -> Tensor:
        """All cropped and scaled."""
        _, height, width = self.shape
        left, top, crop_width, crop_height = values.to(images.device, non_blocking=True).T
        along_rows = _weights(left, crop_width, images.shape[2], width)
        along_columns = _weights(top, crop_height, images.shape[1], height)
        pixels = images.permute(0, 3, 1, 2).double()
        narrowed = _rounded(pixels @ along_rows.transpose(1, 2).unsqueeze(1))
        scaled = _rounded(along_columns.unsqueeze(1) @ narrowed)
        return scaled.to(torch.uint8).permute(0, 2, 3, 1)


def _weights(begin: Tensor, length: Tensor, before: int, after: int) -> Tensor:
    """[images, after, before]: how much each new pixel takes of each old one of a crop, in whole
    2 ** -22.

    A triangle about the place that it comes from, two old pixels wide, or two new ones where these
    are wider; pixels beyond the crop have no part.
    """
    begin, length = begin.reshape(-1, 1, 1), length.reshape(-1, 1, 1)
    scale = length / after
    reach = scale.clamp(min=1)
    new = torch.arange(after, device=begin.device, dtype=torch.float64).unsqueeze(1) + 0.5
    old = torch.arange(before, device=begin.device, dtype=torch.float64) + 0.5 - begin
    weights = (1 - ((old - new * scale) / reach).abs()).clamp(min=0)
    weights = weights * ((old > 0) & (old < length))
    whole = weights / weights.sum(-1, keepdim=True) * _WHOLE
    return whole.add_(0.5).floor_()


def _rounded(pixels: Tensor) -> Tensor:
    """Whole levels of sums of levels times weights; half a level is rounded up."""
    return pixels.mul_(1 / _WHOLE).add_(0.5).floor_().clamp_(0, 255)
