"""Where the summary's files go: to the paths that the user names."""

from __future__ import annotations

import os
from pathlib import Path

from hpcdist.base import files
from hpcdist.base.errors import UserError


def write_output(path: Path, text: str, *, what: str) -> None:
    """Write a file for the user, whole or not at all; a pipe or a device is written to.

    `what` names the content in the UserError where it cannot be written.
    """
    data = text.encode(errors="backslashreplace")
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                file.write(data)
        else:
            # A link is followed: what it points to is what the user means.
            target = Path(os.path.realpath(path))
            files.write_whole(target, data, mode=files.USUAL_FILE)
    except OSError as error:
        raise cannot_write_output(path, error, what=what) from None


def cannot_write_output(path: Path, error: OSError, *, what: str) -> UserError:
    """The error for a file or folder of the user's that cannot be written."""
    return UserError(
        f"{path}: {what} cannot be written: {error.strerror}",
        hint="name a place in a folder that is there, and that you may write to",
    )
