"""From the bytes of a file to the pixels of a picture, and what is wrong where there are none.

A picture is RGB, 8 bits per channel. `pil` is what everybody writes: PIL's open and convert.
`exact` gives the same pixels: a colour JPEG file goes straight to libjpeg-turbo, which decodes in
PIL too, and everything else to PIL. `fast` lets libjpeg-turbo leave out what a smaller picture does
not need.
"""

from __future__ import annotations

import io
import os
import struct
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, UnidentifiedImageError

from hpcdist.data.images.reading import read_file
from hpcdist.data.splits import ImageParts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Pixels = NDArray[np.uint8]


Size = tuple[int, int]
"""(width, height)"""

_COLOURS = 3
_BITS = 8


class UnreadableImageError(Exception):
    """A file shows no picture; says why."""


class PilDecoder:
    """Decodes with PIL alone."""

    def __init__(self, size: Size | None) -> None:
        self._size = size

    def __call__(self, content: bytes) -> Pixels:
        """The pixels [height, width, 3]; UnreadableImageError where there are none."""
        import numpy as np

        pixels: Pixels = np.asarray(self.picture(content))
        return pixels

    def into(self, out: Pixels, content: bytes) -> None:
        """Decode to where the pixels are wanted; `out` has the size that was asked for."""
        out[...] = self(content)

    def picture(self, content: bytes) -> Image.Image:
        try:
            picture = self._open(content)
            if self._size is None or picture.size == self._size:
                return picture
            return picture.resize(self._size, Image.Resampling.BILINEAR)
        except Exception as error:  # noqa: BLE001 - PIL's plugins raise anything at broken files
            raise UnreadableImageError(explain(content, error)) from None

    def _open(self, content: bytes) -> Image.Image:
        return open_image(content).convert("RGB")


class ExactDecoder(PilDecoder):
    """The pixels of PIL; colour JPEG files go to libjpeg-turbo without PIL's detours.

    PIL's own way reads markers in Python and has the decoder give three bytes per pixel, which it
    then spreads over the four that it keeps. Where no image of PIL is wanted, simplejpeg decodes
    to where the pixels are wanted. Whatever either refuses is PIL's to judge.
    """

    def __init__(self, size: Size | None) -> None:
        super().__init__(size)
        try:
            from simplejpeg import decode_jpeg
        except ImportError:  # there is none for some machines
            decode_jpeg = None
        self._decode_jpeg: Callable[..., Any] | None = decode_jpeg

    def into(self, out: Pixels, content: bytes) -> None:
        has_size = _colour_size(content) == (out.shape[1], out.shape[0])
        if self._decode_jpeg is not None and has_size and out.flags.c_contiguous:
            with suppress(ValueError):
                self._decode_jpeg(content, "RGB", buffer=out)
                return
        super().into(out, content)

    def _open(self, content: bytes) -> Image.Image:
        size = _colour_size(content)
        if size is not None:
            with suppress(Exception):  # whatever it is, PIL's own way tells
                return Image.frombytes("RGB", size, content, "jpeg", "RGBX", "")
        return super()._open(content)


class FastDecoder(ExactDecoder):
    """Not bit for bit PIL's pixels where pictures are made smaller than they are.

    A JPEG file is decoded at the smallest of 1/8, 1/4, 1/2 of its size that is not below what is
    wanted, and then scaled.
    """

    def _open(self, content: bytes) -> Image.Image:
        if self._size is None:
            return super()._open(content)
        picture = open_image(content)
        picture.draft("RGB", self._size)
        return picture.convert("RGB")


DECODERS: dict[str, Callable[[Size | None], PilDecoder]] = {
    "exact": ExactDecoder,
    "fast": FastDecoder,
    "pil": PilDecoder,
}
"""data.decoder -> what it is."""


def make_decoder(name: str, size: int | Size | None = None) -> PilDecoder:
    """A decoder; pictures are scaled to `size` (None: left as they are; a number: square)."""
    return DECODERS[name]((size, size) if isinstance(size, int) else size)


