"""Freeing disk space: what ended runs no longer need is found first, and removed on request.

Freed are checkpoints, and copies of the code that no other run needs. All else of a run stays: its
verdict, logs and events are small, and are what there is to know about it.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from hpcdist.base import files
from hpcdist.base.ownership import Tree, empty_tree, is_own, measure_tree, open_own_folder
from hpcdist.base.progress import track
from hpcdist.monitor.states import OPEN_STATES
from hpcdist.runs.run import SWEEP_FILE, Run, created_ns
from hpcdist.runs.snapshot import FOLDER, find_code, walk
from hpcdist.runs.verdict import State

_SUBMITTING_S = 3600.0
"""So long a submission may take at most to make a run."""


class Candidate(Struct, frozen=True, kw_only=True):
    """Something that takes disk space, and what is to become of it."""

    what: str
    """checkpoints, or code."""
    name: str
    """Name of the run that has the checkpoints, or of the run or sweep that has the code."""
    tree: Tree
    """The folder that is emptied, and for all but checkpoints removed."""
    kept_because: str | None = None
    """None: it can be removed."""


def find_garbage(
    runs: Path,
    all_of_them: Sequence[Run],
    states: Mapping[str, State],
    *,
    older_than_s: float,
    named: Collection[Path] | None = None,
) -> list[Candidate]:
    """Return all checkpoints and copies of code, each with the reason where it is kept.

    Runs are kept that ended less than `older_than_s` seconds ago, and those whose directory is not
    `named`, unless that is None. `states` has the state of every run.
    """
    kept = {
        run.path: why
        for run in all_of_them
        if (why := _why_kept(run, states[run.id], older_than_s, named)) is not None
    }
    # Runs that are kept may start from the checkpoints of others.
    needed = {
        os.path.realpath(resume): f"run {run.id}, which starts from them, {kept[run.path]}"
        for run in all_of_them
        if run.path in kept and (resume := run.spec.outline.checkpoint.resume) is not None
    }
    found = [_checkpoints(run, kept, needed) for run in track(all_of_them, "looking through runs")]
    # The runs of a sweep may have been deleted.
    folders = [file.with_name(FOLDER) for file in sorted(runs.glob(f"*/{SWEEP_FILE}"))]
    users: dict[Path, list[Run]] = {folder: [] for folder in folders if folder.is_dir()}
    for run in all_of_them:
        if (copy := find_code(run, run.read_spec())) is not None:
            users.setdefault(copy, []).append(run)
    now_s = files.now_by(runs) if users else 0.0
    for copy, theirs in users.items():
        age_s = now_s - copy.lstat().st_mtime
        why = next((f"run {run.id} {kept[run.path]}" for run in theirs if run.path in kept), None)
        if not theirs and named is not None:
            why = "no run that was named uses it"
        elif not theirs and age_s < max(_SUBMITTING_S, older_than_s):
            why = f"it was made only {age_s / 86400:.1f} days ago"
        elif why is None and (written := find_written(copy)) is not None:
            why = f"jobs wrote into it: {written} (move it away, or remove it)"
        found.append(_candidate("code", copy.parent.name, copy, why))
    return [each for each in found if each is not None]


def _why_kept(
    run: Run, state: State, older_than_s: float, named: Collection[Path] | None
) -> str | None:
    if state == "unknown":
        return "may still be active: its scheduler does not answer"
    if state in OPEN_STATES:
        return f"is {state}"
    if named is not None and run.path not in named:
        return "was not named"
    if named is None and state == "preempted":
        return "stopped before its end, and can continue from its checkpoint (name it to remove it)"
    ended_s = verdict.time_s if (verdict := run.read_verdict()) is not None else None
    age_s = time.time() - (created_ns(run)[0] / 1e9 if ended_s is None else ended_s)
    return None if age_s >= older_than_s else f"ended only {age_s / 86400:.1f} days ago"


def _checkpoints(run: Run, kept: Mapping[Path, str], needed: Mapping[str, str]) -> Candidate | None:
    """Return the run's checkpoints; None where it has none."""
    folder, why, own = run.checkpoints_folder, None, os.path.realpath(run.path)
    if run.path.is_symlink():
        why = "the run directory is a link to elsewhere"
    elif not is_own(run.path):
        why = "the run belongs to another user"
    elif folder.is_symlink():
        why = "the folder is a link to elsewhere"
    if why is not None:  # and it is not looked at
        empty = Tree(folder, None, 0)
        return Candidate(what="checkpoints", name=run.id, tree=empty, kept_because=why)
    if run.path in kept:
        why = f"the run {kept[run.path]}"
    else:
        why = next((needed[each] for each in needed if Path(each).is_relative_to(own)), None)
    found = _candidate("checkpoints", run.id, folder, why)
    is_closed = found.tree.identity is None and folder.is_dir()
    return found if found.tree.num_bytes or is_closed else None


def _candidate(what: str, name: str, folder: Path, why: str | None = None) -> Candidate:
    try:
        tree = measure_tree(folder)
    except OSError as error:
        tree, why = Tree(folder, None, 0), why or f"{folder.name}: {error.strerror}"
    return Candidate(what=what, name=name, tree=tree, kept_because=why)


def remove(candidate: Candidate) -> str | None:
    """Remove it; returns why it could not be, or was kept at the last moment."""
    folder = candidate.tree.path
    try:
        empty_tree(candidate.tree)
        if candidate.what != "checkpoints":
            with open_own_folder(folder.parent) as parent:
                os.rmdir(folder.name, dir_fd=parent)
    except OSError as error:
        return f"{error.filename or folder}: {error.strerror}"
    return None


def find_written(copy: Path) -> Path | None:
    """Return a file that a job wrote into a copy. Bytecode does not count."""
    for path, status, target in walk(copy):
        is_of_job = not target and status.st_mode & stat.S_IWUSR
        if is_of_job and "__pycache__" not in path.split("/"):
            return copy / path
    return None
