"""hpcdist carried along: a folder that another Python than this one finds hpcdist in, by
PYTHONPATH, such as that of a container image or of a cloud's machine.

    <cache>/carried/<digest>/      private; of all that it holds, byte code aside, the digest is
      hpcdist/                     with jobs/ and templates/
        carried/any/               distributions of pure Python
        carried/<tag>/             those that were compiled for one kind of Python
      hpcdist-<version>.dist-info/

Only hpcdist itself stands on PYTHONPATH: importing it puts the folders that fit behind all else on
the module path, so that the image's own versions of everything are in use, where it has them.
What cannot be carried, for no compiled version fits, must be in the image: `hpcdist.base.needs`.
"""

from __future__ import annotations

import compileall
import hashlib
import os
import py_compile
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from hpcdist.base import files
from hpcdist.base.errors import UserError
from hpcdist.base.needs import CARRIED, compiled_tags
from hpcdist.base.ownership import doors, is_own
from hpcdist.base.version import __version__

FOLDER = "carried"
_ANY = "any"
_SHIPPED = ("jobs", "templates")
_SOURCES = frozenset({".py", ".typed", ".yaml", ".j2", ".css", ".js", ".sh"})
_BYTE_CODE = "__pycache__"
_FILE = 0o400
_DIGEST_LENGTH = 32
_UNUSED_S = 90 * 86400.0
"""So long a job may wait, or run."""
_MOST_BYTES = 64_000_000
"""Size of one file that is carried."""


class CannotCarryError(UserError):
    """hpcdist cannot be taken along from here."""


def carry(cache: Path | None = None) -> Path:
    """Return the folder for PYTHONPATH; it is made once for what is installed here.

    `cache` is the folder that takes it; None: the user's cache. Any number may do so at once. A
    folder that is there and was changed is made anew. Raises CannotCarryError.
    """
    contents = _contents()
    folder = _folder(cache)
    try:
        folder.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
        _check_private(folder)
        return _stored(folder, contents)
    except OSError as error:
        raise _cannot(error) from None


def carried_folder(cache: Path | None = None) -> Path:
    """Return the folder that `carry` would make, which need not be there."""
    return _folder(cache) / _digest(_contents())


def note_use(folder: Path) -> None:
    """Note that a job takes hpcdist from a folder; its time of change is that of its last use."""
    with suppress(OSError):
        os.utime(folder)


def unused(cache: Path | None = None) -> list[Path]:
    """Return the folders that no job can be waiting for, so long have they not been used; also what
    `carry` left behind where it was killed."""
    try:
        entries = [Path(entry.path) for entry in os.scandir(_folder(cache))]
        oldest = time.time() - _UNUSED_S
        return sorted(path for path in entries if path.lstat().st_mtime < oldest)
    except (OSError, CannotCarryError):
        return []


def _folder(cache: Path | None) -> Path:
    try:
        return (cache or files.user_cache()) / FOLDER
    except RuntimeError as error:  # there is no home
        raise _cannot(error) from None


def _cannot(error: Exception) -> CannotCarryError:
    return CannotCarryError(
        f"hpcdist cannot be copied for another Python: {error}",
        hint="name another folder for caches with XDG_CACHE_HOME",
    )


def tags(folder: Path) -> list[str]:
    """Return the kinds of compiled modules that a folder of `carry` has."""
    inside = folder / "hpcdist" / FOLDER
    return sorted(name for name in os.listdir(inside) if name != _ANY)


def packages_folder() -> Path:
    """$XDG_DATA_HOME/hpcdist/packages: what the user has installed there for other Pythons, in a
    folder for each kind, is carried along."""
    base = os.environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):
        base = str(Path.home() / ".local" / "share")
    return Path(base) / "hpcdist" / "packages"


def _check_private(folder: Path) -> None:
    """Raise CannotCarryError where others could exchange what a job would run."""
    open_to = [door for door in doors(folder) if door.path == folder or door.who == "everyone"]
    if open_to or not is_own(folder):
        raise CannotCarryError(
            f"{open_to[0] if open_to else folder}: no job takes hpcdist from there",
            hint="name another folder for caches with XDG_CACHE_HOME",
        )


# Taking.


