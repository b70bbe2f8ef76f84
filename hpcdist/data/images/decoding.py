"""From the bytes of a file to the pixels of a picture, and what is wrong where there are none.

A picture is RGB, 8 bits per channel. `pil` is what everybody writes: PIL's open and convert.
`exact` gives the same pixels: a colour JPEG file goes straight to libjpeg-turbo, which decodes in
PIL too, and everything else to PIL. `fast` lets libjpeg-turbo leave out what a smaller picture does
not need.
"""

from __future__ import annotations

import io
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from PIL import Image, UnidentifiedImageError

from hpcdist.data.splits import ImageFiles, ImageParts

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
        import numpy as np

        out[...] = np.asarray(self.picture(content))

    def picture(self, content: bytes) -> Image.Image:
        try:
            return self._scaled(self._open(content))
        except Exception as error:  # noqa: BLE001 - PIL's plugins raise anything at broken files
            raise UnreadableImageError(explain(content, error)) from None

    def _open(self, content: bytes) -> Image.Image:
        picture = Image.open(io.BytesIO(content))
        check_size(*picture.size)
        return picture.convert("RGB")

    def _scaled(self, picture: Image.Image) -> Image.Image:
        if self._size is None or picture.size == self._size:
            return picture
        return picture.resize(self._size, Image.Resampling.BILINEAR)


class ExactDecoder(PilDecoder):
    """The pixels of PIL; colour JPEG files go to libjpeg-turbo without PIL's detours.

    PIL's own way reads markers in Python and has the decoder give three bytes per pixel, which it
    then spreads over the four that it keeps. Where no image of PIL is wanted, simplejpeg decodes
    to where the pixels are wanted. Whatever either refuses is PIL's to judge.
    """

    def __init__(self, size: Size | None) -> None:
        super().__init__(size)
        self._decode_jpeg = _find_simplejpeg()

    def into(self, out: Pixels, content: bytes) -> None:
        header = _colour_header(content)
        has_size = header is not None and (header.height, header.width) == out.shape[:2]
        if self._decode_jpeg is None or not has_size or not out.flags.c_contiguous:
            super().into(out, content)
            return
        try:
            self._decode_jpeg(content, "RGB", buffer=out)
        except ValueError:
            super().into(out, content)

    def _open(self, content: bytes) -> Image.Image:
        header = _colour_header(content)
        if header is None:
            return super()._open(content)
        try:
            size = (header.width, header.height)
            return Image.frombytes("RGB", size, content, "jpeg", "RGBX", "")
        except Exception:  # noqa: BLE001 - whatever it is, PIL's own way tells
            return super()._open(content)


class FastDecoder(ExactDecoder):
    """Not bit for bit PIL's pixels where pictures are made smaller than they are.

    A JPEG file is decoded at the smallest of 1/8, 1/4, 1/2 of its size that is not below what is
    wanted, and then scaled.
    """

    def _open(self, content: bytes) -> Image.Image:
        if self._size is None:
            return super()._open(content)
        picture = Image.open(io.BytesIO(content))
        check_size(*picture.size)
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


def _colour_header(content: bytes) -> JpegHeader | None:
    """The header of a JPEG file of 8-bit colours that is not too large; None for any other."""
    header = read_header(content)
    if header is None or header.components != _COLOURS or header.precision != _BITS:
        return None
    return header if 0 < header.width * header.height <= MOST_PIXELS else None


def _find_simplejpeg() -> Callable[..., Any] | None:
    """None where it is not installed: there is none for some machines."""
    try:
        from simplejpeg import decode_jpeg
    except ImportError:
        return None
    decode: Callable[..., Any] = decode_jpeg
    return decode


