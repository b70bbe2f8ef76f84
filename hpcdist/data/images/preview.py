"""The first batch of a training as the model will see it, and a picture of it.

The picture is a grid of images with their labels, each before and after data.transform.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from hpcdist.job.spec import Data

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hpcdist.data.images.samples import FastImages

    Pixels = NDArray[np.uint8]
    from PIL.Image import Image


@dataclass(frozen=True, kw_only=True)
class Shown:
    label: str
    """Name of its class, or its number."""
    before: Pixels
    """[height, width, channels], as it was read."""
    after: Pixels
    """The same after data.transform."""


_NUMBER = 16


def load_preview(data: Data) -> list[Shown]:
    """The first samples of the first epoch, as a training with the train.seed 0 has them.
    Those in memory are brightened: their blackest is black, and their whitest white."""
    from hpcdist.data.catalog import find_images, load_data, open_images
    from hpcdist.data.images.transforms import check_transform

    check_transform(data.transform)
    parts = find_images(data)  # before torch is imported, which takes seconds
    from hpcdist.data.arrays import Samples
    from hpcdist.data.order import epoch_order

    samples: Samples | FastImages
    if parts is not None:
        samples = open_images(parts.train, data, 0)
        as_read = open_images(parts.train, msgspec.structs.replace(data, transform="none"), 0)
        names = parts.train.classes
    else:
        whole = load_data(data)
        assert isinstance(whole.train, Samples)
        samples, names = whole.train, tuple(map(str, range(whole.num_classes)))
    order = epoch_order(len(samples), seed=0, epoch=0)[: min(_NUMBER, len(samples))]
    if isinstance(samples, Samples):
        images = samples.images - samples.images.min()
        images = images.div_(images.max()).mul_(255).round_().byte()
        after = before = Samples(images=images, labels=samples.labels).at(order)
    else:
        after, before = (each.batch(order.tolist(), epoch=0) for each in (samples, as_read))
    channels_last = (batch.images.permute(0, 2, 3, 1).numpy() for batch in (before, after))
    return [
        Shown(label=names[int(label)], before=pixels, after=changed)
        for label, pixels, changed in zip(after.labels, *channels_last, strict=True)
    ]


_SIDE_IN = 1.2
"""Size of an image on the page, in inches of 100 pixels."""
_COLUMNS = 8
_MOST_LETTERS = 16


def draw_grid(samples: Sequence[Shown], *, title: str, both: bool) -> Image:
    """The samples beneath a title; `both`: before on the left and after on the right of each."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    def fit(text: str, length: int) -> str:
        text = text.encode(errors="replace").decode().replace("$", "\\$")  # no formulas
        return text if len(text) <= length else text[: length - 1] + "…"

    per_sample = 2 if both else 1
    columns = min(_COLUMNS, len(samples) * per_sample)
    rows = math.ceil(len(samples) * per_sample / columns)
    size = max(columns * _SIDE_IN, 3.0), rows * (_SIDE_IN + 0.2) + 0.5
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    figure.suptitle(fit(title, int(size[0] * 11)), fontsize=9)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis in axes:
        axis.set_axis_off()
    for number, sample in enumerate(samples):
        own = axes[number * per_sample : (number + 1) * per_sample]
        own[0].set_title(fit(sample.label, _MOST_LETTERS), fontsize=8, loc="left")
        for axis, pixels in zip(own, (sample.before, sample.after)[-per_sample:], strict=True):
            colours = pixels.repeat(3, axis=2) if pixels.shape[2] == 1 else pixels
            axis.imshow(colours, interpolation="nearest")
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert("RGB")
