"""hpcdist carried along: a folder that another Python than this one finds hpcdist in, by
PYTHONPATH, such as that of a container image or of a cloud's machine.

    <cache>/carried/<digest>/      private; the digest is of the names, sizes and times of its files
      hpcdist/                     with jobs/ and templates/
        carried/any/               distributions of pure Python
        carried/<tag>/             those that were compiled for one kind of Python

Only hpcdist itself stands on PYTHONPATH: importing it puts the folders that fit behind all else on
the module path, so that the image's own versions of everything are in use, where it has them.
What cannot be carried, for no compiled version fits, must be in the image: `hpcdist.base.needs`.
"""

from __future__ import annotations

import compileall
import hashlib
import os
import py_compile
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from hpcdist.base import files
from hpcdist.base.errors import UserError
from hpcdist.base.needs import CARRIED, compiled_tags
from hpcdist.base.ownership import doors, is_own

FOLDER = "carried"
_ANY = "any"
_SHIPPED = ("jobs", "templates")
_BYTE_CODE = "__pycache__"
_DIGEST_LENGTH = 32


class CannotCarryError(UserError):
    """hpcdist cannot be taken along from here."""


def carry(cache: Path | None = None) -> Path:
    """Return the folder for PYTHONPATH; it is made once for what is installed here.

    `cache` is the folder that takes it; None: the user's cache. Any number may do so at once.
    Raises CannotCarryError.
    """
    path = carried_folder(cache)
    aside = files.aside_of(path)
    try:
        path.parent.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
        _check_private(path.parent)
        if not path.is_dir():
            aside.mkdir(mode=files.PRIVATE_FOLDER)
            for place, source in _each_file():
                (aside / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, aside / place)
            # Jobs find the folder read-only, and would compile it at each start.
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
            compileall.compile_dir(str(aside), quiet=2, invalidation_mode=mode)
            try:
                os.rename(aside, path)
            except OSError:
                if not path.is_dir():  # else another submission was sooner
                    raise
        _check_private(path)
    except OSError as error:
        raise _cannot(error) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return path


def carried_folder(cache: Path | None = None) -> Path:
    """Return the folder that `carry` would make, which need not be there."""
    try:
        known = [(place, os.stat(path)) for place, path in sorted(_each_file())]
    except OSError as error:
        raise _cannot(error) from None
    lines = [f"{place} {found.st_size} {found.st_mtime_ns}\n" for place, found in known]
    return _folder(cache) / hashlib.sha256("".join(lines).encode()).hexdigest()[:_DIGEST_LENGTH]


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


def _check_private(folder: Path) -> None:
    """Raise CannotCarryError where others could exchange what a job would run."""
    open_to = [door for door in doors(folder) if door.path == folder or door.who == "everyone"]
    if open_to or not is_own(folder):
        raise CannotCarryError(
            f"{open_to[0] if open_to else folder}: no job takes hpcdist from there",
            hint="name another folder for caches with XDG_CACHE_HOME",
        )


def _each_file() -> Iterator[tuple[str, Path]]:
    """Yield all files: the place in the folder, and where it is now."""
    for place, path in _tree(Path(__file__).parents[1], "hpcdist"):
        if place.split("/")[1] not in {*_SHIPPED, FOLDER}:
            yield place, path
    for name in _SHIPPED:
        yield from _tree(files.shipped_folder(name), f"hpcdist/{name}")
    for name in CARRIED:
        yield from _distribution(name)


def _tree(folder: Path, below: str) -> Iterator[tuple[str, Path]]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != _BYTE_CODE]
        for name in names:
            path = Path(parent, name)
            yield f"{below}/{path.relative_to(folder)}", path


def _distribution(name: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of a distribution, below the folder of its kind; without its programs."""
    try:
        found = metadata.distribution(name)
        listed = [one for one in found.files or () if ".." not in one.parts]
    except metadata.PackageNotFoundError:
        listed = []
    paths = [one for one in listed if _BYTE_CODE not in one.parts]
    if not paths:
        raise CannotCarryError(
            f"hpcdist cannot be copied for another Python: {name} is not installed as pip does it",
            hint=f"python -m pip install {name}",
        )
    # Any for pure Python, and else the tag of the compiled modules of this Python.
    compiled, kind = [one.name for one in paths if one.suffix == ".so"], _ANY
    if compiled:
        own, of_any = compiled_tags()
        kind = of_any if all(one.endswith(".abi3.so") for one in compiled) else own
    for one in paths:
        path = Path(str(found.locate_file(one)))
        if path.is_file():  # listed, and perhaps removed by whoever packed it
            yield f"hpcdist/{FOLDER}/{kind}/{one.as_posix()}", path
