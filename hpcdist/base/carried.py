"""hpcdist carried along: a folder that another Python than this one finds hpcdist in, by
PYTHONPATH, such as that of a container image or of a cloud's machine.

    <cache>/carried/<digest>/      private; the digest is of the names, sizes and times of its files
      hpcdist/                     with jobs/ and templates/
        carried/                   the distributions that it needs

Only hpcdist itself stands on PYTHONPATH: importing it puts the folder of the distributions behind
all else on the module path, so that the image's own versions of everything are in use, where it has
them. What was compiled for another kind of Python must be in the image: `hpcdist.base.needs`.
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
from hpcdist.base.needs import CARRIED
from hpcdist.base.ownership import doors, is_own

FOLDER = "carried"
_SHIPPED = ("jobs", "templates")
_BYTE_CODE = "__pycache__"


def carry(cache: Path | None = None) -> Path:
    """Return the folder for PYTHONPATH; it is made once for what is installed here.

    `cache` is the folder that takes it; None: the user's cache. Any number may do so at once.
    Raises UserError.
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
    """Return the folder that `carry` would make, which need not be there. Raises UserError."""
    try:
        known = [(place, os.stat(path)) for place, path in sorted(_each_file())]
        folder = (cache or files.user_cache()) / FOLDER
    except (OSError, RuntimeError) as error:  # such as that there is no home
        raise _cannot(error) from None
    lines = [f"{place} {found.st_size} {found.st_mtime_ns}\n" for place, found in known]
    return folder / hashlib.blake2b("".join(lines).encode(), digest_size=16).hexdigest()


def _cannot(error: Exception) -> UserError:
    return UserError(
        f"hpcdist cannot be copied for another Python: {error}",
        hint="name another folder for caches with XDG_CACHE_HOME",
    )


def _check_private(folder: Path) -> None:
    """Raise PermissionError where others could exchange what a job would run."""
    open_to = [door for door in doors(folder) if door.path == folder or door.who == "everyone"]
    if open_to or not is_own(folder):
        raise PermissionError(f"{open_to[0] if open_to else folder}, and a job would run it")


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
    """Yield the files of a distribution, without its programs and byte code."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        found = None
    listed = (found.files if found else None) or ()
    if found is None or not listed:
        raise UserError(
            f"hpcdist cannot be copied for another Python: {name} is not installed as pip does it",
            hint=f"python -m pip install {name}",
        )
    for one in listed:
        path = Path(str(found.locate_file(one)))
        is_module = not {"..", _BYTE_CODE} & {*one.parts}
        if is_module and path.is_file():  # listed, and perhaps removed by whoever packed it
            yield f"hpcdist/{FOLDER}/{one.as_posix()}", path
