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

    from hpcdist.data.arrays import Samples

    Pixels = NDArray[np.uint8]
    from PIL.Image import Image


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
        assert whole.pixels is not None
        before, after = (
            PixelSamples(whole, transform, seed) for transform in ("none", data.transform)
        )
        names = tuple(map(str, range(whole.num_classes)))
        brighter = 255 / float(whole.pixels.max())
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
            if pixels is None:  # the mark of a file that is no image
                axis.plot([0, 1, None, 0, 1], [0, 1, None, 1, 0], color="#d8d8d8")
            else:
                colours = pixels.repeat(3, axis=2) if pixels.shape[2] == 1 else pixels
                axis.imshow(colours, interpolation="nearest")
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert("RGB")