_BEGIN = b"\xff\xd8"
_WITHOUT_LENGTH = frozenset([0x01, *range(0xD0, 0xD9)])
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers that begin a frame: all of 0xC0 to 0xCF but DHT, JPG and DAC."""


def _colour_size(content: bytes) -> Size | None:
    """Return the size in a JPEG file's header; None: too large, or not of 8-bit colours."""
    if content[:2] != _BEGIN:
        return None
    position, length = 2, len(content)
    while position + 9 < length and content[position] == 0xFF:
        marker = content[position + 1]
        if marker == 0xFF:  # fills up
            position += 1
        elif marker in _WITHOUT_LENGTH:
            position += 2
        elif marker in _FRAMES:
            bits, height, width, components = struct.unpack_from(">BHHB", content, position + 4)
            is_fit = (bits, components) == (_BITS, _COLOURS) and 0 < width * height <= MOST_PIXELS
            return (width, height) if is_fit else None
        else:
            position += 2 + (content[position + 2] << 8 | content[position + 3])
    return None


MOST_PIXELS = 89_478_485
"""Pillow's limit of an image that is decoded: a file of a few KB can ask for any memory."""
_MILLIONS = round(MOST_PIXELS / 1e6)

_FORMATS = ("JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP")
"""Formats that are read, whatever a file's name says: others start programs, as EPS does
Ghostscript, or are read by few, and so by code that few look at."""

_KINDS = (
    (b"%!PS", "a PostScript document"),
    (b"\xc5\xd0\xd3\xc6", "a PostScript document"),
    (b"version https://git-lfs", "a Git LFS pointer: run git lfs pull"),
    (b"<!doctype html", "an HTML page"),
    (b"<html", "an HTML page"),
    (b"\x1f\x8b", "packed by gzip"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"%PDF", "a PDF document"),
)
_FIRST_BYTES = 8


@contextmanager
def no_warnings() -> Iterator[None]:
    """Keep Pillow quiet about damaged metadata and large images; around threads, not in them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        warnings.filterwarnings("ignore", category=UserWarning, module="PIL")
        yield


def open_image(content: bytes) -> Image.Image:
    """Open an image that is not decoded yet; TooManyPixelsError, or what Pillow raises."""
    image = Image.open(io.BytesIO(content), formats=_FORMATS)
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise TooManyPixelsError(f"{width:,} x {height:,} pixels, more than {_MILLIONS} million")
    return image


def explain(content: bytes, error: Exception) -> str:
    """Why a decoder refused a file's content, in words that stand after its name."""
    if not content:
        return "is empty"
    if isinstance(error, TooManyPixelsError):
        return f"is too large: {error}"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"is too large: more than {_MILLIONS} million pixels"
    if isinstance(error, UnidentifiedImageError):
        return f"is not an image, but {_kind(content)}"
    return f"is damaged: {error or type(error).__name__}"


def explain_unread(error: OSError) -> str:
    """Why a file could not be read at all."""
    return f"cannot be read: {error.strerror or error}"


class TooManyPixelsError(ValueError):
    """An image is larger than any that is decoded."""


def _kind(content: bytes) -> str:
    beginning = content[:64].lstrip().lower()
    label = next((kind for mark, kind in _KINDS if beginning.startswith(mark.lower())), None)
    if label is not None:
        return label
    if content.isascii() and b"\0" not in content:
        return "text"
    return f"begins with the bytes {content[:_FIRST_BYTES].hex(' ')}"


@dataclass(kw_only=True)
class Report:
    """The content of all files of a data set."""

    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(width, height) -> number of images."""
    formats: Counter[str] = field(default_factory=Counter)
    """Format, by Pillow's name -> number of images."""
    num_bytes: int = 0
    """Bytes of all images."""
    problems: dict[str, str] = field(default_factory=dict)
    """Path -> why the file is no image, in the order of the data set."""


def check_files(parts: ImageParts, tick: Callable[[], None] = lambda: None) -> Report:
    """Decode all files, several at a time; `tick` is called after each."""
    paths = [part.root / path for part in (parts.train, parts.test) for path in part.paths]
    report = Report()
    with no_warnings(), ThreadPoolExecutor(2 * len(os.sched_getaffinity(0))) as threads:
        for path, found in zip(paths, threads.map(_look_into, paths), strict=True):
            tick()
            if isinstance(found, str):
                report.problems[str(path)] = found
                continue
            size, kind, num_bytes = found
            report.sizes[size] += 1
            report.formats[kind] += 1
            report.num_bytes += num_bytes
    return report


def _look_into(path: Path) -> tuple[Size, str, int] | str:
    """Return the size, format and bytes of an image, or why the file is none."""
    try:
        content = read_file(str(path))
    except OSError as error:
        return explain_unread(error)
    try:
        image = open_image(content)
        image.convert("RGB")  # as it is done to train with it
    except Exception as error:  # noqa: BLE001 - Pillow's decoders raise whatever they come upon
        return explain(content, error)
    return image.size, image.format or "?", len(content)
