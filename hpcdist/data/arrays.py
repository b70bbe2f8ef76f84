"""Images and labels as tensors: a data set in memory, or a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from hpcdist.data.images.samples import FastImages

Shape = tuple[int, int, int]
"""(channels, height, width)"""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Images and their labels, on one device."""

    images: Tensor
    """[samples, channels, height, width]: float32, normalised; or uint8 on the way to that."""
    labels: Tensor
    """int64, [samples]."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> Shape:
        """(channels, height, width) of each image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return images and labels of a whole batch; called by torch's DataLoader."""
        batch = self.at(torch.tensor(indices))
        return batch.images, batch.labels

    def probe(self, number: int) -> Samples:
        """Return the first samples, to try a model with."""
        return self.between(0, number)

    def at(self, indices: Tensor) -> Samples:
        """Return the samples with these indices, as one copy."""
        images = self.images.index_select(0, indices)
        return Samples(images=images, labels=self.labels.index_select(0, indices))

    def between(self, begin: int, end: int) -> Samples:
        """Return the samples from `begin` up to `end`, without a copy."""
        return Samples(images=self.images[begin:end], labels=self.labels[begin:end])

    def to(
        self,
        device: torch.device,
        *,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> Samples:
        """Return the same samples on a device; images in a memory format."""
        return Samples(
            images=self.images.to(device, non_blocking=non_blocking, memory_format=memory_format),
            labels=self.labels.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> Samples:
        """Return the same samples in page-locked memory; called by torch's DataLoader."""
        return replace(self, images=self.images.pin_memory(), labels=self.labels.pin_memory())


_HALF = 127.5


def to_unit_range(images: Tensor, out: Tensor | None = None) -> Tensor:
    """Return uint8 images of photographs from -1 to 1: float32, on their device, in their memory
    format, or in `out`.

    Bit for bit what torchvision's ToTensor and Normalize(0.5, 0.5) make of each image: x / 255,
    minus 0.5, over 0.5 is x / 127.5 - 1, as a factor of two rounds nothing.
    """
    # A tensor: by a number, CUDA multiplies with its reciprocal, which is another value.
    half = torch.full((), _HALF, device=images.device)
    return torch.div(images, half, out=out).sub_(1)


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set: whole in memory, or as image files that are read when they are needed."""

    train: Samples | FastImages
    test: Samples | FastImages
    num_classes: int

    @property
    def image_shape(self) -> Shape:
        return self.train.shape

    def first(self, train_samples: int | None, test_samples: int | None) -> DataSet:
        """Return only the first samples of each part, which are in memory; None: all."""
        assert isinstance(self.train, Samples)
        assert isinstance(self.test, Samples)
        return replace(
            self,
            train=self.train.between(0, train_samples or len(self.train)),
            test=self.test.between(0, test_samples or len(self.test)),
        )


def make_data_set(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], num_classes: int
) -> DataSet:
    """Return a data set from uint8 images [samples, height, width] and their labels.

    Pixels are brought to mean 0 and deviation 1 over the training images, once for all epochs.
    """
    train_pixels, test_pixels = (images.unsqueeze(1).float() for images in (train[0], test[0]))
    mean, deviation = train_pixels.mean(), train_pixels.std()
    return DataSet(
        train=Samples(images=train_pixels.sub_(mean).div_(deviation), labels=train[1].long()),
        test=Samples(images=test_pixels.sub_(mean).div_(deviation), labels=test[1].long()),
        num_classes=num_classes,
    )
