"""faces: photographs of people in the layout of LFW (Labeled Faces in the Wild), or a stand-in.

    <root>/Aaron_Eckhart/Aaron_Eckhart_0001.jpg        one folder per person

data.root is that folder, a folder that holds it, or LFW's .tgz, which is unpacked once into the
user's cache. Without a root, photographs are made there. A fifth of each person's images is for
testing, unless LFW's own files split them, which are looked for in this order:

    peopleDevTrain.txt, peopleDevTest.txt    a person per line, with all images: name, how many
    pairsDevTrain.txt, pairsDevTest.txt      only the images of the pairs: name, number, number;
                                             or name, number, name, number
    pairs.txt                                ten sets of such pairs; the last one is for testing

The first line of each says how many there are. Nobody is in both parts: the files are for telling
whether two images show the same person, not for putting a name to one.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path, PurePath, PurePosixPath
from tarfile import ReadError, TarFile
from typing import Any, BinaryIO, NamedTuple, cast

from hpcdist.base.errors import JobError
from hpcdist.base.files import open_regular, read_bytes
from hpcdist.data.images import made_faces
from hpcdist.data.images.folders import (
    check_enough,
    folders_in,
    has_images,
    list_classes,
    unreadable,
)
from hpcdist.data.images.made_once import cache_folder, make_once
from hpcdist.data.splits import (
    Classes,
    ImageParts,
    SplitSizes,
    existing_root,
    make_parts,
    split_classes,
)
from hpcdist.job.spec import Data

VARIANTS = ("lfw", "lfw_funneled", "lfw-deepfunneled", "lfw-py")
"""Names of the folders in LFW's archives, and of the one that torchvision keeps them in."""
_STAND_IN = made_faces.Plan()
_VERSION = 1  # of what is made of a plan
NO_CLASS_IN_BOTH = (
    "no class is in both parts, so a model that names classes is always wrong about the "
    "test images; data.split=stratified splits each class"
)
LAYOUT = (
    "lay it out as <root>/Person_Name/Person_Name_0001.jpg, or name LFW's .tgz: its own host is "
    "gone, but https://ndownloader.figshare.com/files/5976015 has it (funneled), from where "
    "sklearn.datasets.fetch_lfw_people() fetches it to ~/scikit_learn_data/lfw_home; without "
    "data.root, photographs are made"
)


def check(data: Data) -> SplitSizes | None:
    """Return the sizes of both parts, also of a stand-in that is still to be made. None where an
    archive is still to be unpacked. JobError where there are no images, or too few."""
    if data.root is None:
        return _STAND_IN.parts(stand_in_folder()).sizes
    if not is_complete(data):
        return None
    return images(data).sizes


def is_complete(data: Data) -> bool:
    """Return whether the image files are there, and neither to be made nor to be unpacked."""
    made = _made_folder(data)
    return made is None or made.is_dir()


def prepare(data: Data) -> None:
    """Make the stand-in, or unpack the archive, unless that was done before."""
    made = _made_folder(data)
    if made is not None and data.root is None:
        make_once(made, lambda folder: made_faces.make_faces(folder, _STAND_IN))
    elif made is not None and data.root is not None:
        archive = Path(data.root).expanduser()
        make_once(made, lambda folder: unpack(archive, folder))


def unmade(data: Data) -> str | None:
    """Return a note on what `prepare` will make; None: nothing."""
    made = _made_folder(data)
    if made is None or made.is_dir():
        return None
    if data.root is None:
        return f"{_STAND_IN.images:,} photographs for data.name=faces are made once, in {made}"
    return f"{data.root} is unpacked once, to {made}"


def remarks(data: Data) -> list[str]:
    """Return notes for the user on files that are there, and have been checked."""
    if data.root is None or not is_complete(data):
        return []
    _, files = _find_people(data)
    if files is None:
        return []
    # Lines of four fields have name, number, name, number; all others begin with their one name.
    train, test = (
        {name for line in lines for name in line.fields[:: 2 if len(line.fields) == 4 else 4]}
        for lines in _both_parts(files)
    )
    if train & test:
        return []
    names = " and ".join(dict.fromkeys((files.train.name, files.test.name)))
    return [f"by {names} {NO_CLASS_IN_BOTH}"]


