"""Reading what a run directory holds, whatever state it is in: values out, and what was skipped.

Torn, empty, missing and foreign files never stop a summary: each is left out and told as a fault.
A rank's file becomes one `RankRecord` at a time, so that memory stays flat.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hpcdist.base import files
from hpcdist.base.text import number_of
from hpcdist.runs import benchmarks
from hpcdist.runs.events import Window
from hpcdist.runs.remote import host_of_run
from hpcdist.runs.run import Run, is_run
from hpcdist.runs.spec import RunSpec, Submission, SweepPlace
from hpcdist.runs.verdict import Verdict
from hpcdist.summary.read.event_file import DecodedFile, decode_file
from hpcdist.summary.read.records import (
    EVENT_TYPES,
    AttemptRecord,
    Fault,
    JobFacts,
    NodeRecord,
    RankRecord,
    RunRecord,
)

T = TypeVar("T")


def read_run(run: Run) -> RunRecord | Fault:
    """Read what a run directory says of itself; a fault where it is no run."""
    spec = run.read_spec()
    if spec is None or not ((spec.job and spec.created_s) or is_run(run.path)):
        return Fault(path=".", text=f"skipped, {_why_no_spec(run)}")
    try:
        facts = files.convert(spec.job, JobFacts)
    except msgspec.ValidationError as error:
        text = f"run skipped, its job is not as expected: {error}"
        return Fault(path=run.spec_file.name, text=text)
    sweep = spec.sweep or SweepPlace()
    submission, torn_submission = _read_small(run.submission_file, Submission)
    attempts: list[int] = _readable(run.attempts, [])
    verdict, torn_verdict = _read_small(run.verdict_file, Verdict)
    return RunRecord(
        id=run.id,
        facts=facts,
        job=job_as_submitted(spec),
        comparison=None if sweep.variant is None else sweep.id,
        variant=sweep.variant,
        # That of an image is not known: spec.json has what was there at the submission.
        torch_version=None if spec.container else spec.versions.get("torch"),
        container=spec.container,
        scheduler=None if submission is None else submission.scheduler,
        cluster=spec.cluster.name or host_of_run(run),
        price_per_hour=spec.cluster.profile.node_price,
        verdict=verdict,
        newest_attempt=_readable(run.newest_attempt, -1),
        attempts={number: _attempt(run, number) for number in attempts},
        faults=[*torn_submission, *torn_verdict, *_unlisted_events(run)],
    )


def job_as_submitted(spec: RunSpec) -> dict[str, Any]:
    """Return the job with its script where the user has it: snapshots have it in a folder of their
    own."""
    snapshot, script = spec.snapshot, spec.job.get("script")
    if snapshot and snapshot.folder and snapshot.source and isinstance(script, str):
        inside = script.removeprefix(f"{snapshot.folder}/")
        if inside != script:
            return spec.job | {"script": f"{snapshot.source}/{inside}"}
    return spec.job


def read_node(path: Path, *, node: int, attempt: int) -> NodeRecord:
    events, faults = _read_events(path)
    return NodeRecord(
        node=node, attempt=attempt, begins=events["node"], windows=events["usage"], faults=faults
    )


def _read_events(path: Path) -> tuple[dict[str, list[Any]], list[Fault]]:
    try:
        file = decode_file(path)
    except OSError as error:
        file = DecodedFile(found={kind: [] for kind in EVENT_TYPES})
        texts = [f"skipped, it cannot be read: {error.strerror}"]
    else:
        num_lines = sum(map(len, file.found.values()))
        num_lines += file.num_others + file.num_odd + file.num_torn
        torn = f"{number_of(file.num_torn, 'torn line')} skipped"
        odd = f"{number_of(file.num_odd, 'event')} skipped, fields are missing or of the wrong type"
        faults = {
            "skipped, it is empty": num_lines == 0,
            torn: file.num_torn > 0,
            odd: file.num_odd > 0,
        }
        texts = [fault for fault, is_so in faults.items() if is_so]
    return file.found, [Fault(path=f"events/{path.name}", text=text) for text in texts]


def read_rank(path: Path, *, rank: int, attempt: int) -> RankRecord:
    events, faults = _read_events(path)
    windows, num_displaced = in_order(events["steps"])
    return RankRecord(
        rank=rank,
        attempt=attempt,
        starts=events["start"],
        groups=events["group"],
        resumes=events["resume"],
        windows=windows,
        num_displaced=num_displaced,
        evaluations=events["evaluate"],
        epochs=events["epoch"],
        saves=events["checkpoint"],
        memories=events["memory"],
        notes=events["note"],
        flops=events["flops"],
        digests=events["digest"],
        ends=events["end"],
        measurements={kind: events[kind] for kind in benchmarks.EVENT_TYPES},
        faults=faults,
    )


def in_order(windows: list[Window]) -> tuple[list[Window], int]:
    """Return the windows of a file as they were written, by their numbers, and how many are
    missing, there twice, or not where they were written."""
    numbers = [window.number for window in windows]
    if numbers == [*range(len(windows))]:
        return windows, 0
    first: dict[int, Window] = {}
    for window in windows:
        if window.number is not None:
            first.setdefault(window.number, window)
    missing = max(first, default=-1) + 1 - len(first)
    newest = itertools.accumulate(first, max)
    moved = sum(number < latest for number, latest in zip(first, newest, strict=True))
    return [first[number] for number in sorted(first)], len(windows) - len(first) + missing + moved


def sentence(run: Run, fault: Fault) -> str:
    """Return a fault with the path as the user would type it: relative to the working directory
    where it is below."""
    path = run.path / fault.path
    try:
        return f"{path.relative_to(Path.cwd())}: {fault.text}"
    except ValueError:
        return f"{path}: {fault.text}"


def _why_no_spec(run: Run) -> str:
    if os.path.islink(run.path) and not os.path.lexists(run.spec_file):
        return "a link is followed to a run, or within the folder: name the folder it leads to"
    if not os.path.exists(run.path):
        return "there is nothing"
    if not os.path.exists(run.spec_file):
        return "not a run: it has no spec.json"
    if not is_run(run.path):
        return "not a run: its spec.json is another program's"
    return f"spec.json cannot be read: {files.why_unreadable(run.spec_file, RunSpec)}"


def _read_small(path: Path, kind: type[T]) -> tuple[T | None, list[Fault]]:
    # Asked in this order, a file that is written between the two is not taken for a torn one.
    is_there = os.path.exists(path)
    value = files.read_as(path, kind)
    if not is_there or value is not None:
        return value, []
    return None, [Fault(path=path.name, text=f"skipped, {files.why_unreadable(path, kind)}")]


def _readable(read: Callable[[], T], otherwise: T) -> T:
    try:
        return read()
    except OSError:
        return otherwise


def _attempt(run: Run, attempt: int) -> AttemptRecord:
    beginning = run.read_beginning(attempt)
    return AttemptRecord(
        life=None if beginning is None else beginning.life,
        begin_s=None if beginning is None else beginning.time_s,
        verdict=run.read_attempt_verdict(attempt),
    )


def _unlisted_events(run: Run) -> list[Fault]:
    try:
        files.list_names(run.events_folder)
    except OSError as error:
        return [Fault(path=run.events_folder.name, text=f"no events, {error.strerror}")]
    return []
