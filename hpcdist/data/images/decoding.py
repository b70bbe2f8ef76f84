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

_FIRST_BYTES = 24


@contextmanager
def no_warnings() -> Iterator[None]:
    """Keep Pillow quiet about damaged metadata and large images; around threads, not in them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        warnings.filterwarnings("ignore", category=UserWarning, module="PIL")
        yield


def open_image(content: bytes) -> Image.Image:
    """Open an image that is not decoded yet; DecompressionBombError, or what Pillow raises."""
    image = Image.open(io.BytesIO(content), formats=_FORMATS)
    width, height = image.size
    if width * height > MOST_PIXELS:
        most = f"more than {MOST_PIXELS / 1e6:.0f} million"
        raise Image.DecompressionBombError(f"{width:,} x {height:,} pixels, {most}")
    return image


def explain(content: bytes, error: Exception) -> str:
    """Why a decoder refused a file's content, in words that stand after its name."""
    if not content:
        return "is empty"
    if isinstance(error, Image.DecompressionBombError):
        return f"is too large: {error}"
    if isinstance(error, UnidentifiedImageError):
        return f"is not an image: it begins with {content[:_FIRST_BYTES]!r}"
    return f"is damaged: {error or type(error).__name__}"


def explain_unread(error: OSError) -> str:
    """Why a file could not be read at all."""
    return f"cannot be read: {error.strerror or error}"


def check_files(parts: ImageParts, tick: Callable[[], object] = lambda: None) -> dict[str, str]:
    """Decode all files, several at a time, and return why some are no images, by their paths;
    `tick` is called after each."""

    def look_into(path: Path) -> str | None:
        try:
            decode(read_bytes(path, most_bytes=MOST_BYTES), None)
        except (OSError, UnreadableImageError) as error:
            return explain_unread(error) if isinstance(error, OSError) else str(error)
        return None

    paths = [part.root / path for part in (parts.train, parts.test) for path in part.paths]
    problems = {}
    with no_warnings(), ThreadPoolExecutor(2 * len(os.sched_getaffinity(0))) as threads:
        for path, problem in zip(paths, threads.map(look_into, paths), strict=True):
            tick()
            if problem is not None:
                problems[str(path)] = problem
    return problems
