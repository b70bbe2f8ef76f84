"""A stand-in for LFW, made from the two photographs that are bundled with scikit-learn.

    <folder>/Person_0001/Person_0001_0001.jpg          250 x 250 pixels, about 16 KB

They show no faces: each "person" is a place in one of the two photographs, in colours of its own,
and its images are crops about there, some of them mirrored, lighter or darker. So there is
something to learn, and the files are of LFW's kind, size and number per person: a few people have
many images, many have one or two.
"""

from __future__ import annotations

import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdist.base.errors import JobError
from hpcdist.data.splits import ImageParts, split_classes

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 250
"""Pixels, as LFW's images have."""
_PHOTOGRAPHS = ("china.jpg", "flower.jpg")
_QUALITY = 88
_THREADS = 4


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Photographs to make: the same plan makes the same bytes, with the same version of Pillow."""

    people: int = 400
    images: int = 2000
    """Images of all people; each has one or more."""
    seed: int = 0

    def counts(self) -> list[int]:
        """The number of images of each person: one, and more by Zipf's law, in mixed order."""
        weights = [1 / (rank + 1) for rank in range(self.people)]
        total, spread = sum(weights), self.images - self.people
        until = [round(spread * passed / total) for passed in itertools.accumulate(weights)]
        counts = [1 + end - begin for begin, end in itertools.pairwise([0, *until])]
        random.Random(self.seed).shuffle(counts)
        return counts

    def classes(self) -> dict[str, list[str]]:
        """Return the people, and the paths of their images."""
        width = max(4, len(str(self.people)))
        names = (f"Person_{person:0{width}d}" for person in range(1, self.people + 1))
        return {
            name: [f"{name}/{name}_{number:04d}.jpg" for number in range(1, count + 1)]
            for name, count in zip(names, self.counts(), strict=True)
        }

    def parts(self, folder: Path) -> ImageParts:
        """Return the data set as it is, or will be, in a folder."""
        return split_classes(folder, self.classes())


def make_faces(folder: Path, plan: Plan) -> None:
    """Write all images of the plan into a folder; JobError where scikit-learn is not installed."""
    from hpcdist.data.images.decoding import open_image

    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise JobError(
            "scikit-learn, which has the photographs that faces are made from, is not installed",
            hint="pip install scikit-learn, or name your own images with data.root",
        )
    beside = Path(package.origin).parent / "datasets" / "images"
    contents = [(beside / name).read_bytes() for name in _PHOTOGRAPHS]
    photographs = [open_image(content).convert("RGB") for content in contents]
    with ThreadPoolExecutor(_THREADS) as threads:  # Pillow computes without the interpreter's lock
        futures = []
        for person, (name, paths) in enumerate(plan.classes().items()):
            (folder / name).mkdir()
            for number, path in enumerate(paths):
                chosen = folder / path, photographs, plan.seed, person, number
                futures.append(threads.submit(_write_picture, *chosen))
        for future in futures:
            future.result()


def _write_picture(
    path: Path, photographs: list[Image], seed: int, person: int, number: int
) -> None:
    """Write one JPEG file: a crop of the person's place, in the person's colours."""
    from PIL import Image, ImageEnhance

    lots = random.Random(f"{seed}/{person}")
    photograph = lots.choice(photographs)
    side = lots.uniform(140, 280)
    place = [lots.uniform(0, 1), lots.uniform(0, 1)]
    bands = lots.choice(((0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1), (2, 1, 0), (1, 0, 2)))
    colour = lots.uniform(0.3, 1.3)

    lots = random.Random(f"{seed}/{person}/{number}")
    side *= lots.uniform(0.9, 1.1)
    left, top = (
        min(max((length - side) * where + lots.gauss(0, 0.04) * side, 0), length - side)
        for length, where in zip(photograph.size, place, strict=True)
    )
    crop = photograph.resize(
        (SIDE, SIDE), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side)
    )
    if lots.random() < 0.5:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    channels = crop.split()
    crop = Image.merge("RGB", [channels[band] for band in bands])
    crop = ImageEnhance.Color(crop).enhance(colour)
    crop = ImageEnhance.Brightness(crop).enhance(lots.uniform(0.7, 1.2))
    crop.save(path, "JPEG", quality=_QUALITY)
