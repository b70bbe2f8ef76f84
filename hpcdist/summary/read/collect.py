"""Reading what a run directory says of itself, whatever state it is in: typed values out, and what
was skipped.

Torn, empty, missing and foreign files never stop a summary: each is left out, and is a fault.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from hpcdist.base import files
from hpcdist.runs.remote import host_of_run
from hpcdist.runs.run import Run, is_run
from hpcdist.runs.spec import RunSpec, Submission
from hpcdist.runs.verdict import Beginning, Verdict
from hpcdist.summary.read.event_file import Fault

T = TypeVar("T")
PositiveCount = Annotated[int, Meta(ge=1, le=10**15)]


class JobResources(Struct, frozen=True, kw_only=True):
    """The resources that the job requested."""

    nodes: PositiveCount
    gpus: PositiveCount


class JobFacts(Struct, frozen=True, kw_only=True):
    """The keys of a job that the summary needs; it ignores all others."""

    name: str
    resources: JobResources


class RunRecord(Struct, frozen=True, kw_only=True):
    """The content of a run directory without its events."""

    id: str
    spec: RunSpec
    facts: JobFacts
    job: dict[str, Any]
    """The whole job, with its script where the user has it."""
    scheduler: str | None
    cluster: str | None
    verdict: Verdict | None
    newest_attempt: int
    """-1 before the first."""
    begins: dict[int, Beginning | None]
    """By attempt, in the clock of node 0."""
    attempt_verdicts: dict[int, Verdict]
    """Why an attempt ended; the run's own verdict is that on its last one."""
    faults: list[Fault]


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
    submission, faults = _read_small(run.submission_file, Submission)
    verdict, torn_verdict = _read_small(run.verdict_file, Verdict)
    attempts: list[int] = _readable(run.attempts, [])
    on_attempts = {number: run.read_attempt_verdict(number) for number in attempts}
    if verdict is not None:
        on_attempts[verdict.attempt] = on_attempts.get(verdict.attempt) or verdict
    return RunRecord(
        id=run.id,
        spec=spec,
        facts=facts,
        job=job_as_submitted(spec),
        scheduler=None if submission is None else submission.scheduler,
        cluster=spec.cluster.name or host_of_run(run),
        verdict=verdict,
        newest_attempt=_readable(run.newest_attempt, -1),
        begins={number: run.read_beginning(number) for number in attempts},
        attempt_verdicts={number: own for number, own in on_attempts.items() if own is not None},
        faults=[*faults, *torn_verdict, *_unlisted_events(run)],
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


def _unlisted_events(run: Run) -> list[Fault]:
    try:
        files.list_names(run.events_folder)
    except OSError as error:
        return [Fault(path=run.events_folder.name, text=f"no events, {error.strerror}")]
    return []
