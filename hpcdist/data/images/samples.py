"""Image files as samples: read, decoded, changed and put together, a whole batch at a time.

`FastImages` is a Dataset for any DataLoader: torch asks it for whole batches (`__getitems__`), so
that it decodes into one array, and reads several files at once where storage answers late.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from hpcdist.base.errors import HpcdistError
from hpcdist.base.files import read_bytes
from hpcdist.base.text import one_line
from hpcdist.data.arrays import Samples, Shape, to_unit_range
from hpcdist.data.images.decoding import (
    MOST_BYTES,
    UnreadableImageError,
    decode,
    explain_unread,
    no_warnings,
)
from hpcdist.data.images.folders import list_classes
from hpcdist.data.images.transforms import Spec, Transform, build_transform, kept_random_state
from hpcdist.data.splits import ImageFiles, label_files

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Pixels = NDArray[np.uint8]

_CHANNELS = 3
_LATE_S = 1e-3
"""Reads that take longer on average are worth threads. A local disk, or files that are in memory
already, answer at once; a network file system takes milliseconds for each open."""
_THREADS = 32
_NO_BUFFERS = torch.empty(0), torch.empty(0)


class FastImages(Dataset[Any]):
    """Image files of several classes, for a DataLoader:

    images = FastImages("photos", size=224, transform="light")
    loader = DataLoader(images, 64, shuffle=True, num_workers=4, collate_fn=images.collate)
    for batch, labels in loader:  # uint8 [64, 3, 224, 224], int64 [64]
        batch = images.normalize(batch.to(device))  # a quarter of the bytes was moved
    """

    shape: Shape
    """(channels, height, width) of each image, after the transform."""

    def __init__(
        self,
        files: str | Path | Sequence[tuple[str, int]] | ImageFiles,
        *,
        size: int | None = None,
        transform: Spec | Callable[[Image.Image], Any] = "none",
        decode: str = "exact",
        seed: int = 0,
        shape: Shape | None = None,
    ) -> None:
        """Find the size of the images.

        `files`: a folder with one folder per class, or paths with labels. `size`: scale images to
        a square of so many pixels per side; else they must have one size, or the transform gives
        them one. `transform`: as data.transform, or a function from an image of PIL to one, or to
        a uint8 tensor. `decode`: exact, the pixels of PIL, or fast, which differ a little where
        images are made smaller. `shape`: that of the images after the transform, where it is known.
        Raises HpcdistError, as all do that find a file that is no image.
        """
        if isinstance(files, (str, Path)):
            files = label_files(Path(files), list_classes(Path(files)))
        elif not isinstance(files, ImageFiles):
            paths, labels = zip(*files, strict=True)
            files = ImageFiles(root=Path(), paths=paths, labels=labels, classes=())
        self.files = files
        self.labels = torch.tensor(files.labels, dtype=torch.int64)
        if callable(transform):
            self._transform = Transform([(transform, False)])
        else:
            self._transform = build_transform(transform)
        self._seed = seed
        self._is_fast = decode == "fast"
        self._size: tuple[int, int] | None = None
        self._is_late = False
        self._threads: tuple[int, ThreadPoolExecutor] | None = None
        self._buffers = _NO_BUFFERS
        if shape is not None:
            usual = shape[2], shape[1]
        elif size is not None:
            usual = size, size
        else:
            with no_warnings():
                height, width = self.decode(0, self.read(0)).shape[:2]
            usual = width, height
        self.shape = _CHANNELS, usual[1], usual[0]
        if self._transform:  # grayscale has the same value in each channel
            self.shape = _CHANNELS, *self._transform.try_on(Image.new("RGB", usual))[1:]
        # Where each image is cut or scaled to one size, that is done to the image as it is.
        if size or self.shape == (_CHANNELS, usual[1], usual[0]):
            self._size = usual

    def __len__(self) -> int:
        return len(self.labels)

    def __getstate__(self) -> dict[str, Any]:
        """Return no threads and buffers: a worker that is started, not forked, makes its own."""
        return self.__dict__ | {"_threads": None, "_buffers": _NO_BUFFERS}

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        images, labels = self.__getitems__([index])
        return images[0], int(labels[0])

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return images and labels of a whole batch; called by torch's DataLoader. What random
        transforms draw depends on torch's generator, which DataLoader seeds in each worker."""
        batch = self.batch(indices, epoch=int(torch.empty((), dtype=torch.int64).random_()))
        return batch.images, batch.labels

    @staticmethod
    def collate(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the batch, which is one already: for DataLoader's collate_fn."""
        return batch

    def normalize(
        self, images: Tensor, memory_format: torch.memory_format = torch.preserve_format
    ) -> Tensor:
        """Return a batch's images from -1 to 1: float32, on their device. On the CPU they are valid
        until the next but one is normalized: new memory costs more than the work."""
        if images.device.type != "cpu":
            return to_unit_range(images).to(memory_format=memory_format)
        buffer, other = self._buffers
        if len(buffer) < len(images) or buffer.shape[1:] != images.shape[1:]:
            buffer = torch.empty_like(images, dtype=torch.float32, memory_format=memory_format)
        self._buffers = other, buffer
        # Threads would meet after each of many short pieces of work. Where workers or others use
        # the CPUs, one waits for its turn each time: 64 images took 160 ms with two, 17 with one.
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for out, image in zip(buffer, images, strict=False):  # one at a time, so that it
                to_unit_range(image, out=out)  # stays in the CPU's cache
        finally:
            torch.set_num_threads(num_threads)
        return buffer[: len(images)].to(memory_format=memory_format)

    def probe(self, number: int) -> Samples:
        """Return the first samples, normalised, to try a model with."""
        batch = self.batch(range(min(number, len(self))), epoch=0)
        return Samples(images=to_unit_range(batch.images), labels=batch.labels)

    def batch(self, indices: Sequence[int], epoch: int) -> Samples:
        """Return the samples with these indices: uint8 [samples, channels, height, width], in
        memory with the channels last."""
        channels, height, width = self.shape
        pixels = np.empty((len(indices), height, width, channels), np.uint8)
        with kept_random_state(), no_warnings():
            for target, (index, content) in zip(pixels, self._read_all(indices), strict=True):
                found = self.decode(index, content, None if self._transform else target)
                if found is not target:
                    target[...] = self.change(index, found, epoch)
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        return Samples(images=images, labels=self.labels[torch.as_tensor(indices)])

    def name(self, index: int) -> str:
        """Return the path of a sample's file."""
        return os.path.join(self.files.root, self.files.paths[index])

    def read(self, index: int) -> bytes:
        """Return the content of a file; HpcdistError where there is no regular one of its size."""
        try:
            return read_bytes(self.name(index), most_bytes=MOST_BYTES)
        except OSError as error:
            raise self._bad_file(index, explain_unread(error)) from None

    def decode(self, index: int, content: bytes, out: Pixels | None = None) -> Pixels:
        """Return the pixels [height, width, 3] in a file, in `out` if they come in its size."""
        try:
            return decode(content, self._size, is_fast=self._is_fast, out=out)
        except UnreadableImageError as error:
            raise self._bad_file(index, str(error)) from None

    def change(self, index: int, image: Pixels, epoch: int) -> Pixels:
        """Return the pixels [height, width, channels] that the transform makes of an image.
        HpcdistError where it fails, as with one that is smaller than a crop, or they do not fit
        into a batch."""
        if not self._transform:
            return image
        picture = Image.fromarray(image)
        try:
            pixels = self._transform.apply(picture, sample_seed(self._seed, epoch, index))
        except (ValueError, RuntimeError, TypeError) as error:
            of = f"({picture.width} x {picture.height} pixels)"
            raise self._bad_file(index, f"{of} fails in data.transform: {error}") from error
        height, width = pixels.shape[:2]
        _, usual_height, usual_width = self.shape
        if (height, width) == (usual_height, usual_width):
            return pixels
        resize = f"{{Resize: {{size: [{usual_height}, {usual_width}]}}}}"
        raise HpcdistError(
            f"data.transform makes {width} x {height} pixels of {self.name(index)}, and "
            f"{usual_width} x {usual_height} of another image: all images of a batch must have one "
            "size",
            hint=f"end it with a transform that gives one size, such as {resize}, or set data.size",
        )

    def _bad_file(self, index: int, why: str) -> HpcdistError:
        hint = "remove it; hpcdist data check names all such files of a data set"
        return HpcdistError(f"{one_line(self.name(index))} {why}", hint=hint)

    def _read_all(self, indices: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Yield the samples with the contents of their files: read by threads if the last batch
        came late."""
        reads: Iterator[tuple[float, bytes]] = map(self._timed_read, indices)
        if self._is_late:
            # A forked worker lacks the threads of the rank, which may have read before.
            if self._threads is None or self._threads[0] != os.getpid():
                self._threads = os.getpid(), ThreadPoolExecutor(_THREADS)
            reads = self._threads[1].map(self._timed_read, indices)
        spent_s = 0.0
        for index, (time_s, content) in zip(indices, reads, strict=True):
            spent_s += time_s
            yield index, content
        self._is_late = spent_s > _LATE_S * len(indices)

    def _timed_read(self, index: int) -> tuple[float, bytes]:
        begin_s = time.perf_counter()
        content = self.read(index)
        return time.perf_counter() - begin_s, content


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """Return a 32-bit seed for one sample in one epoch, whichever rank or worker makes it."""
    return hash((seed, epoch, index)) & 0xFFFFFFFF  # of integers, the same in all processes
