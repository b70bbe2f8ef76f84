"""Flips, crops, and affine and perspective transforms of whole batches, with PIL's arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hpcdist.data.images.whole_batch.sampling import fill_colour, sample_bilinear, sample_nearest
from hpcdist.data.images.whole_batch.step import Shape

_FRACTION_BITS = 40
"""Of numbers with a fixed point."""
_PIL_BITS = 16
_PIL_MOST = 32768.0
"""PIL computes with 16 bits behind the point where all coordinates are below this."""


class Crop:
    """RandomCrop; padding is what lies beyond the image."""

    names = ("left", "top")

    def __init__(self, shape: Shape, transform: Any) -> None:
        channels = shape[0]
        self._height, self._width = transform.size
        self.shape = (channels, self._height, self._width)
        self._fill = fill_colour(transform.fill, channels)

    def values(self, parameters: Mapping[str, Any]) -> Sequence[float]:
        """The corner, by the image without its padding."""
        left, top, *_ = parameters["padding"]
        return parameters["left"] - left, parameters["top"] - top

    def change(self, images: Tensor, values: Tensor) -> Tensor:
        """All cropped."""
        left, top = _beside_pixels(values.long(), images)
        size = (len(images), self._height, self._width)
        columns = torch.arange(self._width, device=images.device) + left
        rows = torch.arange(self._height, device=images.device).unsqueeze(1) + top
        return sample_nearest(images, columns.expand(size), rows.expand(size), self._fill)


class Affine:
    """RandomAffine."""

    names = ("angle", "x", "y", "scale", "shear_x", "shear_y")

    def __init__(self, shape: Shape, transform: Any) -> None:
        self.shape = shape
        self._centre = transform.center or (shape[2] * 0.5, shape[1] * 0.5)
        self._sample = _sampler(transform, shape)

    def values(self, parameters: Mapping[str, Any]) -> Sequence[float]:
        """Degrees, pixels, a factor, degrees."""
        shear = parameters["shear"]
        return parameters["angle"], *parameters["translate"], parameters["scale"], *shear

    def change(self, images: Tensor, values: Tensor) -> Tensor:
        """All turned, moved, scaled and sheared, with the centre where it is."""
        turn, move_x, move_y, scale, shear_x, shear_y = values.T
        turn, shear_x, shear_y = turn.deg2rad(), shear_x.deg2rad(), shear_y.deg2rad()
        # Turned, sheared along y and then x; the inverse, as it is asked where pixels come from.
        cos, sin = (turn - shear_y).cos() / shear_y.cos(), (turn - shear_y).sin() / shear_y.cos()
        across = [cos * shear_x.tan() + turn.sin(), turn.cos() - sin * shear_x.tan()]
        matrix = torch.stack((across[1], across[0], -sin, cos), dim=1) / scale.unsqueeze(1)
        return self._sample(images, _about(matrix, self._centre, (move_x, move_y)))


class Rotation:
    """RandomRotation, of images that keep their size."""

    names = ("angle",)

    def __init__(self, shape: Shape, transform: Any) -> None:
        self.shape = shape
        self._centre = transform.center or (shape[2] * 0.5, shape[1] * 0.5)
        self._sample = _sampler(transform, shape)

    def values(self, parameters: Mapping[str, Any]) -> Sequence[float]:
        """Degrees, against the clock."""
        return (parameters["angle"],)

    def change(self, images: Tensor, values: Tensor) -> Tensor:
        """All turned."""
        turn = -values[:, 0].deg2rad()
        matrix = torch.stack((turn.cos(), turn.sin(), -turn.sin(), turn.cos()), dim=1)
        return self._sample(images, _about(matrix, self._centre, (0.0, 0.0)))


class Perspective:
    """RandomPerspective."""

    names = tuple(f"coefficient_{number}" for number in range(8))

    def __init__(self, shape: Shape, transform: Any) -> None:
        self.shape = shape
        self._is_nearest = _is_nearest(transform)
        self._fill = fill_colour(transform.fill, shape[0])

    def values(self, parameters: Mapping[str, Any]) -> Sequence[float]:
        """PIL's coefficients."""
        values: Sequence[float] = parameters["coefficients"]
        return values

    def change(self, images: Tensor, values: Tensor) -> Tensor:
        """All seen from elsewhere."""
        _, height, width, _ = images.shape
        x = torch.arange(width, device=images.device, dtype=torch.float64) + 0.5
        y = torch.arange(height, device=images.device, dtype=torch.float64).unsqueeze(1) + 0.5
        a, b, c, d, e, f, g, h = _beside_pixels(values, images)
        depth = g * x + h * y + 1
        points = (a * x + b * y + c) / depth, (d * x + e * y + f) / depth
        if self._is_nearest:
            columns, rows = (point.floor().long() for point in points)
            return sample_nearest(images, columns, rows, self._fill)
        return sample_bilinear(images, *points, self._fill)