def _contents() -> dict[str, bytes]:
    """Return all files by their place in the folder."""
    return dict(_each_file())


def _each_file() -> Iterator[tuple[str, bytes]]:
    package = Path(__file__).parents[1]
    own = _tree(package)
    yield from ((f"hpcdist/{place}", data) for place, data in own if not _is_shipped(place))
    for name in _SHIPPED:
        yield from _below(f"hpcdist/{name}", _tree(files.shipped_folder(name)))
    yield from _own_metadata()
    inside = f"hpcdist/{FOLDER}"
    for name in CARRIED:
        yield from _below(inside, _distribution(name))
    given = packages_folder()
    if given.is_dir():
        _check_private(given)
    for kind in sorted(os.listdir(given)) if given.is_dir() else ():
        yield from _below(f"{inside}/{kind}", _tree(given / kind, any_file=True))


def _is_shipped(place: str) -> bool:
    return place.partition("/")[0] in {*_SHIPPED, FOLDER}


def _below(place: str, found: Iterator[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    return ((f"{place}/{name}", data) for name, data in found)


def _tree(folder: Path, *, any_file: bool = False) -> Iterator[tuple[str, bytes]]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != _BYTE_CODE)
        for name in sorted(names):
            path = Path(parent, name)
            if any_file or path.suffix in _SOURCES:
                yield str(path.relative_to(folder)), _read(path)


def _own_metadata() -> Iterator[tuple[str, bytes]]:
    """Yield what names the version."""
    folder = f"hpcdist-{__version__}.dist-info"
    lines = ["Metadata-Version: 2.1", "Name: hpcdist", f"Version: {__version__}", ""]
    yield f"{folder}/METADATA", "\n".join(lines).encode()


def _distribution(name: str) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a distribution, below the folder of its kind; without its programs."""
    try:
        found = metadata.distribution(name)
        listed = [one for one in found.files or () if ".." not in one.parts]
    except metadata.PackageNotFoundError:
        listed = []
    paths = [one for one in listed if one.suffix != ".pyc" and _BYTE_CODE not in one.parts]
    if not paths:
        raise CannotCarryError(
            f"hpcdist cannot be copied for another Python: {name} is not installed as pip does it",
            hint=f"python -m pip install {name}",
        )
    kind = _kind([one.name for one in paths])
    for one in paths:
        with suppress(FileNotFoundError):  # listed, and removed by whoever packed it
            yield f"{kind}/{one.as_posix()}", _read(Path(str(found.locate_file(one))))


def _kind(names: list[str]) -> str:
    """Return any for pure Python, and else the tag of the compiled modules of this Python."""
    compiled = [name for name in names if name.endswith(".so")]
    if not compiled:
        return _ANY
    own, of_any = compiled_tags()
    return of_any if all(name.endswith(".abi3.so") for name in compiled) else own


def _read(path: Path) -> bytes:
    return files.read_bytes(path, most_bytes=_MOST_BYTES)


# Storing.


def _stored(folder: Path, contents: Mapping[str, bytes]) -> Path:
    """Return the folder with these contents, which is called by their digest."""
    digest = _digest(contents)
    path, aside = folder / digest, folder / f".{digest}.{secrets.token_hex(4)}"
    if os.path.lexists(path):
        _check_private(path)
        if _digest(dict(_tree(path, any_file=True))) == digest:
            note_use(path)
            return path
        with suppress(FileNotFoundError):  # another submission has just done so
            os.rename(path, aside)  # and left there: jobs may be running in it
        aside = folder / f".{digest}.{secrets.token_hex(4)}"
    try:
        aside.mkdir(mode=files.PRIVATE_FOLDER)
        for place, data in contents.items():
            _write(aside / place, data)
        # Jobs find the folder read-only, and would compile it at each start.
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(str(aside), quiet=2, invalidation_mode=mode)
        try:
            os.rename(aside, path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return path


def _digest(contents: Mapping[str, bytes]) -> str:
    lines = [f"{hashlib.sha256(data).hexdigest()}  {place}\n" for place, data in contents.items()]
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()[:_DIGEST_LENGTH]


def _write(path: Path, data: bytes) -> None:
    os.makedirs(path.parent, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE), "wb") as file:
        file.write(data)
