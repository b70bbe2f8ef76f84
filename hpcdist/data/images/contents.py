"""What is wrong with a file that should be an image: the same words wherever one is met."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_PIXELS = 89_478_485
"""Of an image that is decoded, as Pillow has it: a file of a few KB can ask for any memory."""
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
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        warnings.filterwarnings("ignore", category=UserWarning, module="PIL")
        yield


def read_image(content: bytes) -> Image:
    """The decoded image; what Pillow raises where it is none, see `explain`."""
    from PIL import Image

    image = Image.open(io.BytesIO(content))
    check_size(*image.size)
    image.load()
    if image.mode != "RGB":
        image.convert("RGB")  # as it is done to train with it
    return image


def explain(content: bytes, error: Exception) -> str:
    """Why a decoder refused a file's content, in words that stand after its name."""
    from PIL import Image, UnidentifiedImageError

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
    known = next((kind for mark, kind in _KINDS if beginning.startswith(mark.lower())), None)
    if known is not None:
        return known
    if content.isascii() and b"\0" not in content:
        return "text"
    return f"begins with the bytes {content[:_FIRST_BYTES].hex(' ')}"
