"""The data sets that a job compares, opened once each, and the ways of loading from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from hpcdist.bench.dataload.passes import Batches
from hpcdist.bench.dataload.stages import image_stages, memory_stages, pixel_stages
from hpcdist.data.arrays import Samples
from hpcdist.data.batches import make_batches
from hpcdist.data.catalog import find_images, load_data
from hpcdist.data.images.decoding import no_warnings
from hpcdist.data.images.device_transforms import is_on_device
from hpcdist.data.images.memory import share_parts
from hpcdist.data.images.samples import BadFile, ImageSamples, PixelSamples
from hpcdist.job.spec import Data
from hpcdist.rank.context import RankContext


class Source:
    """Training images, loaded in one way."""

    def __init__(
        self,
        data: Data,
        samples: Samples | ImageSamples | PixelSamples,
        num_classes: int,
        tell_bad: Callable[[BadFile], None],
    ) -> None:
        """`tell_bad` hears of files that show no picture."""
        self._data = data
        self._samples = samples
        self.num_classes = num_classes
        self._tell_bad = tell_bad
        self.is_kept = False
        """Decoded pictures were kept when it was opened last."""

    def __len__(self) -> int:
        return len(self._samples)

    def paths(self, indices: Sequence[int]) -> list[str]:
        """Of these samples' files; none where the data set is in memory."""
        if isinstance(self._samples, ImageSamples):
            return [self._samples.path(index) for index in indices]
        return []

    def stages(self, indices: Sequence[int], alive: Callable[[], None]) -> dict[str, float]:
        """Seconds per image in each stage before the hand-over."""
        if isinstance(self._samples, ImageSamples):
            with no_warnings():
                return image_stages(self._samples, indices, alive)
        if isinstance(self._samples, PixelSamples):
            return pixel_stages(self._samples, indices)
        return memory_stages(self._samples, indices)

    @contextmanager
    def open(self, context: RankContext) -> Iterator[Batches]:
        """Batches as a training takes them; workers are made with the first one.

        Decoded pictures are kept as the job says, and forgotten at the end. All ranks open it.
        """
        images = [self._samples] if isinstance(self._samples, ImageSamples) else []
        mem_gb = context.job.resources.mem_gb
        share_parts(images, context, self._data, mem_gb=mem_gb, has_group=True)
        self.is_kept = any(each.cache is not None for each in images)
        memory_format = (
            torch.channels_last
            if isinstance(self._samples, ImageSamples)  # the format in which they are decoded
            else torch.contiguous_format
        )
        batches = make_batches(
            self._samples,
            torch.device(context.device),
            self._data,
            memory_format=memory_format,
            tell_bad=self._tell_bad,
        )
        try:
            yield batches
        finally:
            batches.close()
            for each in images:
                each.cache = None


class Sources:
    """What is listed or loaded once for all ways of loading that share it."""

    def __init__(self, seed: int, device: str, tell_bad: Callable[[BadFile], None]) -> None:
        """`tell_bad` hears of each file that shows no picture, once."""
        self._seed = seed
        self._device = device
        self._tell = tell_bad
        self._told: set[str] = set()
        self._found: dict[Any, Any] = {}

    def source(self, data: Data) -> Source:
        """For one way of loading."""
        parts = self._once(data.root, lambda: find_images(data))
        on_device = is_on_device(data, self._device)
        if parts is not None:
            samples = ImageSamples(parts.train, data, self._seed, on_device=on_device)
            return Source(data, samples, len(parts.train.classes), self._tell_bad)
        key = (data.root, repr(data.transform), on_device)
        found = self._once(key, lambda: load_data(data, seed=self._seed, device=self._device))
        return Source(data, found.train, found.num_classes, self._tell_bad)

    def _once(self, key: Any, find: Callable[[], Any]) -> Any:
        if key not in self._found:
            self._found[key] = find()
        return self._found[key]

    def _tell_bad(self, bad: BadFile) -> None:
        if bad.path not in self._told:
            self._told.add(bad.path)
            self._tell(bad)
