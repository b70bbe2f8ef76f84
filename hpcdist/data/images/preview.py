"""The first batch of a training as the model will see it, and a picture of it.

The picture is a grid of images with their labels, each before and after data.transform.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hpcdist.job.spec import Data

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hpcdist.data.arrays import Samples

    Pixels = NDArray[np.uint8]
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont
    from PIL.ImageFont import ImageFont as BitmapFont

    Font = FreeTypeFont | BitmapFont


@dataclass(frozen=True, kw_only=True)
class Shown:
    label: str
    """Name of its class, or its number."""
    before: Pixels | None
    """[height, width, channels], as it was read; None: the file is no image."""
    after: Pixels | None
    """The same after data.transform."""
    problem: str = ""
    """Path of the file that is no image, and why it is none."""


def load_preview(data: Data, *, seed: int, number: int) -> list[Shown]:
    """The first so many samples of the first epoch, as a training with this train.seed has them.

    Those in memory are brightened where the data set's whitest is less than 255: digits' is 16.
    """
    from hpcdist.data.catalog import find_data_set, find_images, open_images
    from hpcdist.data.images.transforms import check_transform

    check_transform(data.transform)
    parts = find_images(data)  # before torch is imported, which takes seconds
    import numpy as np

    from hpcdist.data.images.samples import PixelSamples, TransformedImages
    from hpcdist.data.order import epoch_order

    before: TransformedImages
    after: TransformedImages
    if parts is not None:
        data = msgspec.structs.replace(data, bad_files="skip")
        after = open_images(parts.train, data, seed)
        before = open_images(parts.train, msgspec.structs.replace(data, transform="none"), seed)
        names, brighter = parts.train.classes, 1.0
    else:
        load = find_data_set(data).load
        assert load is not None
        whole = load(data)
        pixels = whole.train_pixels
        assert pixels is not None
        before, after = (
            PixelSamples(pixels, whole.train.labels, transform, seed)
            for transform in ("none", data.transform)
        )
        names = tuple(map(str, range(whole.num_classes)))
        brighter = 255 / float(pixels.images.max())
    order = epoch_order(len(after), seed=seed, epoch=0)[: min(number, len(after))].tolist()
    both = [samples.batch(order, epoch=0) for samples in (before, after)]
    problems = {bad.index: str(bad) for bad in both[1].bad}

    def image(batch: Samples, position: int) -> Pixels | None:
        if order[position] in problems:
            return None
        shown = batch.images[position].permute(1, 2, 0).numpy() * brighter
        return np.rint(shown).clip(0, 255).astype(np.uint8)

    return [
        Shown(
            label=names[int(after.labels[index])],
            before=image(both[0], position),
            after=image(both[1], position),
            problem=problems.get(index, ""),
        )
        for position, index in enumerate(order)
    ]


_LEAST_SIDE, _MOST_SIDE = 96, 176
_PAIRS_IN_ROW = 4
_GAP = 12
_INNER_GAP = 2
_TEXT = 12
_LINE = 18
_BACKGROUND, _INK, _FAINT = "#ffffff", "#202020", "#d8d8d8"


def draw_grid(samples: Sequence[Shown], *, title: str, both: bool) -> Image:
    """The samples beneath a title; `both`: before on the left and after on the right of each."""
    from PIL import Image, ImageDraw

    width, height = _tile_size(samples)
    per_sample = 2 if both else 1
    if both:
        columns = min(_PAIRS_IN_ROW, len(samples))
    else:  # near to what makes the page square, with the last row as full as can be
        even = math.sqrt(len(samples) * (height + _LINE) / width)
        choices = {max(1, min(math.floor(even) + step, len(samples))) for step in (-1, 0, 1, 2)}
        columns = min(choices, key=lambda number: (-len(samples) % number, abs(number - even)))
    cell_width = width * per_sample + (per_sample - 1) * _INNER_GAP + _GAP
    cell_height = height + _LINE + _GAP
    rows = math.ceil(len(samples) / columns)
    size = columns * cell_width + _GAP, rows * cell_height + _LINE + 2 * _GAP
    page = Image.new("RGB", size, _BACKGROUND)
    pen, font = ImageDraw.Draw(page), _font()
    pen.text((_GAP, _GAP), _fitted(pen, title, size[0] - 2 * _GAP, font), _INK, font)
    for number, sample in enumerate(samples):
        row, column = divmod(number, columns)
        left, top = _GAP + column * cell_width, _LINE + 2 * _GAP + row * cell_height
        for place, pixels in enumerate((sample.before, sample.after)[-per_sample:]):
            corner = (left + place * (width + _INNER_GAP), top)
            if pixels is None:
                _cross(pen, corner, (width, height))
            else:
                page.paste(_tile(pixels, (width, height)), corner)
        text = _fitted(pen, sample.label, cell_width - _GAP, font)
        pen.text((left, top + height + 2), text, _INK, font)
    return page


def _tile_size(samples: Sequence[Shown]) -> tuple[int, int]:
    """Return the width and height at which images are shown: small ones whole times larger."""
    pixels = next((sample.after for sample in samples if sample.after is not None), None)
    height, width = (_LEAST_SIDE, _LEAST_SIDE) if pixels is None else pixels.shape[:2]
    longest = max(width, height)
    if longest < _LEAST_SIDE:
        times = math.ceil(_LEAST_SIDE / longest)
        return width * times, height * times
    share = min(1.0, _MOST_SIDE / longest)
    return max(1, round(width * share)), max(1, round(height * share))


def _tile(pixels: Pixels, size: tuple[int, int]) -> Image:
    from PIL import Image

    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
    larger = size[0] > image.width
    method = Image.Resampling.NEAREST if larger else Image.Resampling.LANCZOS
    return image.resize(size, method)


def _cross(pen: ImageDraw, corner: tuple[int, int], size: tuple[int, int]) -> None:
    """Draw the mark of a file that is no image."""
    left, top = corner
    right, bottom = left + size[0] - 1, top + size[1] - 1
    pen.rectangle((left, top, right, bottom), outline=_FAINT)
    pen.line((left, top, right, bottom), fill=_FAINT)
    pen.line((left, bottom, right, top), fill=_FAINT)


def _font() -> Font:
    """Return the one that matplotlib brings, which has the letters of most languages."""
    from PIL import ImageFont

    package = find_spec("matplotlib")
    if package is not None and package.origin is not None:
        path = Path(package.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf"
        if path.is_file():
            return ImageFont.truetype(str(path), _TEXT)
    return ImageFont.load_default()


def _fitted(pen: ImageDraw, text: str, width: int, font: Font) -> str:
    """Return as much of the text as fits; bytes that are no text are replaced."""
    text = text.encode(errors="replace").decode()
    if pen.textlength(text, font) <= width:
        return text
    while text and pen.textlength(text + "…", font) > width:
        text = text[:-1]
    return text + "…"
