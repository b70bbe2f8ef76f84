"""The data sets that a job compares, opened once each, and the ways of loading from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import torch

from hpcdist.data.arrays import Samples
from hpcdist.data.batches import DirectBatches, WorkerBatches, make_batches
from hpcdist.data.catalog import find_images, load_data
from hpcdist.data.images.files import ImageFiles
from hpcdist.data.images.loading import ImageBatches
from hpcdist.data.images.samples import BadFile, ImageSamples
from hpcdist.dataload.passes import Batches
from hpcdist.dataload.stages import image_stages, memory_stages
from hpcdist.spec import Data


class FileSource:
    """Training images in files."""

    in_memory = False

    def __init__(
        self, data: Data, files: ImageFiles, *, seed: int, tell_bad: Callable[[BadFile], None]
    ) -> None:
        """Take what one way of loading says of reading, decoding and transforms."""
        self._tell_bad = tell_bad
        self._data = data
        self._samples = ImageSamples(files, data, seed)
        self.num_classes = len(files.classes)

    def __len__(self) -> int:
        return len(self._samples)

    def paths(self, indices: Sequence[int]) -> list[str]:
        """Of these samples' files."""
        return [self._samples.path(index) for index in indices]

    def stages(self, indices: Sequence[int], alive: Callable[[], None]) -> dict[str, float]:
        """Seconds per image in each stage before the hand-over."""
        return image_stages(self._samples, indices, alive)

    @contextmanager
    def open(self, device: torch.device) -> Iterator[Batches]:
        """Batches as a training takes them; workers are made with the first one."""
        loading = ImageBatches(self._samples, device, self._data, tell_bad=self._tell_bad)
        with closing(loading) as batches:
            yield batches


class MemorySource:
    """Training images in memory."""

    in_memory = True

    def __init__(self, data: Data, samples: Samples, num_classes: int) -> None:
        """Take the whole data set."""
        self._data = data
        self._samples = samples
        self.num_classes = num_classes

    def __len__(self) -> int:
        return len(self._samples)

    def paths(self, indices: Sequence[int]) -> list[str]:  # noqa: ARG002
        """None."""
        return []

    def stages(self, indices: Sequence[int], alive: Callable[[], None]) -> dict[str, float]:  # noqa: ARG002
        """Seconds per image in each stage before the hand-over."""
        return memory_stages(self._samples, indices)

    @contextmanager
    def open(self, device: torch.device) -> Iterator[Batches]:
        """Batches as a training takes them; workers are made with the first one."""
        batches = make_batches(self._samples, device, self._data.workers)
        yield _Brought(batches, device)


class _Brought:
    """Batches that are brought to the device as they are."""

    def __init__(self, batches: DirectBatches | WorkerBatches, device: torch.device) -> None:
        self._batches = batches
        self._device = device
        self.epoch = batches.epoch

    def bring(self, batch: Samples) -> Samples:
        """The batch on the device."""
        return batch if self._batches.on_device else batch.to(self._device, non_blocking=True)


Source = FileSource | MemorySource


class Sources:
    """What is listed or loaded once for all ways of loading that share it."""

    def __init__(self, seed: int, tell_bad: Callable[[str], None]) -> None:
        """`tell_bad` hears of each file that shows no picture, once."""
        self._seed = seed
        self._tell = tell_bad
        self._told: set[str] = set()
        self._found: dict[str | None, Any] = {}

    def source(self, data: Data) -> Source:
        """For one way of loading."""
        if data.root not in self._found:
            parts = find_images(data)
            self._found[data.root] = load_data(data) if parts is None else parts
        found = self._found[data.root]
        if isinstance(found.train, ImageFiles):
            return FileSource(data, found.train, seed=self._seed, tell_bad=self._tell_bad)
        return MemorySource(data, found.train, found.num_classes)

    def _tell_bad(self, bad: BadFile) -> None:
        if bad.path not in self._told:
            self._told.add(bad.path)
            self._tell(str(bad))
