"""Read and write small files: whole or not at all, and private to the user; find what ships."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from pathlib import Path
from typing import Any, BinaryIO

from hpcdist.base.text import as_utf8

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
USUAL_FILE = 0o666
"""The mode that the user's umask is applied to: for files that others may read."""

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of the OSErrors of a disk, or a quota, that is full."""


def write_whole(path: Path, content: str | bytes, *, mode: int = PRIVATE_FILE) -> None:
    """Write aside, then rename: no reader, on no node, ever sees half a file. Names of files in the
    text that are not UTF-8 keep their bytes."""
    data = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_once(path: Path, content: str) -> bool:
    """Write whole, unless the file is there already; True for the one writer that won."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    write_whole(aside, content)
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        return _rename_once(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return True


def _rename_once(aside: Path, path: Path) -> bool:
    claim = path.with_name(f".{path.name}.claimed")
    try:
        os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE))
    except FileExistsError:
        return False
    os.replace(aside, path)
    return True


def write_json(path: Path, value: Any) -> None:
    write_whole(path, to_json(value))


def to_json(value: Any) -> str:
    """Return a value as readable JSON and a newline; names that are not UTF-8 are escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    return as_utf8(text)


def read_json(path: Path) -> Any | None:
    """Return the value in a JSON file; None where it is missing, torn, not JSON or not regular: a
    pipe by that name would block its reader."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            return json.loads(file.read())
    except (OSError, ValueError):
        return None


def user_cache() -> Path:
    """$XDG_CACHE_HOME/hpcdist, or ~/.cache/hpcdist; raises RuntimeError where there is no home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # such a value is to be ignored, the XDG specification says
        base = str(Path.home() / ".cache")
    return Path(base) / "hpcdist"


def shipped_folder(name: str) -> Path:
    """Folder `name`: inside the package in a wheel, beside it in a checkout.

    importlib.resources finds neither in editable installs, nor where the working directory is the
    checkout, and submitit starts its workers so.
    """
    package = Path(__file__).parents[1]
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def open_private(path: Path) -> BinaryIO:
    """The file, to read; PermissionError where others own it, or could write or read it."""
    file = open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb")  # noqa: SIM115 - it is returned
    found = os.fstat(file.fileno())
    if found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        file.close()
        raise PermissionError(f"{path} is not private to the user who reads it: it is not loaded")
    return file
