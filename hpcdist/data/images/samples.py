"""Images as samples: read, decoded, changed and put together, a whole batch at a time.

`FastImages` is a Dataset for any DataLoader: torch asks it for whole batches (`__getitems__`), so
that it decodes into one array, and reads several files at once where storage answers late.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
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
from hpcdist.data.arrays import (
    IGNORED_LABEL,
    BadFile,
    DataSet,
    Normalization,
    Samples,
    Shape,
    ToUnitRange,
)
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

_CHANNELS = 3
_TRIED = 50
"""Files tried, at the beginning and over all, to find the size of one that is an image."""
_LATE_S = 1e-3
"""Reads that take longer on average are worth threads. A local disk, or files that are in memory
already, answer at once; a network file system takes milliseconds for each open."""
_THREADS = 32


class TransformedImages(ABC):
    """Images that the CPUs make, one by one, when a batch with them is wanted."""

    shape: Shape
    """(channels, height, width) of each image, after the transform."""

    def __init__(
        self, labels: Tensor, normalization: Normalization, transform: Transform, seed: int
    ) -> None:
        """`labels`: int64, [samples]. `seed`: train.seed."""
        self.labels = labels
        self.normalization = normalization
        self._transform = transform
        self._seed = seed

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        images, labels = self.__getitems__([index])
        return images[0], int(labels[0])

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return images and labels of a whole batch; called by torch's DataLoader. What random
        transforms draw depends on torch's generator, which DataLoader seeds in each worker."""
        batch = self.batch(indices, epoch=int(torch.empty((), dtype=torch.int64).random_()))
        return batch.images, batch.labels

    def probe(self, number: int) -> Samples:
        """Return the first samples that can be had, normalised, to try a model with."""
        batch = self.batch(range(min(number, len(self))), epoch=0)
        return Samples(images=self.normalization(batch.images), labels=batch.labels)

    def batch(self, indices: Sequence[int], epoch: int) -> Samples:
        """Return the samples with these indices: uint8 [samples, channels, height, width], in
        memory with the channels last. The label of a bad file is IGNORED_LABEL."""
        channels, height, width = self.shape
        pixels = np.empty((len(indices), height, width, channels), np.uint8)
        labels = self.labels[torch.as_tensor(indices)]
        bad = []
        with kept_random_state(), no_warnings():
            for position, file in self.fill(pixels, indices, epoch):
                pixels[position], labels[position] = 0, IGNORED_LABEL
                bad.append(file)
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        return Samples(images=images, labels=labels, bad=tuple(bad))

    def change(self, image: NDArray[np.uint8], index: int, epoch: int) -> NDArray[np.uint8]:
        """Return the pixels [height, width, channels] that the transform makes of an image.

        UnreadableImageError where it can make none, as of one that is smaller than a crop;
        HpcdistError where they do not fit into a batch.
        """
        if not self._transform:
            return np.atleast_3d(image)
        picture = Image.fromarray(image)
        try:
            pixels = self._transform.apply(picture, sample_seed(self._seed, epoch, index))
        except (ValueError, RuntimeError, TypeError) as error:
            raise UnreadableImageError(
                f"({picture.width} x {picture.height} pixels) fails in data.transform: {error}"
            ) from error
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

    @abstractmethod
    def name(self, index: int) -> str:
        """Return the whole path of a sample's file, or what to call it if it has none."""

    @abstractmethod
    def fill(
        self, out: NDArray[np.uint8], indices: Sequence[int], epoch: int
    ) -> Iterator[tuple[int, BadFile]]:
        """Write the pixels of samples to `out`, and yield where in it there are none, and why."""


