"""`hpcdist open`: the page of a run's summary, or its folder, where the user can see it."""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import host_option, run_argument, runs_option
from hpcdist.cli.printing import note
from hpcdist.runs.run import Run
from hpcdist.runs.sweep import find_runs

PAGE = "summary.html"
_TIMEOUT_S = 15.0


@click.command("open", cls=HostCommand)
@run_argument
@click.option("--folder", is_flag=True, help="Open the run's directory.")
@host_option
@runs_option
def open(*, run_name: str, folder: bool, runs: Path) -> None:  # noqa: A001 - the verb's name
    """Open the page of a run's or a sweep's summary, which is made if it is missing or older.

    Where there is no display, as on a login node, the path is printed, and how to copy it.
    """
    found = find_runs(runs, run_name)
    place = found[0].path if len(found) == 1 else found[0].path.parent
    path = place if folder else place / PAGE
    if not folder and not _is_new(path, found):
        from hpcdist.cli.summary import write_page

        write_page(runs, [run.id for run in found], path)
    if not _open(path):
        print(path)
        note(f"there is no display here; on your own machine: {_copy_command(path)}")


def _is_new(page: Path, runs: Sequence[Run]) -> bool:
    """Return whether a page shows the ends of all runs."""
    try:
        ends_s = [run.verdict_file.stat().st_mtime for run in runs]
        return page.stat().st_mtime > max(ends_s)
    except OSError:
        return False


def _open(path: Path) -> bool:
    """Have the desktop show a file or a folder; return whether it could."""
    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    name = "open" if sys.platform == "darwin" else "xdg-open" if has_display else ""
    program = shutil.which(name) if name else None
    if program is None:
        return False
    try:
        done = subprocess.run(
            [program, str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:  # some browsers stay in the foreground
        return True
    except OSError:
        return False
    return done.returncode == 0


def _copy_command(path: Path) -> str:
    host = f"{getpass.getuser()}@{socket.gethostname()}"
    recursive = ["-r"] if path.is_dir() else []
    return shlex.join(["scp", *recursive, f"{host}:{path.absolute()}", "."])
