"""Programs that are executed as they are, whatever they are written in: found as execvp does."""

from __future__ import annotations

import os
import shutil

from hpcdist.base.errors import JobError

_LONGEST_FIRST_LINE = 256  # of what the kernel reads
_INTERPRETED = b"#!"


def find_program(name: str, shown: str, folder: str = "") -> str:
    """Path of the program: of a name without a slash, the first in PATH.

    A path is relative to `folder`. Raises JobError, which calls the program `shown`, where it could
    not be executed.
    """
    if "/" not in name:
        return _find_on_path(name, shown)
    path = os.path.abspath(os.path.join(folder, os.path.expanduser(name)))
    if os.path.isdir(path):
        raise JobError(
            f"{shown} is a folder, must be a program",
            hint="a folder with a __main__.py runs without --no-python",
        )
    if not os.path.exists(path):
        raise JobError(f"{shown}: there is no such file", hint="check the path of the program")
    if not os.path.isfile(path):
        raise JobError(f"{shown} is not a regular file", hint="give the path of a program")
    if not os.access(path, os.X_OK):
        raise JobError(
            f"{shown} is not executable",
            hint=f"chmod +x {shown}; a Python script needs no --no-python",
        )
    _check_first_line(path, shown)
    return path


def _find_on_path(name: str, shown: str) -> str:
    path = shutil.which(name) if name else None
    if path is None:
        looked = "a name without a slash is looked for in PATH"
        near = f"did you mean ./{name}? " if os.path.isfile(name) else ""
        raise JobError(f"{shown}: there is no such program in PATH", hint=near + looked)
    path = os.path.abspath(path)
    _check_first_line(path, shown)
    return path


def _check_first_line(path: str, shown: str) -> None:
    """Raise JobError for a text that the kernel would not know how to execute."""
    try:
        with open(path, "rb") as file:
            start = file.read(_LONGEST_FIRST_LINE)
    except OSError:  # what may be executed need not be readable
        return
    first_line = start.partition(b"\n")[0]
    if not start.startswith(_INTERPRETED):
        if b"\0" not in start:
            raise JobError(
                f"{shown} is a text that does not say what runs it",
                hint="begin it with a line such as #!/bin/bash",
            )
        return
    words = os.fsdecode(first_line.removeprefix(_INTERPRETED)).strip(" \t").split(" ")
    if not os.path.exists(words[0]):
        raise JobError(
            f"{shown}: its first line asks for {words[0]!r}, which is not there",
            hint="correct the path of the interpreter, and the end of the line",
        )