class FastImages(TransformedImages, Dataset[Any]):
    """Image files of several classes, for a DataLoader:

    images = FastImages("photos", size=224, transform="light")
    loader = DataLoader(images, 64, shuffle=True, num_workers=4, collate_fn=images.collate)
    for batch, labels in loader:  # uint8 [64, 3, 224, 224], int64 [64]
        batch = batch.to(device).div(127.5).sub(1)  # a quarter of the bytes was moved
    """

    def __init__(
        self,
        files: str | Path | Sequence[tuple[str, int]] | ImageFiles,
        *,
        size: int | None = None,
        transform: Spec | Callable[[Image.Image], Any] = "none",
        decode: str = "exact",
        bad_files: str = "skip",
        seed: int = 0,
        shape: Shape | None = None,
    ) -> None:
        """Find the size of the images.

        `files`: a folder with one folder per class, or paths with labels. `size`: scale images to
        a square of so many pixels per side; else they must have one size, or the transform gives
        them one. `transform`: as data.transform, or a function from an image of PIL to one, or to
        a uint8 tensor. `decode`: exact, the pixels of PIL, or fast, which differ a little where
        images are made smaller. `bad_files`: skip, with the label -100, or refuse. `shape`: that
        of the images after the transform, where it is known. Raises HpcdistError.
        """
        if isinstance(files, (str, Path)):
            files = label_files(Path(files), list_classes(Path(files)))
        elif not isinstance(files, ImageFiles):
            paths, labels = zip(*files, strict=True)
            files = ImageFiles(root=Path(), paths=paths, labels=labels, classes=())
        built = Transform([(transform, False)]) if callable(transform) else None
        super().__init__(
            torch.tensor(files.labels, dtype=torch.int64),
            ToUnitRange(),
            built or build_transform(transform),  # type: ignore[arg-type] # it is a spec
            seed,
        )
        self.files = files
        self._is_fast = decode == "fast"
        self._refuse = bad_files == "refuse"
        if shape is not None:
            usual = shape[2], shape[1]
        else:
            usual = (size, size) if size else self._first_size()
        self.shape = _CHANNELS, usual[1], usual[0]
        if self._transform:  # grayscale has the same value in each channel
            self.shape = _CHANNELS, *self._transform.try_on(Image.new("RGB", usual))[1:]
        # Where each image is cut or scaled to one size, that is done to the image as it is.
        is_free = not size and self.shape != (_CHANNELS, usual[1], usual[0])
        self._size = None if is_free else usual
        self._is_late = False
        self._threads: tuple[int, ThreadPoolExecutor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return no threads: a worker that is started, not forked, makes its own."""
        return self.__dict__ | {"_threads": None}

    @staticmethod
    def collate(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the batch, which is one already: for DataLoader's collate_fn."""
        return batch

    def name(self, index: int) -> str:
        return os.path.join(self.files.root, self.files.paths[index])

    def read(self, index: int) -> bytes:
        """Return the content of a file; OSError where there is no regular one of its size."""
        return read_bytes(self.name(index), most_bytes=MOST_BYTES)

    def decode(self, content: bytes, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """Return the pixels [height, width, 3] in a file, in `out` if they come in its size."""
        return decode(content, self._size, is_fast=self._is_fast, out=out)

    def fill(
        self, out: NDArray[np.uint8], indices: Sequence[int], epoch: int
    ) -> Iterator[tuple[int, BadFile]]:
        for position, (index, content) in enumerate(self._read_all(indices)):
            try:
                if isinstance(content, OSError):
                    raise content
                target = out[position]
                pixels = self.decode(content, None if self._transform else target)
                if pixels is not target:
                    target[...] = self.change(pixels, index, epoch)
            except (OSError, UnreadableImageError) as error:
                why = explain_unread(error) if isinstance(error, OSError) else str(error)
                bad_file = BadFile(index, self.name(index), why)
                if self._refuse:
                    hint = "remove it, or set data.bad_files to skip"
                    raise HpcdistError(str(bad_file), hint=hint) from None
                yield position, bad_file

    def _read_all(self, indices: Sequence[int]) -> Iterator[tuple[int, bytes | OSError]]:
        """Yield the samples with the contents of their files: read by threads if the last batch
        came late."""
        reads: Iterator[tuple[float, bytes | OSError]] = map(self._timed_read, indices)
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

    def _timed_read(self, index: int) -> tuple[float, bytes | OSError]:
        begin_s = time.perf_counter()
        content: bytes | OSError
        try:
            content = self.read(index)
        except OSError as error:
            content = error
        return time.perf_counter() - begin_s, content

    def _first_size(self) -> tuple[int, int]:
        """Return the size of an image; all are sampled, as the first class may hold none."""
        number = len(self)
        step = max(1, number // _TRIED)
        tried = dict.fromkeys([*range(min(number, _TRIED)), *range(0, number, step)])
        for index in tried:
            try:
                with no_warnings():
                    height, width = decode(self.read(index), None).shape[:2]
            except (OSError, UnreadableImageError):
                continue
            return width, height
        raise HpcdistError(
            f"none of {len(tried):,} files tried, of {number:,} in {self.files.root}, is an image",
            hint="name another folder with data.root",
        )


class PixelSamples(TransformedImages):
    """The images of a data set in memory, to which a transform is applied one by one."""

    def __init__(self, whole: DataSet, transform: Spec, seed: int) -> None:
        assert isinstance(whole.train, Samples)
        assert whole.pixels is not None
        assert whole.standardization is not None
        labels = whole.train.labels
        super().__init__(labels, whole.standardization, build_transform(transform), seed)
        self._images = whole.pixels.numpy()
        self.shape = self._transform.try_on(Image.fromarray(self._images[0]))
        channels = whole.train.shape[0]
        if self.shape[0] != channels:
            raise HpcdistError(
                f"data.transform makes images of {self.shape[0]} channels of those of the data "
                f"set, which have {channels}",
                hint="leave out what changes the number of channels",
            )

    def name(self, index: int) -> str:
        return f"sample {index}"

    def fill(
        self, out: NDArray[np.uint8], indices: Sequence[int], epoch: int
    ) -> Iterator[tuple[int, BadFile]]:
        for position, index in enumerate(indices):
            out[position] = self.change(self._images[index], index, epoch)
        yield from ()


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """Return a 32-bit seed for one sample in one epoch, whichever rank or worker makes it."""
    return hash((seed, epoch, index)) & 0xFFFFFFFF  # of integers, the same in all processes
