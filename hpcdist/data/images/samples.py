"""Image files as samples: read, decoded, changed and put into batches, each step by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from hpcdist.base.errors import HpcdistError
from hpcdist.base.text import one_line
from hpcdist.data.arrays import IGNORED_LABEL, Normalization, Pixels, Samples, Shape, ToUnitRange
from hpcdist.data.images.decoding import (
    UnreadableImageError,
    explain_unread,
    make_decoder,
    no_warnings,
)
from hpcdist.data.images.reading import Reader, read_file
from hpcdist.data.images.transforms import build_transform, kept_random_state
from hpcdist.data.splits import ImageFiles
from hpcdist.job.spec import Data

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hpcdist.data.images.memory import DecodedCache

    Picture = NDArray[np.uint8] | Image.Image

_MASK = 2**64 - 1
_CHANNELS = 3
_TRIED = 50
"""Files tried, at the beginning and over all, to find the size of one that is an image."""


@dataclass(frozen=True)
class BadFile:
    """A file that shows no picture."""

    index: int
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{one_line(self.path)} {self.reason}"


class _Filled(ABC):
    """Samples whose images the CPUs fill in."""

    shape: Shape
    """(channels, height, width) of each image, after data.transform."""

    def __init__(
        self,
        labels: Tensor,
        normalization: Normalization,
        data: Data,
        seed: int,
    ) -> None:
        """`labels`: int64, [samples]. `seed`: train.seed."""
        self.labels = labels
        self.normalization = normalization
        self._seed = seed
        self._transform = build_transform(data.transform)

    def __len__(self) -> int:
        return len(self.labels)

    def probe(self, number: int) -> Samples:
        """Return the first samples that can be had, normalised, to try a model with."""
        batch = self.batch(range(min(number, len(self))), epoch=0)
        return Samples(images=self.normalization(batch.images), labels=batch.labels)

    def batch(self, indices: Sequence[int], epoch: int) -> Samples:
        """The samples with these indices, as `fill` writes them: uint8 [samples, channels, height,
        width]; in memory the channels come last."""
        channels, height, width = self.shape
        pixels = np.empty((len(indices), height, width, channels), np.uint8)
        return self.as_batch(pixels, indices, self.fill(pixels, indices, epoch))

    def as_batch(
        self,
        pixels: NDArray[np.uint8 | np.float32],
        indices: Sequence[int],
        bad: Sequence[tuple[int, BadFile]],
    ) -> Samples:
        """Return pixels that are filled in; the label of a bad file is IGNORED_LABEL."""
        labels = self.labels[torch.as_tensor(indices)]
        for position, _ in bad:
            labels[position] = IGNORED_LABEL
        return Samples(images=channels_first(pixels), labels=labels)

    def transform(self, image: Picture, index: int, epoch: int) -> NDArray[np.uint8]:
        """The pixels [height, width, channels] that data.transform makes of a picture.

        UnreadableImageError where it can make none, as of one that is smaller than a crop;
        HpcdistError where they do not fit into a batch.
        """
        if not self._transform:
            return np.atleast_3d(np.asarray(image))
        picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
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
            f"data.transform makes {width} x {height} pixels of {self.path(index)}, and "
            f"{usual_width} x {usual_height} of another image: all images of a batch must have one "
            "size",
            hint=f"end it with a transform that gives one size, such as {resize}, or set data.size",
        )

    @abstractmethod
    def path(self, index: int) -> str:
        """Return the whole path of a sample's file, or what to call it if it has none."""

    @abstractmethod
    def fill(
        self, out: NDArray[np.uint8], indices: Sequence[int], epoch: int, ahead: Sequence[int] = ()
    ) -> list[tuple[int, BadFile]]:
        """Write the pixels of samples to `out`; returns where in it there are none, and why.

        Those are zero. `ahead`: the samples that this process will be asked for next. HpcdistError
        where data.bad_files is refuse.
        """


