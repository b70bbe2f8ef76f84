"""faces: photographs of people in the layout of LFW (Labeled Faces in the Wild), or a stand-in.

    <root>/Aaron_Eckhart/Aaron_Eckhart_0001.jpg        one folder per person

data.root is that folder, or a folder that holds it. A fifth of each person's images is for testing.
LFW's own files that split it are left alone: by them nobody is in both parts, since they are for
telling whether two images show the same person, and not for putting a name to one.

Without a root, photographs are made once in the user's cache, from the two that are bundled with
scikit-learn: 250 x 250 pixels, about 16 KB. They show no faces: each "person" is a place in one of
the two, in colours of its own, and its images are crops about there, some of them mirrored, lighter
or darker. So there is something to learn, and the files are of LFW's kind, size and number per
person: a few people have many images, many have one or two.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdist.base.errors import JobError
from hpcdist.base.files import PRIVATE_FOLDER, user_cache
from hpcdist.data.images.folders import check_enough, folders_in, has_images, list_classes
from hpcdist.data.splits import ImageParts, SplitSizes, existing_root, split_classes
from hpcdist.job.spec import Data

if TYPE_CHECKING:
    from PIL.Image import Image

LAYOUT = (
    "lay it out as <root>/Person_Name/Person_Name_0001.jpg; LFW's own host is gone, but "
    "https://ndownloader.figshare.com/files/5976015 has it (funneled, a .tgz to unpack), from "
    "where sklearn.datasets.fetch_lfw_people() fetches it to ~/scikit_learn_data/lfw_home; without "
    "data.root, photographs are made"
)
CACHE_VARIABLE = "HPCDIST_CACHE"
"""Set by the user, where the home folder is small or not there on the compute nodes."""
SIDE = 250
"""Pixels, as LFW's images have."""
_VERSION = 1  # of what is made of a plan
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

    def classes(self) -> dict[str, list[str]]:
        """Return the people, and the paths of their images: one of each person, and more by Zipf's
        law, in mixed order."""
        weights = [1 / (rank + 1) for rank in range(self.people)]
        total, spread = sum(weights), self.images - self.people
        until = [round(spread * passed / total) for passed in itertools.accumulate(weights)]
        counts = [1 + end - begin for begin, end in itertools.pairwise([0, *until])]
        random.Random(self.seed).shuffle(counts)
        width = max(4, len(str(self.people)))
        names = (f"Person_{person:0{width}d}" for person in range(1, self.people + 1))
        return {
            name: [f"{name}/{name}_{number:04d}.jpg" for number in range(1, count + 1)]
            for name, count in zip(names, counts, strict=True)
        }


_STAND_IN = Plan()


def check(data: Data) -> SplitSizes:
    """Return the sizes of both parts, also of a stand-in that is still to be made. JobError where
    there are no images, or too few."""
    return (_stand_in() if data.root is None else images(data)).sizes


def images(data: Data) -> ImageParts:
    """Return the files of both parts; what is missing is made first."""
    if data.root is None:
        prepare(data)
        return _stand_in()
    root = existing_root(data, LAYOUT)
    while (below := folders_in(root)) and not any(has_images(root / name) for name in below):
        if len(below) > 1:
            raise JobError(
                f"{root} holds several folders without images of their own: {', '.join(below[:5])}",
                hint=f"name one with data.root: {root / below[0]}",
            )
        root /= below[0]  # the folder around the people's, such as LFW's own
    classes = list_classes(root)
    check_enough(classes, root, LAYOUT)
    return split_classes(root, classes)


def prepare(data: Data) -> None:
    """Make the stand-in, unless that was done before: whole, or not at all. Where several processes
    make it at once, the first one that is done wins. JobError where it cannot be written."""
    path = stand_in_folder()
    if data.root is not None or path.is_dir():
        return
    try:
        path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        make_whole(path, lambda folder: make_faces(folder, _STAND_IN))
    except OSError as error:
        if not path.is_dir():  # else another one was faster
            hint = f"set {CACHE_VARIABLE} to a folder that you may write, or data.root to your data"
            reason = error.strerror or error
            raise JobError(f"{path} cannot be made: {reason}", hint=hint) from None


def stand_in_folder() -> Path:
    """Return the folder of the stand-in, which may still have to be made."""
    own = os.environ.get(CACHE_VARIABLE)
    cache = Path(own).absolute() if own else user_cache()
    return cache / f"faces-{_STAND_IN.people}-{_STAND_IN.images}-{_STAND_IN.seed}-v{_VERSION}"


def _stand_in() -> ImageParts:
    return split_classes(stand_in_folder(), _STAND_IN.classes())


def make_whole(path: Path, make: Callable[[Path], None]) -> None:
    """Have `make` fill a new folder, under another name until it is whole. `path` may be there, but
    must be empty then: else OSError, and what was made is removed."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.aside")
    try:
        aside.mkdir()
        make(aside)
        aside.rename(path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def make_faces(folder: Path, plan: Plan) -> None:
    """Write all images of the plan into a folder; JobError where scikit-learn is not installed."""
    from concurrent.futures import ThreadPoolExecutor  # which commands need not import

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
