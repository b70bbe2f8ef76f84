"""The summary as files: those that the user names, and those in the folder of a sweep."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdist.base import files
from hpcdist.base.errors import UserError
from hpcdist.base.progress import track
from hpcdist.monitor.states import run_accounting, run_states
from hpcdist.runs.run import Run
from hpcdist.summary import print_summary, summarize, to_json

if TYPE_CHECKING:
    from hpcdist.summary.report.report import Section


def write_summary(runs: Sequence[Run], folder: Path) -> str:
    """Write summary.txt and summary.json into `folder`; returns the text."""
    from hpcdist.summary.report.text import make_console

    summary = summarize(runs, run_states, accounting=run_accounting)
    text = io.StringIO()
    print_summary(summary, make_console(text))
    files.write_whole(folder / "summary.txt", text.getvalue())
    files.write_json(folder / "summary.json", to_json(summary))
    return text.getvalue()


def draw_pictures(sections: Sequence[Section], folder: Path) -> list[Path]:
    """Draw all pictures of the sections into the folder, which is made.

    Raises UserError where the folder cannot be written.
    """
    from hpcdist.base.plotting import render
    from hpcdist.summary.report.pictures.catalogue import find_pictures

    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for _, picture in track(list(find_pictures(sections)), "drawing"):
            written.append(folder / f"{picture.name}.png")
            files.write_whole(written[-1], render(picture, "png"), mode=files.USUAL_FILE)
    except OSError as error:
        raise cannot_write_output(folder, error, what="pictures") from None
    return written


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
    """Return the error for a file or folder of the user's that cannot be written."""
    return UserError(
        f"{path}: {what} cannot be written: {error.strerror}",
        hint="name a place in a folder that is there, and that you may write to",
    )
