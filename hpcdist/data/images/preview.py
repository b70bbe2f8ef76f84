"""The first batch of a training as the model will see it: each image before and after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from hpcdist.job.spec import Data

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hpcdist.data.images.samples import ImageSamples

    Pixels = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One training image."""

    label: str
    """Name of its class, or its number."""
    before: Pixels | None
    """[height, width, channels], as it was read; None: the file is no image."""
    after: Pixels | None
    """The same after data.transform."""
    problem: str = ""
    """Path of the file that is no image, and why it is none."""


def load_preview(data: Data, *, seed: int, number: int) -> list[Shown]:
    """The first so many samples of the first epoch, as a training with this train.seed has them."""
    from hpcdist.data.catalog import find_images
    from hpcdist.data.images.transforms import check_transform

    check_transform(data.transform)
    parts = find_images(data)
    if parts is None:
        return list(_from_memory(data, seed, number))
    from hpcdist.data.images.samples import ImageSamples  # brings torch: files come first

    samples = ImageSamples(parts.train, data, seed)
    plain = ImageSamples(parts.train, msgspec.structs.replace(data, transform="none"), seed)
    return [_from_file(plain, samples, index) for index in _first(len(samples), seed, number)]


def _first(num_samples: int, seed: int, number: int) -> list[int]:
    """The samples that the first epoch begins with."""
    from hpcdist.data.order import epoch_order

    order = epoch_order(num_samples, seed=seed, epoch=0)[:num_samples]
    indices: list[int] = order[:number].tolist()
    return indices


def _from_file(plain: ImageSamples, samples: ImageSamples, index: int) -> Shown:
    from hpcdist.data.images.contents import explain_unread, no_warnings
    from hpcdist.data.images.decoding import UnreadableImageError

    label = samples.files.classes[samples.files.labels[index]]
    try:
        content = samples.read(index)
        with no_warnings():
            before = plain.transform(plain.decode(content), index, 0)
            after = samples.transform(samples.decode(content), index, 0)
    except OSError as error:
        problem = explain_unread(error)
    except UnreadableImageError as error:
        problem = str(error)
    else:
        return Shown(label=label, before=before, after=after)
    return Shown(label=label, before=None, after=None, problem=f"{samples.path(index)} {problem}")


def _from_memory(data: Data, seed: int, number: int) -> Iterator[Shown]:
    """Brightened where the data set's whitest is less than 255: digits' is 16."""
    import numpy as np

    from hpcdist.data.catalog import find_data_set
    from hpcdist.data.images.samples import PixelSamples

    load = find_data_set(data).load
    assert load is not None
    whole = load(data)
    assert whole.train_pixels is not None
    images = whole.train_pixels.images.numpy()
    samples = PixelSamples(whole.train_pixels, whole.train.labels, data, seed)
    indices = _first(len(samples), seed, number)
    channels, height, width = samples.shape
    after = np.empty((len(indices), height, width, channels), np.uint8)
    samples.fill(after, indices, epoch=0)
    before = images[indices].reshape(len(indices), *images.shape[1:3], channels)
    brighter = 255 / images.max()
    for position, index in enumerate(indices):
        yield Shown(
            label=str(int(samples.labels[index])),
            before=np.rint(before[position] * brighter).astype(np.uint8),
            after=np.rint(after[position] * brighter).clip(0, 255).astype(np.uint8),
        )
