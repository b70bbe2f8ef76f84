"""Changes of colours of whole batches, with PIL's arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hpcdist.data.images.whole_batch.step import Shape, on_some, per_image

_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)
"""torchvision's numbers of the four changes."""
_COLOURS = 3


class Jitter:
    """ColorJitter: for each image the four changes in an order of its own."""

    names = ("1st", "2nd", "3rd", "4th", "brightness", "contrast", "saturation", "hue")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def values(self, parameters: Mapping[str, Any]) -> Sequence[float]:
        """The order, and the four factors; NaN for what is not changed."""
        factors = [parameters[f"{name}_factor"] for name in self.names[4:]]
        order: list[int] = parameters["fn_idx"].tolist()
        return [*order, *(math.nan if factor is None else factor for factor in factors)]

    def change(self, images: Tensor, values: Tensor) -> Tensor:
        """All changed, four times."""
        changed = images
        for turn in range(4):
            which = values[:, turn].long()
            factors = values[:, 4:].gather(1, which.unsqueeze(1)).squeeze(1)
            if not bool(factors[which != _HUE].isnan().all()):
                changed = _blended(changed, which, factors)
            if images.shape[-1] == _COLOURS:
                changed = _with_other_hues(changed, which, factors)
        return changed


def without_colours(images: Tensor) -> Tensor:
    """RandomGrayscale: images in grays, with as many channels as before."""
    return _gray(images).to(torch.uint8).expand(images.shape)


def inverted(images: Tensor) -> Tensor:
    """RandomInvert: negatives."""
    return 255 - images


def _blended(images: Tensor, which: Tensor, factors: Tensor) -> Tensor:
    """Brightness, contrast and saturation, each image as it is due.

    All are a blend with something duller: black, the mean of all grays, or each pixel's gray.
    """
    is_due = (which != _HUE) & ~factors.isnan()
    factor = per_image(torch.where(is_due, factors, 1.0), images)
    gray = _gray(images)
    # Not mean, for which GPUs multiply by a rounded 1 / n: the sum is exact, and halves are halves.
    total = gray.sum(dim=(1, 2, 3), keepdim=True, dtype=torch.float64)
    number = torch.full_like(total, gray[0].numel())
    mean = (total / number + 0.5).floor().float()
    dull = gray * per_image(is_due & (which == _SATURATION), images)
    dull = dull + mean * per_image(is_due & (which == _CONTRAST), images)
    # Not lerp, which rounds otherwise than PIL. What is cut off is what is behind the point.
    return dull.add(images.sub(dull).mul_(factor)).clamp_(0, 255).to(torch.uint8)


def _gray(images: Tensor) -> Tensor:
    """PIL's mode L as float32, [images, height, width, 1]."""
    if images.shape[-1] != _COLOURS:
        return images.float()
    red, green, blue = images.int().unbind(-1)
    gray = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16
    return gray.unsqueeze(-1).float()


def _with_other_hues(images: Tensor, which: Tensor, factors: Tensor) -> Tensor:
    """Images of which the hue is due, with another one; the others as they are."""
    due = ((which == _HUE) & ~factors.isnan()).nonzero().squeeze(1)
    if not len(due):
        return images
    rows = due.to(images.device, non_blocking=True)
    # As torchvision has it for PIL: whole levels of 255, beyond which they begin again.
    shift = (factors[due] * 255).to(torch.int32) % 256
    hue, saturation, value = _to_hsv(images.index_select(0, rows))
    turned = (hue + per_image(shift, images, torch.int32).squeeze(-1)) % 256
    return on_some(images, rows, _to_rgb(turned, saturation, value))


def _to_hsv(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hue, saturation and value as PIL has them: whole levels up to 255, as int32."""
    value, least = images.amax(-1), images.amin(-1)
    spread = (value - least).float()
    divisor = spread.clamp(min=1)
    missing = (value.unsqueeze(-1) - images).float() / divisor.unsqueeze(-1)
    red, green, blue = missing.double().unbind(-1)  # PIL goes back and forth between the precisions
    hue = torch.where(images[..., 1] == value, 2 + red - blue, 4 + green - red)
    hue = torch.where(images[..., 0] == value, blue - green, hue)
    hue = (hue.float().double() / 6 + 1) % 1
    levels = (hue.float().double() * 255).int()
    saturation = (spread / value.clamp(min=1).float()).double() * 255
    return levels * (spread > 0), saturation.int(), value.int()


def _to_rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """The way back, as uint8 [images, height, width, 3]."""
    sixth = hue.float() * 6 / 255
    sector = sixth.floor()
    rest, share = sixth - sector, saturation.float() / 255
    bright = value.float()
    low = (bright * (1 - share)).add_(0.5).floor_()
    falling = (bright * (1 - share * rest)).add_(0.5).floor_()
    rising = (bright * (1 - share * (1 - rest))).add_(0.5).floor_()
    levels = torch.stack((bright, low, falling, rising), dim=-1).to(torch.uint8)
    chosen = torch.tensor(_SECTORS).to(hue.device, non_blocking=True)[sector.long() % 6]
    return levels.gather(-1, chosen)


_SECTORS = (
    *((0, 3, 1), (2, 0, 1), (1, 0, 3)),
    *((1, 2, 0), (3, 1, 0), (0, 1, 2)),
)
"""Red, green, blue in each sixth of the circle: value (0), lowest (1), falling (2), rising (3)."""
