"""From the bytes of a file to the pixels of a picture, and what is wrong where there are none.

A picture is RGB, 8 bits per channel. Exact pixels are those of PIL's open and convert: a colour
JPEG file goes straight to libjpeg-turbo, which decodes in PIL too, and everything else to PIL. Fast
ones let libjpeg-turbo leave out what a smaller picture does not need.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, UnidentifiedImageError

from hpcdist.base.files import read_bytes
from hpcdist.data.splits import ImageParts

try:
    import simplejpeg
except ImportError:  # there is none for some machines
    simplejpeg = None

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Pixels = NDArray[np.uint8]

Size = tuple[int, int]
"""(width, height)"""

_JPEG = b"\xff\xd8"
_COLOURS = ("YCbCr", "RGB")
MOST_BYTES = 1_000_000_000
"""Size of a file that is read: the most that the pixels of an image that is decoded take."""
MOST_PIXELS = 89_478_485
"""Pillow's limit of an image that is decoded: a file of a few KB can ask for any memory."""
_MILLIONS = round(MOST_PIXELS / 1e6)


class UnreadableImageError(Exception):
    """A file shows no picture; says why."""


def decode(
    content: bytes, size: Size | None, *, is_fast: bool = False, out: Pixels | None = None
) -> Pixels:
    """Return the pixels [height, width, 3] in a file, scaled to a size if it is given.

    They are in `out`, which has that size, where a JPEG file has it, too. `is_fast`: a JPEG file is
    decoded at the smallest of 1/8, 1/4, 1/2 of its size that is not below what is wanted, and then
    scaled. UnreadableImageError where there are no pixels.
    """
    import numpy as np

    try:
        pixels = _decode_jpeg(content, size if is_fast else None, out)
        if pixels is None:
            pixels = np.asarray(open_image(content).convert("RGB"))
        if size is not None and pixels.shape[1::-1] != size:
            scaled = Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR)
            pixels = np.asarray(scaled)
    except Exception as error:  # noqa: BLE001 - PIL's plugins raise anything at broken files
        raise UnreadableImageError(explain(content, error)) from None
    return pixels


def _decode_jpeg(content: bytes, least: Size | None, out: Pixels | None) -> Pixels | None:
    """Return the pixels of a JPEG file of 8-bit colours, `least` or larger; None: PIL judges."""
    if simplejpeg is None or content[:2] != _JPEG:
        return None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
        if colours not in _COLOURS or height * width > MOST_PIXELS:
            return None
        options: dict[str, Any] = {}
        if least is not None:
            options = {"min_width": least[0], "min_height": least[1], "min_factor": 1}
        elif out is not None and out.shape == (height, width, 3):
            options = {"buffer": out}
        found: Pixels = simplejpeg.decode_jpeg(content, "RGB", **options)
    except ValueError:
        return None
    return out if "buffer" in options else found


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

    num_images: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    """Path -> why the file is no image, in the order of the data set."""


def check_files(parts: ImageParts, tick: Callable[[], object] = lambda: None) -> Report:
    """Decode all files, several at a time; `tick` is called after each."""
    paths = [part.root / path for part in (parts.train, parts.test) for path in part.paths]
    report = Report()
    with no_warnings(), ThreadPoolExecutor(2 * len(os.sched_getaffinity(0))) as threads:
        for path, found in zip(paths, threads.map(_look_into, paths), strict=True):
            tick()
            if found is None:
                report.num_images += 1
            else:
                report.problems[str(path)] = found
    return report


def _look_into(path: Path) -> str | None:
    """Return why a file is no image; None where it is one."""
    try:
        content = read_bytes(path, most_bytes=MOST_BYTES)
    except OSError as error:
        return explain_unread(error)
    try:
        open_image(content).convert("RGB")  # as it is done to train with it
    except Exception as error:  # noqa: BLE001 - Pillow's decoders raise whatever they come upon
        return explain(content, error)
    return None
