"""The folder of a sweep, and which runs a name stands for.

    <runs>/<sweep id>/
      sweep.json          its id: the runs have all else
      <job>/script.sh     what the scheduler was given for an array, and submitit/ with its files
      summary.txt, .json  what --summary-after writes
    <runs>/<sweep id>-000/    the run of the first point, and so on: runs like all others

It has no spec.json: a sweep is no run.
"""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

from hpcdist.base import files
from hpcdist.base.errors import RunNotFoundError
from hpcdist.base.ownership import owner_id
from hpcdist.runs.run import Run, all_runs, cannot_write, find_run
from hpcdist.runs.spec import SweepPlace

SWEEP_FILE = "sweep.json"


class Sweep:
    """One sweep's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name
        self.file = path / SWEEP_FILE
        self.cancel_file = path / "cancel"

    def run(self, index: int, num_points: int) -> Run:
        """Return the run of one point, there or not."""
        digits = max(3, len(str(num_points - 1)))
        return Run(self.path.parent / f"{self.id}-{index:0{digits}d}")

    def runs(self) -> list[Run]:
        """Return its runs that are still there, in the order of the points; what another user has
        put beside them is none of them."""
        is_of_it, owner = re.compile(re.escape(self.id) + r"-\d{3,}").fullmatch, owner_id(self.path)
        runs = [run for run in all_runs(self.path.parent) if is_of_it(run.id)]
        own = [run for run in runs if owner_id(run.path) == owner]
        return sorted(own, key=lambda run: int(run.id.rpartition("-")[2]))

    def write(self) -> None:
        """Mark the folder as a sweep's."""
        try:
            files.write_json(self.file, {"id": self.id})
        except OSError as error:
            raise cannot_write(self.path.parent, error) from None

    def ask_to_cancel(self) -> None:
        """Tell a command that runs the sweep on its machine to start no more of it."""
        files.write_whole(self.cancel_file, "")


def is_sweep(path: Path) -> bool:
    """Return whether a folder is a sweep's."""
    return os.path.isfile(path / SWEEP_FILE)


def find_runs(runs: Path, name: str) -> list[Run]:
    """Return the runs that a name stands for: a run's, or a sweep's, which is all of its runs.

    Raises RunNotFoundError.
    """
    named = find_named(runs, name)
    found = [named] if isinstance(named, Run) else named.runs()
    if not found:
        raise RunNotFoundError(
            f"sweep {named.id} has no runs: they were deleted",
            hint="list what is there with: hpcdist runs",
        )
    return found


def find_named(runs: Path, name: str) -> Run | Sweep:
    """Return what a name stands for; `last` is what was submitted last, a run or a sweep.

    Raises RunNotFoundError.
    """
    path = Path(name) if "/" in name else runs / name
    if name == "last":
        run = find_run(runs, name)
        path = runs / ((run.read_sweep_place() or SweepPlace()).id or run.id)
    elif "/" not in name and name and not is_sweep(path):
        # The one sweep that begins so, unless runs of others do too.
        begun = sorted(runs.glob(f"{glob.escape(name)}*"))
        if begun and all(one.name.startswith(begun[0].name) for one in begun):
            path = begun[0]
    return Sweep(path.absolute()) if is_sweep(path) else find_run(runs, name)
