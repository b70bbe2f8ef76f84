"""Freeing disk space: what ended runs no longer need is found first, and removed on request.

Freed are checkpoints, copies of the code that no other run needs, what submissions that were killed
left before there was a run, and copies of hpcdist for images that no job has used for long. All
else of a run stays: its verdict, logs and events are small, and are what there is to know about it.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpcdist.base import files
from hpcdist.base.carried import unused
from hpcdist.base.ownership import is_own
from hpcdist.base.progress import track
from hpcdist.base.text import show_age
from hpcdist.base.trees import Tree, list_tree, open_own_folder, remove_listed
from hpcdist.monitor.states import OPEN_STATES
from hpcdist.runs.run import Run, created_ns
from hpcdist.runs.snapshot import FOLDER, find_code, find_written
from hpcdist.runs.sweep import all_sweeps
from hpcdist.runs.verdict import State

What = Literal["checkpoints", "code", "hpcdist for images"]

DAY_S = 86400.0
_SUBMITTING_S = 3600.0
"""So long a submission may take at most to make a run."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Something that takes disk space, and what is to become of it."""

    what: What
    name: str
    """Name of the run that has the checkpoints, or of the run or sweep that has the code."""
    tree: Tree
    """The part of it that is removed; nothing that comes there later is."""
    kept_because: str | None = None
    """None: it can be removed."""

    @property
    def path(self) -> Path:
        return self.tree.path

    @property
    def num_bytes(self) -> int:
        return self.tree.num_bytes


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules by which something is old enough to be removed."""

    older_than_s: float
    """Seconds since a run ended."""
    keep_last: int = 0
    """So many of the newest runs stay whole."""
    named: frozenset[Path] | None = None
    """Only these run directories; None: all."""


def find_garbage(
    runs: Path,
    all_of_them: Sequence[Run],
    states: Mapping[str, State],
    rules: Rules,
) -> list[Candidate]:
    """Return all checkpoints and copies of code, each with the reason where it is kept.

    `states` has the state of every run.
    """
    newest = sorted(all_of_them, key=created_ns, reverse=True)[: rules.keep_last]
    last = {run.path for run in newest}
    kept = {
        run.path: reason
        for run in all_of_them
        if (reason := _why_kept(run, states[run.id], rules, is_last=run.path in last)) is not None
    }
    found = [
        candidate
        for run in track(all_of_them, "looking through runs")
        if (candidate := _checkpoints(run, kept, all_of_them)) is not None
    ]
    users: dict[Path, list[Run]] = defaultdict(list)
    for run in all_of_them:
        if (copy := find_code(run, run.read_spec())) is not None:
            users[copy].append(run)
    for sweep in all_sweeps(runs):
        if (copy := sweep / FOLDER).is_dir():
            users.setdefault(copy, [])  # its runs may have been deleted
    for copy, runs_of_copy in users.items():
        why = _why_code_kept(copy, runs_of_copy, kept, rules)
        found.append(_candidate("code", copy.parent.name, copy, kept_because=why))
    if rules.named is None:
        found += [_candidate("hpcdist for images", path.name, path) for path in unused()]
    return found


def _checkpoints(run: Run, kept: Mapping[Path, str], runs: Sequence[Run]) -> Candidate | None:
    """Return the run's checkpoints; None where it has none."""
    why = _why_not_looked_at(run)
    if why is not None:
        tree = Tree(run.checkpoints_folder, {}, 0)
        return Candidate(what="checkpoints", name=run.id, tree=tree, kept_because=why)
    why = _why_checkpoints_kept(run, kept, runs)
    found = _candidate("checkpoints", run.id, run.checkpoints_folder, kept_because=why)
    is_unlisted = not found.tree.entries and os.path.isdir(found.path)
    return found if found.num_bytes or is_unlisted else None


def _why_not_looked_at(run: Run) -> str | None:
    if run.path.is_symlink():
        return "the run directory is a link to elsewhere"
    if not is_own(run.path):
        return "the run belongs to another user"
    if run.checkpoints_folder.is_symlink():
        return "the folder is a link to elsewhere"
    return None


def _candidate(
    what: What, name: str, folder: Path, *, kept_because: str | None = None
) -> Candidate:
    try:
        tree = list_tree(folder)
    except OSError as error:
        tree = Tree(folder, {}, 0)
        kept_because = kept_because or f"{folder.name}: {error.strerror}"
    return Candidate(what=what, name=name, tree=tree, kept_because=kept_because)


def remove(candidate: Candidate) -> str | None:
    """Remove it; returns why it could not be, or was kept at the last moment."""
    try:
        left = remove_listed(candidate.tree)
        if left is None and candidate.what != "checkpoints":
            with open_own_folder(candidate.path.parent) as parent:
                os.rmdir(candidate.path.name, dir_fd=parent)
    except OSError as error:
        return f"{error.filename or candidate.path}: {error.strerror}"
    return left and f"{left} has come there since it was listed, or is another user's"


def _why_kept(run: Run, state: State, rules: Rules, *, is_last: bool) -> str | None:
    if state == "unknown":
        return "may still be active: its scheduler does not answer"
    if state in OPEN_STATES:
        return f"is {state}"
    if rules.named is not None and run.path not in rules.named:
        return "was not named"
    if state == "preempted" and rules.named is None:
        return "stopped before its end, and can continue from its checkpoint (name it to remove it)"
    if is_last:
        return f"is one of the newest {rules.keep_last}"
    verdict = run.read_verdict()
    ended_s = None if verdict is None else verdict.time_s
    age_s = time.time() - (created_ns(run)[0] / 1e9 if ended_s is None else ended_s)
    return None if age_s >= rules.older_than_s else f"ended only {show_age(age_s)} ago"


def _why_checkpoints_kept(run: Run, kept: Mapping[Path, str], runs: Sequence[Run]) -> str | None:
    if run.path in kept:
        return f"the run {kept[run.path]}"
    for other in runs:
        if other.path not in kept:
            continue
        resume = other.read_outline().checkpoint.resume
        own = os.path.realpath(run.path)
        if resume is not None and Path(os.path.realpath(resume)).is_relative_to(own):
            return f"run {other.id}, which starts from them, {kept[other.path]}"
    return None


def _why_code_kept(
    copy: Path, users: Sequence[Run], kept: Mapping[Path, str], rules: Rules
) -> str | None:
    if not users and rules.named is not None:
        return "no run that was named uses it"
    age_s = files.now_by(copy.parent.parent) - copy.lstat().st_mtime
    if not users and age_s < max(_SUBMITTING_S, rules.older_than_s):
        return f"it was made only {show_age(age_s)} ago"
    for run in users:
        if run.path in kept:
            return f"run {run.id} {kept[run.path]}"
    if (written := find_written(copy)) is not None:
        return f"jobs wrote into it: {written} (move it away, or remove it)"
    return None
