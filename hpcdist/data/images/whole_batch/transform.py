"""A list of transforms for whole batches: what each image's seed draws, and what is then done.

What is drawn is what torchvision's own transforms draw for the same seed, one image after the
other. Drawing takes the CPU some microseconds per image, so that workers do it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcdist.base.errors import JobError
from hpcdist.data.images.transforms import Step, kept_random_state
from hpcdist.data.images.whole_batch.choice import Division
from hpcdist.data.images.whole_batch.colours import Jitter, inverted, without_colours
from hpcdist.data.images.whole_batch.filters import Blur, Erasure
from hpcdist.data.images.whole_batch.geometry import Affine, Crop, Perspective, Rotation
from hpcdist.data.images.whole_batch.resizing import ResizedCrop
from hpcdist.data.images.whole_batch.step import BatchStep, Plain, Shape, on_some
from hpcdist.data.normalizing import one_thread

_AT_A_TIME = {"cpu": 8, "cuda": 64}
"""Images: they stay in a CPU's cache, or leave a GPU's memory to the model."""

_MAKERS: dict[str, Callable[[Shape, Any], BatchStep]] = {
    "ColorJitter": lambda shape, _: Jitter(shape),
    "GaussianBlur": Blur,
    "RandomAffine": Affine,
    "RandomCrop": Crop,
    "RandomErasing": Erasure,
    "RandomGrayscale": lambda shape, _: Plain(shape, without_colours),
    "RandomHorizontalFlip": lambda shape, _: Plain(shape, lambda images: images.flip(2)),
    "RandomInvert": lambda shape, _: Plain(shape, inverted),
    "RandomPerspective": Perspective,
    "RandomResizedCrop": ResizedCrop,
    "RandomRotation": Rotation,
    "RandomVerticalFlip": lambda shape, _: Plain(shape, lambda images: images.flip(1)),
}


class _Drawn:
    """One step, and how torchvision draws for it."""

    def __init__(self, step: Step, shape: Shape) -> None:
        """`shape`: of the images that it is given."""
        from torchvision.transforms import v2

        self._transform = getattr(v2, step.name)(**step.arguments)
        self._chance: float | None = getattr(self._transform, "p", None)
        # What is asked of it is its size alone. No memory stands behind it.
        self._image = torch.empty((1, 1, 1), dtype=torch.uint8).expand(shape)
        self.step = _MAKERS[step.name](shape, self._transform)
        self.num_values = len(self.step.names)

    def draw(self) -> Sequence[float]:
        """1 and the values of an image; all are 0 for one that is left as it is."""
        if self._chance is not None and bool(torch.rand(1) >= self._chance):
            return [0.0] * (1 + self.num_values)
        return self.draw_change()

    def draw_change(self) -> Sequence[float]:
        """1 and the values of an image that is not left as it is."""
        return 1.0, *self.step.values(self._transform.make_params([self._image]))

    def change(self, images: Tensor, drawn: Tensor) -> Tensor:
        """The images, with what was drawn for each."""
        due = drawn[:, 0].nonzero().squeeze(1)
        if len(due) == len(images):
            return self.step.change(images, drawn[:, 1:])
        if not len(due):
            return images
        rows = due.to(images.device, non_blocking=True)
        changed = self.step.change(images.index_select(0, rows), drawn[due, 1:])
        return on_some(images, rows, changed)


def make_batch_transform(division: Division, shape: Shape) -> BatchTransform | None:
    """What is done to batches of images of a shape; None: nothing."""
    return BatchTransform(division.rest, shape) if division.rest else None


class BatchTransform:
    """The transforms that are done to whole batches."""

    def __init__(self, steps: Sequence[Step], shape: Shape) -> None:
        """`shape`: of the images that it is given; JobError where they are not such that it can."""
        self._steps: list[_Drawn] = []
        self.shape = shape
        """(channels, height, width) of the images that it makes."""
        try:
            for step in steps:
                self._steps.append(_Drawn(step, self.shape))
                self.shape = self._steps[-1].step.shape
            self._try(shape)
        except (ValueError, RuntimeError, TypeError) as error:
            raise JobError(
                f"data.transform fails with images of {shape[2]} x {shape[1]} pixels: {error}",
                hint="its arguments must fit the images, or data.size be such that they do",
            ) from None

    def draw(self, seeds: Sequence[int]) -> NDArray[np.float64]:
        """Numbers for the images with these seeds, [images, numbers]; torch's generator is kept."""
        with kept_random_state():
            return np.array([self._draw(seed) for seed in seeds], dtype=np.float64)

    def apply(self, images: Tensor, drawn: NDArray[np.float64]) -> Tensor:
        """Changed images of uint8 [images, channels, height, width], where channels come last."""
        pixels = images.permute(0, 2, 3, 1)
        numbers = torch.from_numpy(drawn)
        size = _AT_A_TIME[images.device.type]
        with one_thread() if images.device.type == "cpu" else nullcontext():
            parts = [
                self._change(pixels[begin : begin + size], numbers[begin : begin + size])
                for begin in range(0, len(images), size)
            ]
        changed = parts[0] if len(parts) == 1 else torch.cat(parts)
        return changed.permute(0, 3, 1, 2)

    def _draw(self, seed: int) -> list[float]:
        torch.default_generator.manual_seed(seed)
        return [value for step in self._steps for value in step.draw()]

    def _change(self, pixels: Tensor, drawn: Tensor) -> Tensor:
        begin = 0
        for step in self._steps:
            end = begin + 1 + step.num_values
            pixels = step.change(pixels, drawn[:, begin:end])
            begin = end
        return pixels

    def _try(self, shape: Shape) -> None:
        """Each step on an image, those too that are seldom done."""
        with kept_random_state():
            torch.default_generator.manual_seed(0)
            drawn = [value for step in self._steps for value in step.draw_change()]
        self.apply(torch.zeros((1, *shape), dtype=torch.uint8), np.array([drawn]))
