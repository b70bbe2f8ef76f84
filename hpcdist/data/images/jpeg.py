"""What a JPEG file says about itself before it is decoded."""

from __future__ import annotations

from dataclasses import dataclass

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
    """The header of the first frame; None where this is no JPEG file, or ends before."""
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
