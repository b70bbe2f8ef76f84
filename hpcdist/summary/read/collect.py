"""Finding runs, and reading what a run directory says of itself, whatever state it is in: typed
values out, and what was skipped.

Torn, empty, missing and foreign files never stop a summary: each is left out, and is a fault.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from hpcdist.base import files
from hpcdist.base.errors import RunNotFoundError
from hpcdist.runs.remote import host_of_run
from hpcdist.runs.run import Run, all_runs, find_runs, holds_nodes
from hpcdist.runs.spec import RunSpec, Submission
from hpcdist.runs.verdict import Beginning, Verdict
from hpcdist.summary.read.event_file import Fault

T = TypeVar("T")
PositiveCount = Annotated[int, Meta(ge=1, le=10**15)]


def search_named(runs: Path, names: Sequence[str]) -> list[Run]:
    """Return the runs that names of runs, sweeps and folders of runs stand for, each once; without
    names, all runs in `runs` but dev runs, which only hold nodes. Raises RunNotFoundError."""
    if not names:
        return [run for run in all_runs(runs) if not holds_nodes(run)]
    found: dict[Path, Run] = {}
    for name in names:
        try:
            own = find_runs(runs, name)
        except RunNotFoundError:
            if not os.path.isdir(name):
                raise
            if not (own := all_runs(Path(name).absolute())):
                raise RunNotFoundError(
                    f"there is no run in {name}",
                    hint="a run is a folder with spec.json; name one, or a folder that holds some",
                ) from None
        found |= {run.path: run for run in own}
    return list(found.values())


def without_copies(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Return runs without links to earlier ones and copies of these, and a sentence on each: one
    run is no repeat of itself."""
    originals: dict[str, Run] = {}
    skipped = []
    for run in runs:
        original = originals.setdefault(run.recorded_id or os.path.realpath(run.path), run)
        if run is not original:
            text = f"skipped, it is run {original.id} once more: {original.path}"
            skipped.append(sentence(run, Fault(path=".", text=text)))
    return list(originals.values()), skipped


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
    begins: dict[int, Beginning | None]
    """By attempt, in the clock of node 0."""
    attempt_verdicts: dict[int, Verdict]
    """Why an attempt ended; the run's own verdict is that on its last one."""
    faults: list[Fault]


def read_run(run: Run) -> RunRecord | Fault:
    """Read what a run directory says of itself; a fault where it is no run."""
    spec = run.read_spec()
    if spec is None:
        why = files.why_unreadable(run.spec_file, RunSpec)
        return Fault(path=".", text=f"skipped, spec.json cannot be read: {why}")
    try:
        facts = files.convert(spec.job, JobFacts)
        attempts = run.attempts()
    except msgspec.ValidationError as error:
        text = f"run skipped, its job is not as expected: {error}"
        return Fault(path=run.spec_file.name, text=text)
    except OSError as error:
        return Fault(path=".", text=f"skipped, its attempts cannot be read: {error.strerror}")
    faults: list[Fault] = []
    try:
        files.list_names(run.events_folder)
    except OSError as error:
        faults.append(Fault(path=run.events_folder.name, text=f"no events, {error.strerror}"))
    submission = _read_small(run.submission_file, Submission, faults)
    verdict = _read_small(run.verdict_file, Verdict, faults)
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
        begins={number: run.read_beginning(number) for number in attempts},
        attempt_verdicts={number: own for number, own in on_attempts.items() if own is not None},
        faults=faults,
    )


def _read_small(path: Path, kind: type[T], faults: list[Fault]) -> T | None:
    # Asked in this order, a file that is written between the two is not taken for a torn one.
    is_there = os.path.exists(path)
    value = files.read_as(path, kind)
    if is_there and value is None:
        text = f"skipped, {files.why_unreadable(path, kind)}"
        faults.append(Fault(path=path.name, text=text))
    return value


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
