"""The images of a benchmark: of a data set, repeated to size, or random; on the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hpcdist.data.catalog import load_data
from hpcdist.job.spec import InferenceJob
from hpcdist.training.model.models import Shape

_MOST_READ = 1024
"""Of a data set; larger batches repeat them."""


@dataclass(frozen=True, kw_only=True)
class Images:
    """Images to take batches from."""

    images: Tensor
    """[images, channels, height, width]"""
    num_classes: int

    @property
    def shape(self) -> Shape:
        """(channels, height, width) of an image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def batch(self, size: int, memory_format: torch.memory_format, *, pin: bool) -> Tensor:
        """The first `size` images; begun again from the first where there are fewer."""
        indices = torch.arange(size) % len(self.images)
        batch = self.images[indices].contiguous(memory_format=memory_format)
        return batch.pin_memory() if pin else batch


def load_images(job: InferenceJob) -> Images:
    """The images that the job names, the same in every rank."""
    setting = job.inference
    if setting.image_shape is None:
        data = load_data(job.data)
        number = min(len(data.test), max(setting.batch_sizes), _MOST_READ)
        return Images(images=data.test.probe(number).images, num_classes=data.num_classes)
    generator = torch.Generator().manual_seed(setting.seed)
    # One image is enough for a batch: how fast a model is does not depend on what it sees.
    images = torch.randn((1, *setting.image_shape), generator=generator)
    return Images(images=images, num_classes=setting.num_classes)