class _AffineSampler:
    """Images through matrices [images, 6], from where a pixel is to where it comes from."""

    def __init__(self, fill: Sequence[int], *, nearest: bool) -> None:
        self._fill = fill
        self._is_nearest = nearest

    def __call__(self, images: Tensor, matrices: Tensor) -> Tensor:
        halves = matrices[:, [0, 3]] * 0.5 + matrices[:, [1, 4]] * 0.5
        begins = matrices[:, [2, 5]] + halves  # where the middle of the first pixel comes from
        begun = torch.stack(
            (
                *(matrices[:, 0], matrices[:, 1], begins[:, 0]),
                *(matrices[:, 3], matrices[:, 4], begins[:, 1]),
            ),
            dim=1,
        )
        if self._is_nearest:
            x, y = _walk(images, _with_fixed_point(begun, images.shape[1:3]))
            return sample_nearest(images, x >> _FRACTION_BITS, y >> _FRACTION_BITS, self._fill)
        return sample_bilinear(images, *_walk(images, begun), self._fill)


def _sampler(transform: Any, shape: Shape) -> _AffineSampler:
    return _AffineSampler(fill_colour(transform.fill, shape[0]), nearest=_is_nearest(transform))


def _is_nearest(transform: Any) -> bool:
    kind = transform.interpolation
    return getattr(kind, "value", kind) in {"nearest", 0}


def _about(
    matrix: Tensor, centre: Sequence[float], move: tuple[Tensor | float, Tensor | float]
) -> Tensor:
    """[images, 6] of [images, 4]: about a centre, after a move."""
    x, y = -centre[0] - move[0], -centre[1] - move[1]
    a, b, c, d = matrix.T
    return torch.stack((a, b, a * x + b * y + centre[0], c, d, c * x + d * y + centre[1]), dim=1)


def _walk(images: Tensor, matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Where each pixel comes from: begun at the first, a step further by column and row."""
    _, height, width, _ = images.shape
    x = torch.arange(width, device=images.device)
    y = torch.arange(height, device=images.device).unsqueeze(1)
    a, b, c, d, e, f = _beside_pixels(matrices, images)
    return a * x + (b * y + c), d * x + (e * y + f)


def _beside_pixels(values: Tensor, images: Tensor) -> Sequence[Tensor]:
    """Each of the values [images, 1, 1]."""
    return values.to(images.device, non_blocking=True).T[..., None, None].unbind()


def _with_fixed_point(matrices: Tensor, size: Sequence[int]) -> Tensor:
    """As whole numbers, rounded where PIL rounds: so on every device the same pixels are nearest.

    PIL has 16 bits behind the point, but double precision where there is no turn, or where
    coordinates are too large for that.
    """
    height, width = size
    corners = torch.tensor([[x, y, 1.0] for x in (0, width) for y in (0, height)])
    reach = matrices.reshape(-1, 2, 3) @ corners.double().T
    is_coarse = (reach.abs() < _PIL_MOST).all(-1).all(-1) & (matrices[:, [1, 3]] != 0).any(-1)
    coarse = (matrices * 2**_PIL_BITS + 0.5).floor() * 2 ** (_FRACTION_BITS - _PIL_BITS)
    fine = (matrices * 2**_FRACTION_BITS).round()
    limit = math.ldexp(1.0, 61)
    return torch.where(is_coarse.unsqueeze(1), coarse, fine).clamp(-limit, limit).long()