def images(data: Data) -> ImageParts:
    """Return the files of both parts; what is missing is made first."""
    prepare(data)
    if data.root is None:
        return _STAND_IN.parts(stand_in_folder())
    root, files = _find_people(data)
    classes = list_classes(root)
    check_enough(classes, root, LAYOUT)
    return split_classes(root, classes) if files is None else split_by_files(root, classes, files)


def stand_in_folder() -> Path:
    """Return the folder of the stand-in, which may still have to be made."""
    plan = _STAND_IN
    name = f"faces-{plan.people}-{plan.images}-{plan.seed}-v{_VERSION}"
    return cache_folder() / name


def _made_folder(data: Data) -> Path | None:
    """The folder in the cache that the images are in, or will be; None: they are under root."""
    if data.root is None:
        return stand_in_folder()
    root = Path(data.root).expanduser()
    if not root.is_file():
        return None
    try:
        with tarfile.open(root, tarinfo=_Member):
            is_archive = True
    except (OSError, EOFError, zlib.error, tarfile.TarError):
        is_archive = False
    if not is_archive:
        raise JobError(
            f"data.root is {data.root!r}: {root} is neither a folder nor a .tgz", hint=LAYOUT
        )
    try:
        status = root.stat()
    except OSError as error:
        raise unreadable(root, error) from None
    mark = f"{root.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
    digest = hashlib.sha256(mark.encode(errors="surrogateescape")).hexdigest()[:16]
    return cache_folder() / f"faces-{digest}"


def _find_people(data: Data) -> tuple[Path, SplitFiles | None]:
    """Return the folder with a folder per person: data.root, what was unpacked of it, or a folder
    below, such as LFW's own; and the files there or above that split the images, if the job wants
    them."""
    root = _made_folder(data) or existing_root(data, LAYOUT)
    places = [root]
    while True:
        below = folders_in(root)
        variants = [name for name in below if name in VARIANTS]
        if len(variants) > 1:
            raise JobError(
                f"{root} holds several variants of LFW: {', '.join(variants)}",
                hint=f"name one with data.root: {root / variants[0]}",
            )
        if variants:
            root /= variants[0]
        elif len(below) == 1 and not has_images(root / below[0]):
            root /= below[0]
        else:
            return root, find_split_files(places) if data.split == "auto" else None
        places.insert(0, root)


_TEN_SETS = "pairs.txt"
_HINT = "set data.split to stratified, which needs no such file"


class SplitFiles(NamedTuple):
    """The files that say which images are for training, and which for testing."""

    train: Path
    test: Path
    """The same file, where one says both."""


class _Line(NamedTuple):
    path: Path
    number: int
    fields: list[str]

    def wrong(self, why: str) -> JobError:
        text = "\t".join(self.fields)
        return JobError(f"{self.path}:{self.number}: {text!r} {why}", hint=_HINT)


def find_split_files(folders: Sequence[Path]) -> SplitFiles | None:
    """Return the first of them that are in one of the folders; None where there are none."""
    names = [(f"{kind}DevTrain.txt", f"{kind}DevTest.txt") for kind in ("people", "pairs")]
    for train, test in (*names, (_TEN_SETS, _TEN_SETS)):
        for folder in folders:
            if (folder / train).is_file() and (folder / test).is_file():
                return SplitFiles(folder / train, folder / test)
    return None


def split_by_files(root: Path, classes: Classes, files: SplitFiles) -> ImageParts:
    """The parts as the files say; JobError where they are damaged, or name what is not there."""
    images = {
        name: {PurePath(path).stem: path for path in paths} for name, paths in classes.items()
    }

    def part(lines: list[_Line]) -> Classes:
        chosen = {path for line in lines for path in _named(line, images)}
        return {name: [path for path in some if path in chosen] for name, some in classes.items()}

    train, test = _both_parts(files)
    return make_parts(root, part(train), part(test))


