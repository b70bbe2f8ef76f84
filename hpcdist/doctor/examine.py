"""The doctor's round: every check in its order, findings as they come."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcdist.base.errors import HpcdistError
from hpcdist.cluster.load import DEFAULT_ORIGIN, LoadedProfile
from hpcdist.doctor.folder import examine_folder
from hpcdist.doctor.judge import judge
from hpcdist.doctor.trial import NotEndedError, collect, run_trial
from hpcdist.job import LoadedJob
from hpcdist.schedulers import load_scheduler
from hpcdist.schedulers.base import Finding, failed, passed, skipped, warned
from hpcdist.submission.layout import planned_scripts
from hpcdist.submission.plan import PlannedRun, PlannedSubmission, plan_run


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be checked."""

    loaded: LoadedJob
    """The check job."""
    scheduler: str
    cluster: LoadedProfile
    runs: Path
    command: Sequence[str]
    with_job: bool
    timeout_s: float
    """How long the job may take, its wait included."""
    say: Callable[[str], None]
    """Told why the job waits, and where a run that failed is."""
    check: Callable[[], None]
    """Called between looks; may raise, which ends the job."""


def examine(request: Request) -> Iterator[Finding]:
    """All checks; those that cannot be made after a failure are left out."""
    scheduler = load_scheduler(request.scheduler)
    has_failed = False
    for finding in scheduler.examine():
        has_failed |= finding.state == "FAIL"
        yield finding
    yield _profile(request.cluster)
    was_there = request.runs.exists()
    yield from (folder := list(_folder(request, is_shared=not scheduler.runs_here)))
    try:
        if not has_failed:
            yield from _with_job(request, has_failed=any(_is_bad(one) for one in folder))
    finally:
        if not was_there:
            _remove_empty(request.runs)


def _with_job(request: Request, *, has_failed: bool) -> Iterator[Finding]:
    try:
        planned = plan_run(request.loaded, scheduler=request.scheduler, cluster=request.cluster)
    except HpcdistError as error:
        yield failed("resources", error.message, error.hint)
        return
    (script,) = planned_scripts(PlannedSubmission.of_run(planned), request.runs)
    accepted = planned.scheduler.try_script(script)
    yield accepted
    if has_failed or _is_bad(accepted):
        yield skipped("job", "not submitted: it could not run")
    elif not request.with_job:
        yield skipped("job", "not submitted: --no-job")
    else:
        yield from _job(request, planned)


def _job(request: Request, planned: PlannedRun) -> Iterator[Finding]:
    try:
        run, verdict = run_trial(
            planned,
            runs=request.runs,
            command=request.command,
            timeout_s=request.timeout_s,
            say=request.say,
            check=request.check,
        )
    except NotEndedError as error:
        yield failed("job", f"{error}; it was cancelled", "wait longer with --timeout MINUTES")
        return
    except HpcdistError as error:
        yield failed("job", error.message, error.hint or "see what the scheduler says")
        return
    evidence = collect(run, verdict, planned.scheduler.explain_end(run))
    found = judge(evidence, planned.plan.cluster, asks_for_gpus=planned.plan.asks_for_gpus)
    yield from found
    if any(_is_bad(one) for one in found):
        request.say(f"the job's run is kept: {run.path}")
    else:
        shutil.rmtree(run.path, ignore_errors=True)


def _profile(cluster: LoadedProfile) -> Finding:
    if cluster.name is None and cluster.known:
        return warned(
            "profile",
            f"none: {' and '.join(cluster.files)} has {', '.join(cluster.known)} and no default",
            "choose one with --cluster",
        )
    if cluster.name is None:
        return passed("profile", "none: the site's defaults")
    own: dict[str, list[str]] = {}
    for key, origin in cluster.origins.items():
        if origin != DEFAULT_ORIGIN:
            own.setdefault(origin, []).append(key)
    said = "; ".join(f"{', '.join(keys)} from {origin}" for origin, keys in own.items())
    return passed("profile", f"{cluster.name}: {said or 'nothing but defaults'}")


def _folder(request: Request, *, is_shared: bool) -> Iterator[Finding]:
    try:
        request.runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        yield failed(
            "runs folder",
            f"{request.runs} cannot be made: {error.strerror}",
            "name a folder that you can write, with --runs or HPCDIST_RUNS",
        )
        return
    yield examine_folder(request.runs, is_shared=is_shared)


def _remove_empty(runs: Path) -> None:
    """The doctor leaves no folder behind that it made, unless a run is kept in it."""
    try:
        runs.rmdir()
    except OSError:
        return


def _is_bad(finding: Finding) -> bool:
    return finding.state == "FAIL"
