"""Write small files: whole or not at all, and private to the user. Read files that others may have
put there: regular ones only, of limited size. Find what ships."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from io import FileIO
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeVar

import msgspec

from hpcdist.base.text import show_bytes

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
USUAL_FILE = 0o666
"""The mode that the user's umask is applied to: for files that others may read."""

MOST_JSON_BYTES = 16_000_000
"""Size of a JSON file that is read; those of the largest sweeps have a tenth of it."""
MOST_ENTRIES = 100_000
"""Entries of a folder that are listed: a run on a thousand ranks that was restarted ten times has a
tenth of it."""
_PIECE_BYTES = 1 << 20
_MOST_DEPTH = 64
"""Levels of JSON that are read; ours has ten. Thousands would end the program that goes through
them."""

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of the OSErrors of a disk, or a quota, that is full."""
_MOST_CAUSES = 100  # of an exception: a program may have closed them to a circle


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, and those that it came of."""
    for _ in range(_MOST_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def find_full(error: BaseException | None) -> OSError | None:
    """Return the error of a disk, or a quota, that is full: an exception itself, or its cause."""
    found = (each for each in causes(error) if isinstance(each, OSError) and each.errno in FULL)
    return next(found, None)


def close_umask() -> None:
    """Let nobody but the user and their group write what this process, and those it starts, make
    from now on, where the umask would."""
    os.umask(os.umask(0o077) | stat.S_IWOTH)


def print_line(line: object, to: TextIO | None = None) -> None:
    """Print a line, on stdout if nothing else is given: into a log, as a rule, which may be on a
    full disk, and must not end the program for that."""
    with contextlib.suppress(OSError):
        print(line, file=to, flush=True)


def aside_of(path: Path) -> Path:
    """Return a new hidden name beside a path, for what is renamed to it when it is whole."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def write_whole(path: Path, content: str | bytes, *, mode: int = PRIVATE_FILE) -> None:
    """Write aside, then rename: no reader, on no node, ever sees half a file. Names of files in the
    text that are not UTF-8 keep their bytes."""
    data = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    aside = aside_of(path)
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def reason(error: OSError) -> str:
    """Return the words of an error, with the file that it is about."""
    words = error.strerror or str(error)
    return f"{error.filename}: {words}" if error.filename else words


def write_once(path: Path, content: str, *, reserve: Path | None = None) -> bool:
    """Write whole, unless the file is there already; True for the one writer that won.

    `reserve` is a file that becomes this one, for a disk that is full: it has its space already,
    and what is freed, others could take.
    """
    if os.path.lexists(path):
        return False
    aside = aside_of(path)
    with contextlib.suppress(FileNotFoundError):  # another caller has taken it
        if reserve is not None:
            os.rename(reserve, aside)
    with contextlib.ExitStack() as stack:
        stack.callback(aside.unlink, missing_ok=True)
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT, PRIVATE_FILE), "wb") as file:
            file.write(content.encode(errors="surrogateescape"))
            file.truncate()
        try:
            os.link(aside, path)
        except FileExistsError:
            return False
        except OSError:  # no hard links here: who makes it, empty for a moment, has won
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE))
            except FileExistsError:
                return False
            os.replace(aside, path)
    return True


def write_json(path: Path, value: Any) -> None:
    write_whole(path, to_json(value))


def to_json(value: Any) -> str:
    """Return a value as readable JSON and a newline. What is not ASCII is escaped, as are names
    that are not UTF-8, and what a terminal would act on."""
    return json.dumps(value, indent=2).replace("\x7f", "\\u007f") + "\n"


def open_regular(path: str | Path, *, most_bytes: float, flags: int = 0) -> FileIO:
    """Open a file to read it; OSError for anything but a regular file, such as a pipe, which would
    block its reader, and for one that has more than `most_bytes`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | flags)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size <= most_bytes:
        return open(descriptor, "rb", buffering=0)
    os.close(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    sizes = f"{show_bytes(status.st_size)}, and no more than {show_bytes(most_bytes)} are read"
    raise OSError(errno.EFBIG, f"it has {sizes}", str(path))


def read_bytes(path: str | Path, *, most_bytes: float) -> bytes:
    """Return the content of a regular file; OSError where it is none, or has more bytes."""
    with open_regular(path, most_bytes=most_bytes) as file:
        content = file.read(os.fstat(file.fileno()).st_size + 1)
        while piece := file.read(_PIECE_BYTES):  # it has grown, or is on a slow file system
            content += piece
            if len(content) > most_bytes:
                growing = f"it grows, and no more than {show_bytes(most_bytes)} are read"
                raise OSError(errno.EFBIG, growing, str(path))
    return content


def refresh(folder: Path) -> None:
    """Have what is in a folder looked up anew, on a file system that goes by what it knew up to a
    minute ago otherwise: NFS asks its server about a folder that is opened (close-to-open)."""
    with contextlib.suppress(OSError):
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))


