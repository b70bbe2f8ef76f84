"""image_folder: one folder per class, in the layout of torchvision's ImageFolder.

<root>/<class>/...jpg                              split here, a fifth of each class for testing
<root>/train/<class>/...jpg, <root>/test/...       or val, or valid, in place of test
"""

from __future__ import annotations

from pathlib import Path

from hpcdist.base.errors import JobError
from hpcdist.data.images.files import ImageParts
from hpcdist.data.images.listing import Found, folders_in, has_images, list_classes
from hpcdist.data.images.splits import make_files, split_classes
from hpcdist.data.sizes import SplitSizes
from hpcdist.job.spec import Data

_TRAIN = "train"
_TESTS = ("test", "val", "valid")
_LAYOUT = (
    "lay it out as <root>/<class>/<image>.jpg, or as <root>/train/<class>/<image>.jpg and "
    "<root>/test/<class>/<image>.jpg"
)


def check(data: Data) -> SplitSizes:
    """The sizes of the two parts; JobError where there are no images, or too few."""
    return images(data).sizes


def images(data: Data) -> ImageParts:
    """The files of both parts."""
    root = existing_root(data, _LAYOUT)
    folders = folders_in(root)
    test = next((name for name in _TESTS if name in folders), None)
    if _TRAIN in folders and test is not None:
        return _both_parts(root, test)
    top = _TRAIN if folders == [_TRAIN] else ""
    classes = list_classes(root, top)
    check_enough(classes, root / top, _LAYOUT)
    return split_classes(root, classes)


def existing_root(data: Data, layout: str) -> Path:
    """The folder data.root; JobError where it is none."""
    if data.root is None:
        raise JobError(f"data.root is not set, and {data.name} is not bundled", hint=layout)
    root = Path(data.root).expanduser()
    try:
        root.stat()
    except OSError as error:
        raise JobError(f"data.root is {data.root!r}: {error.strerror}", hint=layout) from None
    if not root.is_dir():
        raise JobError(f"data.root is {data.root!r}: {root} is not a folder", hint=layout)
    return root


def check_enough(classes: list[Found], folder: Path, layout: str) -> None:
    """Raise JobError for a folder with less than two images, saying what is there instead."""
    number = sum(len(found.paths) for found in classes)
    if number == 0 and has_images(folder):
        wrong = f"{folder} holds images, but no folders with images in them"
    elif number == 0:
        wrong = f"there are no images in {folder}, nor in the folders below it"
    elif number == 1:
        wrong = f"there is one image in {folder}, and one is needed to train, one to test"
    else:
        return
    raise JobError(wrong, hint=layout)


def _both_parts(root: Path, test: str) -> ImageParts:
    parts = {name: list_classes(root, name) for name in (_TRAIN, test)}
    for name, classes in parts.items():
        if not classes:
            check_enough(classes, root / name, _LAYOUT)
    paths = {
        name: {found.name: found.paths for found in classes} for name, classes in parts.items()
    }
    names = sorted(set(paths[_TRAIN]) | set(paths[test]))
    both = [Found(name=name, paths=()) for name in names]
    return ImageParts(
        train=make_files(root, both, (paths[_TRAIN].get(name, ()) for name in names)),
        test=make_files(root, both, (paths[test].get(name, ()) for name in names)),
    )
