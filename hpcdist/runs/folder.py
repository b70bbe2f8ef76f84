"""The folder of the runs: made private, and used only where no stranger can exchange what is in it.

Whoever may write the folder, or one above it, can put something else in the place of a run that
waits. Everybody, or somebody else's own folder, is refused; a project's group is common, and noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcdist.base import files
from hpcdist.base.errors import RunDirectoryError
from hpcdist.base.ownership import Door, doors
from hpcdist.runs.run import cannot_write

_ANOTHER = "name another folder with --runs or HPCDIST_RUNS"


def make_runs_folder(runs: Path) -> None:
    """Make the folder of the runs, private to the user, where it is not there.

    Raises RunDirectoryError where strangers could change what is in it.
    """
    _check(runs)
    try:
        runs.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
    except FileExistsError:
        return  # whoever makes a run there says what it is
    except OSError as error:
        raise cannot_write(runs, error) from None
    _check(runs)  # a umask may open what was made on the way


def _check(runs: Path) -> None:
    refused = refused_doors(runs)
    if refused:
        raise RunDirectoryError(
            f"{refused[0]}: what a job loads could be exchanged while it waits",
            hint=how_to_close(refused[0]),
        )


def refused_doors(runs: Path) -> list[Door]:
    """Return the ways by which strangers could change what is in the folder."""
    return [door for door in doors(runs) if _is_refused(door, runs)]


def group_note(runs: Path) -> str | None:
    """Return what to know of a folder in which others of a project could exchange runs; None where
    nobody could."""
    open_doors = [door for door in doors(runs) if not _is_refused(door, runs)]
    if not open_doors:
        return None
    return (
        f"{_listed(open_doors)}: a run could be exchanged there; each job checks, and runs nothing "
        "that is not yours"
    )


def how_to_close(door: Door) -> str:
    """Return what the user can do about a door."""
    if door.who == "owner":
        return f"{_ANOTHER} that is your own"
    right = "o" if door.who == "everyone" else "g"
    return f"close it with: chmod {right}-w {door.path}, or {_ANOTHER}"


def _is_refused(door: Door, runs: Path) -> bool:
    is_of_runs = door.path in {runs, Path(runs).resolve()}
    return door.who == "everyone" or (door.who == "owner" and is_of_runs)


def _listed(found: Sequence[Door]) -> str:
    more = f", and {len(found) - 1} more above it" if len(found) > 1 else ""
    return f"{found[0]}{more}"