_BEGIN = b"\xff\xd8"
_WITHOUT_LENGTH = frozenset([0x01, *range(0xD0, 0xD9)])
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers that begin a frame: all of 0xC0 to 0xCF but DHT, JPG and DAC."""


@dataclass(frozen=True)
class JpegHeader:
    """The frame of a JPEG file."""

    width: int
    height: int
    components: int
    """1: grayscale, 3: colour, 4: CMYK."""
    precision: int
    """Bits per sample."""


def read_header(content: bytes) -> JpegHeader | None:
    """Return the header of the first frame; None where this is no JPEG file, or ends before."""
    if content[:2] != _BEGIN:
        return None
    position, length = 2, len(content)
    while position + 9 < length:
        if content[position] != 0xFF:
            return None
        marker = content[position + 1]
        if marker == 0xFF or marker in _WITHOUT_LENGTH:  # 0xFF fills up
            position += 1 if marker == 0xFF else 2
            continue
        if marker in _FRAMES:
            return JpegHeader(
                width=content[position + 7] << 8 | content[position + 8],
                height=content[position + 5] << 8 | content[position + 6],
                components=content[position + 9],
                precision=content[position + 4],
            )
        position += 2 + (content[position + 2] << 8 | content[position + 3])
    return None


MOST_PIXELS = 89_478_485
"""Pillow's limit of an image that is decoded: a file of a few KB can ask for any memory."""
_MILLIONS = round(MOST_PIXELS / 1e6)

_KINDS = (
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


def read_image(content: bytes) -> Image.Image:
    """Return the decoded image; what Pillow raises where it is none, see `explain`."""
    image = Image.open(io.BytesIO(content))
    check_size(*image.size)
    image.load()
    if image.mode != "RGB":
        image.convert("RGB")  # as it is done to train with it
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
        return f"is no image, but {_kind(content)}"
    return f"is damaged: {error or type(error).__name__}"


def explain_unread(error: OSError) -> str:
    """Why a file could not be read at all."""
    return f"cannot be read: {error.strerror or error}"


class TooManyPixelsError(ValueError):
    """An image is larger than any that is decoded."""


def check_size(width: int, height: int) -> None:
    """Raise TooManyPixelsError for an image that is not to be decoded."""
    if width * height > MOST_PIXELS:
        raise TooManyPixelsError(f"{width:,} x {height:,} pixels, more than {_MILLIONS} million")


def _kind(content: bytes) -> str:
    beginning = content[:64].lstrip().lower()
    label = next((kind for mark, kind in _KINDS if beginning.startswith(mark.lower())), None)
    if label is not None:
        return label
    if content.isascii() and b"\0" not in content:
        return "text"
    return f"begins with the bytes {content[:_FIRST_BYTES].hex(' ')}"


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class _Answer:
    path: str
    problem: str | None = None
    size: tuple[int, int] = (0, 0)
    format: str = ""
    num_bytes: int = 0


def check_files(parts: ImageParts, tick: Callable[[], None] = lambda: None) -> Report:
    """Decode all files, several at a time; `tick` is called after each."""
    everything = [
        (part, path) for part in (parts.train, parts.test) for path in dict.fromkeys(part.paths)
    ]
    answers = []
    with no_warnings(), ThreadPoolExecutor(2 * len(os.sched_getaffinity(0))) as threads:
        for answer in threads.map(_look_into, everything):
            answers.append(answer)
            tick()
    good = [answer for answer in answers if answer.problem is None]
    return Report(
        sizes=Counter(answer.size for answer in good),
        formats=Counter(answer.format for answer in good),
        num_bytes=sum(answer.num_bytes for answer in good),
        problems={answer.path: answer.problem for answer in answers if answer.problem},
    )


def _look_into(file: tuple[ImageFiles, str]) -> _Answer:
    part, relative = file
    path = part.root / relative
    try:
        content = path.read_bytes()
    except OSError as error:
        return _Answer(path=str(path), problem=explain_unread(error))
    try:
        image = read_image(content)
    except Exception as error:  # noqa: BLE001 - Pillow's decoders raise whatever they come upon
        return _Answer(path=str(path), problem=explain(content, error))
    return _Answer(
        path=str(path), size=image.size, format=image.format or "?", num_bytes=len(content)
    )
