"""Finding run directories: in a folder of runs, in folders below it, and in folders named."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcdist.base.errors import RunNotFoundError
from hpcdist.runs.run import Run, all_runs, created_ns, is_run
from hpcdist.runs.sweep import find_runs, is_sweep

_DEEPEST = 5
"""Folders below the one that is searched: nobody wants to wait for a walk through a whole home."""


class Found(NamedTuple):
    """The result of a search."""

    runs: list[Run]
    """Oldest first."""
    foreign: list[Run]
    """Entries without a run in them; a summary tells that it skipped them."""


def search_runs(folder: Path) -> Found:
    """Find the runs in a folder and in folders below it; those of a sweep are beside its folder.

    Raises RunDirectoryError where the folder cannot be read.
    """
    if is_run(str(folder)):
        return Found([Run(folder)], [])
    runs = all_runs(folder)
    nested: list[Run] = []
    foreign: list[Run] = []
    seen = {os.path.realpath(folder)}
    for path in _other_entries(folder):
        below = [Run(Path(run)) for run in _walk(path, _DEEPEST, seen)]
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


def _other_entries(folder: Path) -> list[str]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    paths = (os.path.join(folder, name) for name in names if not name.startswith("."))
    return [path for path in paths if not is_run(path) and not is_sweep(Path(path))]


def _walk(folder: str, depth: int, seen: set[str]) -> Iterator[str]:
    """Yield the runs below a folder; links may lead in circles."""
    real = os.path.realpath(folder)
    if real in seen:
        return
    seen.add(real)
    try:
        names = sorted(os.listdir(folder))
    except OSError:  # a file, or not ours to read
        return
    for name in names:
        path = os.path.join(folder, name)
        if is_run(path):
            yield path
        elif depth > 1 and not name.startswith(".") and not is_sweep(Path(path)):
            yield from _walk(path, depth - 1, seen)