class ImageSamples(_Filled):
    """One part of a data set of image files, and the steps from a file to a batch."""

    def __init__(
        self,
        files: ImageFiles,
        data: Data,
        seed: int,
        *,
        shape: Shape | None = None,
    ) -> None:
        """`shape`: of the images; None: that of data.size, data.transform, or the first image."""
        labels = torch.tensor(files.labels, dtype=torch.int64)
        super().__init__(labels, ToUnitRange(), data, seed)
        self.files = files
        self._refuse = data.bad_files == "refuse"
        self._root = str(files.root)
        if shape is not None:
            self._size = shape[2], shape[1]
        else:
            self._size = (data.size, data.size) if data.size else self._first_size()
        _, height, width = self.decoded_shape
        if self._transform:  # grayscale has the same value in each channel
            _, height, width = self._transform.try_on(Image.new("RGB", self._size))
        self.shape = _CHANNELS, height, width
        # Where each image is cut or scaled to one size, that is done to the image as it is.
        is_free = not data.size and self.shape[1:] != self.decoded_shape[1:]
        self._decoder = make_decoder(data.decoder, None if is_free else self._size)
        self._reader = Reader(data.reads)
        self.cache: DecodedCache | None = None
        """Keeps decoded pictures; None: they are not kept."""

    @property
    def decoded_shape(self) -> Shape:
        """(channels, height, width) of what `cache` keeps."""
        width, height = self._size
        return _CHANNELS, height, width

    def path(self, index: int) -> str:
        return f"{self._root}/{self.files.paths[index]}"

    def read(self, index: int) -> bytes:
        return read_file(self.path(index))

    def decode(self, content: bytes) -> Picture:
        """Return the picture in a file, of PIL where there is a transform; UnreadableImageError."""
        return self._decoder.picture(content) if self._transform else self._decoder(content)

    def fill(
        self, out: NDArray[np.uint8], indices: Sequence[int], epoch: int, ahead: Sequence[int] = ()
    ) -> list[tuple[int, BadFile]]:
        kept = [self._kept(index) for index in indices]
        missing = [index for index, pixels in zip(indices, kept, strict=True) if pixels is None]
        contents = self._reader.read_all(
            [self.path(index) for index in missing],
            [self.path(index) for index in ahead if self._kept(index) is None],
        )
        bad: list[tuple[int, BadFile]] = []
        with kept_random_state(), no_warnings():
            for position, index in enumerate(indices):
                pixels = kept[position]
                try:
                    if pixels is None:
                        self._make(out[position], next(contents), index, epoch)
                    else:
                        out[position] = self.transform(pixels, index, epoch)
                except (OSError, UnreadableImageError) as error:
                    bad.append((position, self._bad(index, error)))
                    out[position] = 0
        return bad

    def _kept(self, index: int) -> NDArray[np.uint8] | None:
        return None if self.cache is None else self.cache.get(index)

    def _make(
        self, out: NDArray[np.uint8], content: bytes | OSError, index: int, epoch: int
    ) -> None:
        """Write the pixels of a file that has just been read."""
        if isinstance(content, OSError):
            raise content
        if self._transform:
            picture = self._decoder.picture(content)
            if self.cache is not None and picture.size == self._size:
                self.cache.put(index, np.asarray(picture))
            out[...] = self.transform(picture, index, epoch)
            return
        self._decoder.into(out, content)
        if self.cache is not None:
            self.cache.put(index, out)

    def _bad(self, index: int, error: Exception) -> BadFile:
        reason = explain_unread(error) if isinstance(error, OSError) else str(error)
        bad_file = BadFile(index, self.path(index), reason)
        if self._refuse:
            raise HpcdistError(str(bad_file), hint="remove it, or set data.bad_files to skip")
        return bad_file

    def _first_size(self) -> tuple[int, int]:
        """Return the size of an image; all are sampled, as the first class may hold none."""
        decoder = make_decoder("pil")
        number = len(self)
        step = max(1, number // _TRIED)
        tried = dict.fromkeys([*range(min(number, _TRIED)), *range(0, number, step)])
        for index in tried:
            try:
                with no_warnings():
                    return decoder.picture(self.read(index)).size
            except (OSError, UnreadableImageError):
                continue
        raise HpcdistError(
            f"none of {len(tried):,} files tried, of {number:,} in {self._root}, is an image",
            hint="name another folder with data.root",
        )


class PixelSamples(_Filled):
    """The images of a data set in memory, to which a transform is applied one by one."""

    def __init__(self, pixels: Pixels, labels: Tensor, data: Data, seed: int) -> None:
        super().__init__(labels, pixels.standardization, data, seed)
        self._images = pixels.images.numpy()
        self.shape = self._transform.try_on(Image.fromarray(self._images[0]))
        channels = pixels.standardization.mean.shape[1]
        if self.shape[0] != channels:
            raise HpcdistError(
                f"data.transform makes images of {self.shape[0]} channels of those of "
                f"{data.name}, which have {channels}",
                hint="leave out what changes the number of channels",
            )

    def path(self, index: int) -> str:
        return f"sample {index}"

    def fill(
        self,
        out: NDArray[np.uint8],
        indices: Sequence[int],
        epoch: int,
        ahead: Sequence[int] = (),  # noqa: ARG002 - there is nothing to read
    ) -> list[tuple[int, BadFile]]:
        with kept_random_state():
            for position, index in enumerate(indices):
                out[position] = self.transform(self._images[index], index, epoch)
        return []


def channels_first(pixels: NDArray[np.uint8 | np.float32]) -> Tensor:
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """Return a 32-bit seed for one sample in one epoch, whichever rank or worker makes it."""
    mixed = _mix(_mix(_mix(seed) ^ epoch) ^ index)
    return mixed & 0xFFFFFFFF


def _mix(value: int) -> int:
    """splitmix64 (Steele, Lea and Flood, 2014): each bit depends on all."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
