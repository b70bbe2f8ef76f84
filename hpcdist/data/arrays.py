"""Images and labels in memory: what every data set is loaded into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from hpcdist.base.text import one_line

if TYPE_CHECKING:
    from hpcdist.data.images.samples import FastImages, PixelSamples

Shape = tuple[int, int, int]
"""(channels, height, width)"""

IGNORED_LABEL = -100
"""The label of what is no sample: torch's losses leave it out."""


@dataclass(frozen=True)
class BadFile:
    """A file that shows no picture."""

    index: int
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{one_line(self.path)} {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Images and their labels, on one device."""

    images: Tensor
    """[samples, channels, height, width]: float32, normalised; or uint8 on the way to that."""
    labels: Tensor
    """int64, [samples]."""
    bad: tuple[BadFile, ...] = ()
    """Files among them that show no picture."""

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
        """Return the samples with these indices, as one copy, in the same memory format.

        index_select always gives contiguous tensors, here of channels_last images as [samples,
        height, width, channels]: whole images are copied, which takes a third of the time of a
        select across the strides (64 of 3 x 32 x 32, one CPU thread).
        """
        if self.images.is_contiguous():  # as all images of one channel are
            images = self.images.index_select(0, indices)
        else:
            images = self.images.permute(0, 2, 3, 1).index_select(0, indices).permute(0, 3, 1, 2)
        return Samples(images=images, labels=self.labels.index_select(0, indices))

    def between(self, begin: int, end: int) -> Samples:
        """Return the samples from `begin` up to `end`, without a copy."""
        return Samples(images=self.images[begin:end], labels=self.labels[begin:end])

    def scaled(self, shape: tuple[int, int, int]) -> Samples:
        """Return the same samples with images of another height and width."""
        if shape[1:] == self.shape[1:]:
            return self
        images = functional.interpolate(
            self.images, shape[1:], mode="bilinear", antialias=True, align_corners=False
        )
        return Samples(images=images, labels=self.labels)

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


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set: whole in memory, or as image files that are read when they are needed."""

    train: Samples | FastImages | PixelSamples
    test: Samples | FastImages
    num_classes: int
    pixels: Tensor | None = None
    """The training images as a transform takes them, of a data set in memory: uint8, [samples,
    height, width] or [samples, height, width, channels]."""
    standardization: Standardization | None = None
    """The normalization of these images."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
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
    """Return a data set from uint8 images and their labels.

    Images are [samples, height, width], or [samples, height, width, channels]. Pixels are brought
    to mean 0 and deviation 1 over each channel of the training images, once for all epochs.
    """
    train_pixels = _channels_first(train[0]).float()
    mean = train_pixels.mean((0, 2, 3), keepdim=True)
    deviation = train_pixels.std((0, 2, 3), keepdim=True)
    standardization = Standardization(mean=mean, deviation=deviation)
    test_pixels = _channels_first(test[0])
    return DataSet(
        train=Samples(images=standardization(train_pixels), labels=train[1].long()),  # in place
        test=Samples(images=standardization(test_pixels), labels=test[1].long()),
        num_classes=num_classes,
        pixels=train[0],
        standardization=standardization,
    )


def _channels_first(images: Tensor) -> Tensor:
    """[samples, channels, height, width]."""
    if images.dim() == 3:  # one channel
        return images.unsqueeze(1)
    return images.permute(0, 3, 1, 2).contiguous()