def is_there(path: Path) -> bool:
    """Return whether there is something at a path now, also where another host has just made it."""
    refresh(path.parent)
    return os.path.lexists(path)


def now_by(folder: Path) -> float:
    """Return the Unix time by the clock that gives the files in a folder their times.

    That of a file server may differ from this host's. A file is made there for a moment; where none
    can be made, the time is this host's.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()


def list_names(folder: str | Path) -> list[str]:
    """Return the names in a folder; OSError where it cannot be read, or has too many."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, MOST_ENTRIES + 1)]
    if len(names) > MOST_ENTRIES:
        raise OSError(errno.EFBIG, f"it holds more than {MOST_ENTRIES:,} entries", str(folder))
    return names


_Kind = TypeVar("_Kind")


def read_json(path: Path) -> Any | None:
    """Return the value in a JSON file; None where it cannot be read: see `load_json`."""
    try:
        return load_json(path)
    except (OSError, ValueError):
        return None


def load_json(path: Path) -> Any:
    """Return the value in a JSON file. Raises OSError where there is no regular file of a size that
    is read, and ValueError where its content is torn, or nested too deep. Infinity and the like,
    which no figure can be made of, are None."""
    return parse_json(read_bytes(path, most_bytes=MOST_JSON_BYTES))


def parse_json(content: bytes) -> Any:
    """Parse as the standard library does, or raise ValueError. What msgspec takes, it takes alike,
    in an eighth of the time: Infinity, names that are not UTF-8 and all that is torn are left to
    the other."""
    too_deep: list[Any] = []
    try:
        try:
            value = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            value = json.loads(content.decode(), parse_float=_finite, parse_constant=_finite)
            json.dumps(value, ensure_ascii=False).encode(errors="surrogateescape")
        if content.count(b"[") + content.count(b"{") > _MOST_DEPTH:
            too_deep = [value]
            for _ in range(_MOST_DEPTH + 1):
                inside = [one.values() if isinstance(one, dict) else one for one in too_deep]
                too_deep = [one for one in chain(*inside) if isinstance(one, dict | list)]
    except UnicodeError:
        raise ValueError("it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is torn, or not JSON: {error}") from None
    except RecursionError:
        too_deep = [content]
    if too_deep:
        raise ValueError(f"it is nested more than {_MOST_DEPTH} levels deep")
    return value


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def read_as(path: Path, kind: type[_Kind]) -> _Kind | None:
    """Return the content of a JSON file as a typed value; None where it cannot be read, which
    `why_unreadable` explains."""
    try:
        return convert(load_json(path), kind)
    except (OSError, ValueError):
        return None


def why_unreadable(path: Path, kind: Any = dict[str, Any]) -> str | None:
    """Return why a JSON file gives no value of this type, with the key that is wrong; None where it
    does."""
    try:
        convert(load_json(path), kind)
    except OSError as error:
        return error.strerror
    except ValueError as error:
        return f"{str(error)[0].lower()}{str(error)[1:]}"
    return None


def convert(value: Any, kind: type[_Kind]) -> _Kind:
    """Return the content of a file as a typed value; msgspec.ValidationError where it is another,
    also for keys that are no Unicode, such as the names of some files."""
    try:
        return msgspec.convert(value, kind)
    except UnicodeError as error:
        raise msgspec.ValidationError(str(error)) from None


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


def open_to_append(path: str | Path) -> int:
    """Return the descriptor of a file that takes what is written at its end; a new one is
    private."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE)


def open_private(path: Path, *, create: bool = False) -> BinaryIO:
    """Open a file to read it, or to lock it where it may be created; PermissionError where others
    own it, or could write or read it."""
    flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
    # A pipe of others would block its reader.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, PRIVATE_FILE)
    file = open(descriptor, "rb")  # noqa: SIM115 - it is returned
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        file.close()
        raise PermissionError(f"{path} is not private to the user who reads it: it is not loaded")
    return file
