"""faces: photographs of people in the layout of LFW (Labeled Faces in the Wild), or a stand-in.

    <root>/Aaron_Eckhart/Aaron_Eckhart_0001.jpg        one folder per person

data.root is that folder, a folder that holds it, or LFW's .tgz, which is unpacked once into the
user's cache. Without a root, photographs are made there. A fifth of each person's images is for
testing. LFW's own files that split it are left alone: by them nobody is in both parts, since they
are for telling whether two images show the same person, and not for putting a name to one.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import shutil
import tarfile
import zlib
from contextlib import nullcontext
from pathlib import Path, PurePosixPath
from tarfile import ReadError, TarFile
from typing import Any, BinaryIO, cast

from hpcdist.base.errors import JobError
from hpcdist.base.files import open_regular
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
    ImageParts,
    SplitSizes,
    existing_root,
    split_classes,
)
from hpcdist.job.spec import Data

VARIANTS = ("lfw", "lfw_funneled", "lfw-deepfunneled", "lfw-py")
"""Names of the folders in LFW's archives, and of the one that torchvision keeps them in."""
_STAND_IN = made_faces.Plan()
_VERSION = 1  # of what is made of a plan
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


def images(data: Data) -> ImageParts:
    """Return the files of both parts; what is missing is made first."""
    prepare(data)
    if data.root is None:
        return _STAND_IN.parts(stand_in_folder())
    root = _find_people(data)
    classes = list_classes(root)
    check_enough(classes, root, LAYOUT)
    return split_classes(root, classes)


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


def _find_people(data: Data) -> Path:
    """Return the folder with a folder per person: data.root, what was unpacked of it, or a folder
    below, such as LFW's own."""
    root = _made_folder(data) or existing_root(data, LAYOUT)
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
            return root


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