def _both_parts(files: SplitFiles) -> tuple[list[_Line], list[_Line]]:
    header, *lines = _lines(files.train)
    if files.train != files.test:
        return lines, _lines(files.test)[1:]
    # Each of the sets has as many pairs of one person as of two.
    numbers = [int(field) for field in header.fields if field.isdecimal()]
    if len(header.fields) != 2 or len(numbers) != 2 or 2 * numbers[0] * numbers[1] != len(lines):
        raise header.wrong(
            f"must be the number of sets, and of pairs of either kind in each; {len(lines):,} "
            "pairs follow"
        )
    last = 2 * numbers[1]
    return lines[:-last], lines[-last:]


_MOST_LIST_BYTES = 100_000_000


def _lines(path: Path) -> list[_Line]:
    try:
        text = os.fsdecode(read_bytes(path, most_bytes=_MOST_LIST_BYTES))
    except OSError as error:
        raise unreadable(path, error) from None
    lines = [_Line(path, number, line.split()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [line for line in lines if line.fields]
    if len(lines) < 2:
        raise JobError(f"{path} names no images", hint=_HINT)
    return lines


def _named(line: _Line, images: dict[str, dict[str, str]]) -> Iterator[str]:
    numbered: list[tuple[str, str | None]]
    match line.fields:
        case [name, _how_many]:
            numbered = [(name, None)]
        case [name, first, second]:
            numbered = [(name, first), (name, second)]
        case [name, first, other, second]:
            numbered = [(name, first), (other, second)]
        case _:
            raise line.wrong("names neither a person nor a pair of images")
    for name, number in numbered:
        if name not in images:
            raise line.wrong(f"names {name}, who has no images")
        if number is None:
            yield from images[name].values()
            continue
        stem = f"{name}_{number.zfill(4)}"
        if stem not in images[name]:
            raise line.wrong(f"names {stem}, which is not there")
        yield images[name][stem]


_MOST_BYTES = 8 * 10**9
_MOST_FILES = 1_000_000
_GZIP = b"\x1f\x8b"
_PIECE_BYTES = 1 << 20


_MOST_HEADER_BYTES = 1_000_000
_HEADERS = (b"L", b"K", b"x", b"g", b"X")


class _Member(tarfile.TarInfo):
    """A member of an archive, whose names and other headers are read into memory as they are."""

    def _proc_member(self, tarfile: TarFile) -> Any:  # to be overridden, says tarfile.py
        if self.type in _HEADERS and self.size > _MOST_HEADER_BYTES:
            raise ReadError(f"a header has {self.size:,} bytes")
        return super()._proc_member(tarfile)  # type: ignore[misc]


def unpack(archive: Path, folder: Path) -> None:
    """Write the plain files of an archive below a folder; links and devices are left out. JobError
    where it is damaged, wants to write elsewhere, or is larger than any data set of its kind."""
    num_bytes = num_files = 0
    with open_regular(archive, most_bytes=math.inf) as raw:
        is_gzip = raw.read(len(_GZIP)) == _GZIP
    try:
        with (
            # tarfile by itself takes a .tgz that was cut off for one that ends.
            open_regular(archive, most_bytes=math.inf) as raw,
            cast("BinaryIO", gzip.open(raw)) if is_gzip else nullcontext(raw) as stream,
            tarfile.open(fileobj=stream, mode="r|*", tarinfo=_Member) as members,
        ):
            for member in members:
                content = members.extractfile(member) if member.isfile() else None
                if content is None:
                    continue
                num_bytes += member.size
                num_files += 1
                if num_bytes > _MOST_BYTES or num_files > _MOST_FILES:
                    raise _refused(archive, "unpacks to more than 8 GB or a million files")
                relative = PurePosixPath(member.name)
                if relative.is_absolute() or ".." in relative.parts:
                    wrong = f"has a file {member.name!r}, which is not below its folder"
                    raise _refused(archive, wrong)
                path = folder / relative
                path.parent.mkdir(parents=True, exist_ok=True)
                with content, path.open("wb") as file:
                    shutil.copyfileobj(content, file)
            while stream.read(_PIECE_BYTES):  # to its end, where what was cut off or damaged raises
                pass
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _refused(archive, f"cannot be unpacked: {error}") from None


def _refused(archive: Path, why: str) -> JobError:
    return JobError(
        f"{archive} {why}", hint="download it again, or unpack it yourself and name the folder"
    )
