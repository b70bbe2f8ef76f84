"""A picture as a part of a page: its SVG, in the colours of the page, and with ids of its own."""

from __future__ import annotations

import re

from hpcdist.summary.report.pictures.catalogue import Picture
from hpcdist.summary.report.pictures.style import drawing, save

_INK = "#010203"
"""Nothing else has this colour: the page's own is put in its place, be it dark or light."""

_ID = re.compile(r'(\bid="|href="#|url\(#)')
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)


def draw_inline(picture: Picture) -> str:
    """Draw it: an `svg` element that is as wide as there is room."""
    with drawing(ink=_INK):
        svg = save(picture.draw(), "svg", is_transparent=True).decode()
    return _inlined(svg, prefix=picture.name)


def _inlined(svg: str, *, prefix: str) -> str:
    """Ids are those of the whole page, so pictures must not share any."""
    element = _METADATA.sub("", svg[svg.index("<svg") :])
    head, _, rest = element.partition(">")
    head = re.sub(r'\s(?:width|height)="[^"]*"', "", head)
    head = head.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)
    return _ID.sub(rf"\g<1>{prefix}-", f"{head}>{rest}").replace(_INK, "currentColor")
