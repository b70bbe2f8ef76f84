"""Finding run directories: in a folder of runs, in folders below it, and in folders named."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcdist.base import files
from hpcdist.base.errors import RunDirectoryError, RunNotFoundError
from hpcdist.base.ownership import is_own
from hpcdist.runs.run import Run, all_runs, created_ns, find_runs, is_run, is_sweep

_DEEPEST = 5
"""Folders below the one that is searched: nobody wants to wait for a walk through a whole home."""

_MOST_FOLDERS = 20_000


class Found(NamedTuple):
    """The result of a search."""

    runs: list[Run]
    """Oldest first."""
    foreign: list[Run]
    """Entries without a run in them; a summary tells that it skipped them."""


def search_runs(folder: Path) -> Found:
    """Find the runs in a folder and in folders below it; those of a sweep are beside its folder.

    Raises RunDirectoryError where the folder cannot be read, or holds too many.
    """
    if is_run(str(folder)):
        return Found([Run(folder)], [])
    runs = all_runs(folder)
    nested: list[Run] = []
    foreign: list[Run] = []
    top = os.path.realpath(folder)
    seen = {top}
    for path in _other_entries(folder, {run.id for run in runs}):
        below = [Run(Path(run)) for run in _walk(path, _DEEPEST, seen, top)]
        nested += below
        if not below:
            foreign.append(Run(Path(path)))
    return Found(sorted([*runs, *nested], key=created_ns) if nested else runs, foreign)


def search_named(runs: Path, names: Sequence[str]) -> Found:
    """Return the runs that names of runs, sweeps and folders stand for, each once; without
    names, all runs in `runs` and below.

    Raises RunNotFoundError.
    """
    if not names:
        return search_runs(runs)
    searches = [_search_name(runs, name) for name in names]
    by_path = {run.path: run for part in searches for run in part.runs}
    return Found(list(by_path.values()), [run for part in searches for run in part.foreign])


def leave_out_copies(runs: Sequence[Run]) -> tuple[list[Run], list[tuple[Run, Run]]]:
    """Return runs without links to others and copies of others, and these, each with its original:
    one run is no repeat of itself.

    Of those with one id, the original is the user's own, in a folder of that name, or the first.
    """
    originals: dict[str, Run] = {}
    ids = [run.recorded_id or os.path.realpath(run.path) for run in runs]
    for run, name in sorted(zip(runs, ids, strict=True), key=_is_no_original):
        originals.setdefault(name, run)
    kept = [run for run, name in zip(runs, ids, strict=True) if run is originals[name]]
    copies = [(run, originals[name]) for run, name in zip(runs, ids, strict=True)]
    return kept, [(run, original) for run, original in copies if run is not original]


def _is_no_original(named: tuple[Run, str]) -> tuple[bool, bool, bool]:
    run, name = named
    return run.path.is_symlink(), run.id != name, not is_own(run.path)


def _search_name(runs: Path, name: str) -> Found:
    try:
        return Found(find_runs(runs, name), [])
    except RunNotFoundError:
        if not os.path.isdir(name):
            raise
    search = search_runs(Path(name).absolute())
    if not search.runs:
        raise RunNotFoundError(
            f"there is no run in {name}",
            hint="a run is a folder with spec.json; name one, or a folder that holds some",
        )
    return search


def _other_entries(folder: Path, runs: set[str]) -> list[str]:
    """Return the paths of what is neither one of these runs nor a sweep."""
    try:
        names = sorted(files.list_names(folder))
    except OSError:
        return []
    others = (name for name in names if not name.startswith(".") and name not in runs)
    return [os.path.join(folder, name) for name in others if not is_sweep(folder / name)]


def _walk(folder: str, depth: int, seen: set[str], top: str) -> Iterator[str]:
    """Yield the runs below a folder; links may lead in circles, and are followed within `top`."""
    real = os.path.realpath(folder)
    if real in seen or not real.startswith(f"{top}/"):
        return
    seen.add(real)
    if len(seen) > _MOST_FOLDERS:
        raise RunDirectoryError(
            f"{folder}: more than {_MOST_FOLDERS:,} folders are there and beside it, too many to "
            "look for runs in",
            hint="name the runs, or the folder that holds them",
        )
    try:
        with os.scandir(folder) as listed:
            entries = files.first_entries(listed, folder)
    except OSError:  # a file, not ours to read, or with too many files for a folder of runs
        return
    for entry in sorted(filter(os.path.isdir, entries), key=lambda entry: entry.name):
        if is_run(entry.path):
            yield entry.path
        elif depth > 1 and not entry.name.startswith(".") and not is_sweep(Path(entry.path)):
            yield from _walk(entry.path, depth - 1, seen, top)
