"""Freeing disk space: what ended runs no longer need is found first, and removed on request.

Freed are checkpoints, and snapshots that no other run needs. Everything else of a run stays: its
verdict, logs and events are small, and are what there is to know about it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpcdist.base.text import show_age
from hpcdist.monitor.states import OPEN_STATES
from hpcdist.runs import snapshot_store as stored
from hpcdist.runs.run import Run, created_ns
from hpcdist.runs.spec import RunSpec
from hpcdist.runs.verdict import State

What = Literal["checkpoints", "snapshot", "unfinished snapshot"]

DAY_S = 86400.0


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Something that takes disk space, and what is to become of it."""

    what: What
    name: str
    """Of the run that has the checkpoints, or of the snapshot."""
    path: Path
    num_bytes: int
    kept_because: str | None = None
    """None: it can be removed."""


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
    """Return all checkpoints and snapshots in the folder, each with the reason where it is kept.

    `states` has the state of every run.
    """
    kept = _kept_runs(all_of_them, states, rules)
    used = _users(all_of_them)
    return [
        *(candidate for run in all_of_them if (candidate := _checkpoints(run, kept, all_of_them))),
        *(
            _snapshot(folder, used.get(folder.name, []), kept, rules)
            for folder in stored.list_stored(runs)
        ),
        *_unfinished(runs),
    ]


def remove(candidate: Candidate) -> str | None:
    """Remove it; returns why it could not be, or was kept at the last moment."""
    try:
        if candidate.what == "snapshot":
            return stored.remove(candidate.path)
        if candidate.what == "checkpoints":
            _empty(candidate.path)
        else:
            shutil.rmtree(candidate.path)
    except OSError as error:
        return f"{error.filename or candidate.path}: {error.strerror}"
    return None


def _kept_runs(runs: Sequence[Run], states: Mapping[str, State], rules: Rules) -> dict[Path, str]:
    """Return the runs that stay whole, with the reason."""
    newest = sorted(runs, key=created_ns)[len(runs) - rules.keep_last :] if rules.keep_last else []
    last = {run.path for run in newest}
    reasons = {
        run.path: _why_kept(run, states[run.id], rules, is_last=run.path in last) for run in runs
    }
    return {path: reason for path, reason in reasons.items() if reason is not None}


def _why_kept(run: Run, state: State, rules: Rules, *, is_last: bool) -> str | None:
    if state == "unknown":
        return "may be going on: its scheduler does not answer"
    if state in OPEN_STATES:
        return f"is {state}"
    if rules.named is not None and run.path not in rules.named:
        return "was not named"
    if state == "preempted" and rules.named is None:
        return "stopped before its end, and can go on from its checkpoint (name it to remove it)"
    if is_last:
        return f"is one of the newest {rules.keep_last}"
    age_s = time.time() - _ended_s(run)
    return None if age_s >= rules.older_than_s else f"ended only {show_age(age_s)} ago"


def _ended_s(run: Run) -> float:
    verdict = run.read_verdict()
    if verdict is not None and verdict.time_s is not None:
        return verdict.time_s
    return created_ns(run)[0] / 1e9


def _users(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs that each snapshot was made for, by its id."""
    users: dict[str, list[Run]] = {}
    for run in runs:
        snapshot = (run.read_spec() or RunSpec()).snapshot
        if snapshot is not None and snapshot.id is not None:
            users.setdefault(snapshot.id, []).append(run)
    return users


def _checkpoints(run: Run, kept: Mapping[Path, str], runs: Sequence[Run]) -> Candidate | None:
    """Return the run's checkpoints; None where it has none."""
    folder = run.checkpoints_folder
    num_bytes = _size(folder)
    if num_bytes is None:
        return None
    return Candidate(
        what="checkpoints",
        name=run.id,
        path=folder,
        num_bytes=num_bytes,
        kept_because=_why_checkpoints_kept(run, kept, runs),
    )


def _why_checkpoints_kept(run: Run, kept: Mapping[Path, str], runs: Sequence[Run]) -> str | None:
    if run.path in kept:
        return f"the run {kept[run.path]}"
    if run.checkpoints_folder.is_symlink():
        return "the folder is a link to elsewhere"
    for other in runs:
        if other.path not in kept:
            continue
        resume = other.read_outline().checkpoint.resume
        if resume is not None and _is_below(resume, run.path):
            return f"run {other.id}, which starts from them, {kept[other.path]}"
    return None


def _snapshot(
    folder: Path, users: Sequence[Run], kept: Mapping[Path, str], rules: Rules
) -> Candidate:
    return Candidate(
        what="snapshot",
        name=folder.name,
        path=folder,
        num_bytes=_size(folder) or 0,
        kept_because=_why_snapshot_kept(folder, users, kept, rules),
    )


def _why_snapshot_kept(
    folder: Path, users: Sequence[Run], kept: Mapping[Path, str], rules: Rules
) -> str | None:
    for run in users:
        if run.path in kept:
            return f"run {run.id} {kept[run.path]}"
    if not users and rules.named is not None:
        return "no run that was named uses it"
    if not users and stored.age_s(folder) < rules.older_than_s:
        return f"it was used only {show_age(stored.age_s(folder))} ago"
    return stored.why_not_removable(folder)


def _unfinished(runs: Path) -> list[Candidate]:
    """Return the copies that submissions left unfinished when they were killed."""
    return [
        Candidate(what="unfinished snapshot", name=path.name, path=path, num_bytes=_size(path) or 0)
        for path in stored.list_unfinished(runs)
    ]


def _size(folder: Path) -> int | None:
    """Bytes of all files below, links not followed; None where there is nothing."""
    sizes = [
        os.lstat(os.path.join(parent, name)).st_size
        for parent, _, names in os.walk(folder)
        for name in names
    ]
    return sum(sizes) if sizes else None


def _empty(folder: Path) -> None:
    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def _is_below(path: str, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
