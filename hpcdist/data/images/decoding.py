"""From the bytes of a file to the pixels of a picture.

A picture is RGB, 8 bits per channel. `pil` is what everybody writes: PIL's open and convert.
`exact` gives the same pixels: a colour JPEG file goes straight to libjpeg-turbo, which decodes in
PIL too, and everything else to PIL. `fast` lets libjpeg-turbo leave out what a smaller picture does
not need.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from PIL import Image

from hpcdist.data.images.contents import MOST_PIXELS, check_size, explain
from hpcdist.data.images.jpeg import JpegHeader, read_header

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
        """The same as an image of PIL."""
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
        """Decode to where the pixels are wanted."""
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
    found: Callable[..., Any] = decode_jpeg
    return found
