"""Submitting: from a plan to runs that a scheduler has. The one place with the effects.

Every submission goes one way: run directories with their spec.json, then the scripts, then the
hand-over. A single run is a submission of one point, which needs no folder of a sweep.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, SchedulerError, SubmissionUnclearError
from hpcdist.base.secrets import Stars
from hpcdist.base.version import is_served, versions
from hpcdist.job.spec import job_to_dict
from hpcdist.runs.run import (
    Run,
    all_runs,
    cannot_write,
    delete_folder,
    make_runs_folder,
    make_unique_folder,
    name_to_type,
    slug,
)
from hpcdist.runs.snapshot import copy_code, run_git
from hpcdist.runs.spec import RunSpec, SweepPlace, UsedCluster
from hpcdist.schedulers.base import Dependency, Target
from hpcdist.schedulers.held import give_order
from hpcdist.schedulers.tasks import array_of
from hpcdist.submission.plan import Job, PlannedRun, PlannedSubmission, lay_out
from hpcdist.submission.workspace import SUBMISSION_VARIABLE, used_container

_GIT_LIMIT_S = 5.0


def submitted_before(runs: Path) -> list[Run] | None:
    """Return the runs of an earlier submission of the name in the environment; None where there is
    no name, or nothing was submitted by it.

    From now on this process alone submits by that name, until it ends.
    """
    name = os.environ.get(SUBMISSION_VARIABLE)
    if not name or not is_served():  # a job that submits has its submission's environment
        return None
    make_runs_folder(runs)
    folder = runs / ".submissions"
    folder.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
    # It stays open, and locked, as long as this process lives.
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, files.PRIVATE_FILE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        message = "the submission whose connection broke is still at work"
        raise SchedulerError(message, hint="run the same command again in a minute") from None
    if not os.fstat(descriptor).st_size:  # nobody had it before
        os.write(descriptor, b"taken")
        return None
    found = [run for run in all_runs(runs) if run.spec.submission == name]
    return found or None


def submit(
    planned: PlannedSubmission,
    *,
    runs: Path,
    dependencies: Sequence[Dependency] = (),
) -> PlannedSubmission:
    """Make the runs in the folder `runs`, and submit them; return them with their jobs.

    An error before the first job is accepted leaves nothing behind, unless it is a
    SubmissionUnclearError. After one later, what the scheduler has, or may have, stays with it, the
    runs that it has not are deleted, and the error says so.
    """
    planned = begin(replace(planned, plans=[one.now() for one in planned.plans]), runs)
    surroundings = surroundings_now()
    jobs: list[Job] = []
    accepted: list[Job] = []
    try:
        jobs = lay_out(planned, dependencies)
        # All directories before the scheduler is called: a full disk is found before too.
        for job in jobs:
            make_runs(planned, job, surroundings)
        for job in jobs:
            own = [planned.run(index) for index in job.points]
            target = job.target_behind([one.job_id for one in accepted])
            messages = hand_over(job.planned, target, own)
            job_id = array_of(str(own[0].read_job_id()))
            accepted.append(replace(job, job_id=job_id, messages=messages))
    except BaseException as error:  # noqa: BLE001 - it is raised below
        unclear = jobs[len(accepted)] if isinstance(error, SubmissionUnclearError) else None
        theirs = {index for job in [*accepted, unclear] if job for index in job.points}
        for index, run in enumerate(planned.runs):
            if index not in theirs:
                delete_folder(run.path)
        if not theirs and planned.is_sweep:
            delete_folder(planned.path)
        known = cannot_write(runs, error) if isinstance(error, OSError) else error
        if isinstance(known, HpcdistError) and (accepted or (unclear and planned.is_sweep)):
            number, name = sum(len(job.points) for job in accepted), name_to_type(planned.path)
            not_known = f" of {len(unclear.points)} that is not known," if unclear else ""
            kind = SubmissionUnclearError if unclear else SchedulerError
            known = kind(
                f"{number} of the {len(planned.runs)} runs of sweep {planned.id} were submitted,"
                f"{not_known} the others were not: {known.message}",
                hint=f"hpcdist status {name} shows what runs, hpcdist cancel {name} ends them",
            )
        raise known from None
    return replace(planned, jobs=accepted)


def begin(planned: PlannedSubmission, runs: Path) -> PlannedSubmission:
    """Make the folder of the run, or of the sweep, in `runs`, and copy the code into it, once for
    all runs; an error leaves nothing behind."""
    make_runs_folder(runs)
    name = planned.comparison or planned.plans[0].loaded.job.name
    planned = planned.at(make_unique_folder(runs, slug(name)))
    try:
        if any(one.loaded.job.container.image for one in planned.plans):
            from hpcdist.base.carried import carry

            carry()
        if snapshots := [one for plan in planned.plans if (one := plan.workspace.snapshot)]:
            copy_code(snapshots[0], planned.path)
        if planned.sweep is not None:
            planned.sweep.write()
    except BaseException:
        delete_folder(planned.path)
        raise
    return planned


def make_runs(planned: PlannedSubmission, job: Job, surroundings: RunSpec) -> None:
    """Make the directories of a job's runs."""
    for task, index in enumerate(job.points):
        run, point = planned.run(index), planned.points[index]
        run.make()
        place = planned.sweep and SweepPlace(
            id=planned.id,
            index=index,
            num_points=len(planned.points),
            point=point.values,
            repeat=point.repeat,
            label=point.label,
            comparison=planned.comparison,
            variant=point.variant,
            job_name=job.target.name,
            task=None if job.target.array_size is None else task,
        )
        one = planned.plans[index] if job.points[1:] else job.planned
        write_spec(run, one, replace(surroundings, sweep=place))


def start_points(planned: PlannedSubmission) -> Iterator[tuple[int, Run | HpcdistError]]:
    """Start the points of a sweep for this machine, which has begun, each when the caller asks for
    it: yield its place and its run, or why it could not be started. Start no more once the sweep is
    cancelled.

    The caller waits for a run, and ends it after an error of its own.
    """
    surroundings = surroundings_now()
    for index in range(len(planned.points)):
        run = planned.run(index)
        if planned.sweep is not None and planned.sweep.cancel_file.exists():
            return
        try:
            one = planned.plans[index].now()
            job = Job(planned=one, target=one.target(run), points=[index])
            make_runs(planned, job, surroundings)
            hand_over(one, job.target, [run])
        except BaseException as error:
            delete_folder(run.path)
            if not isinstance(error, HpcdistError):
                raise
            yield index, error
        else:
            yield index, run


# What is written and handed over.


def hand_over(planned: PlannedRun, target: Target, runs: Sequence[Run]) -> list[str]:
    """Give runs whose directories are there to the scheduler; return what that had to say."""
    if planned.plan.dev is not None:
        (run,) = runs
        give_order(Run(Path(planned.plan.dev)), run, target, planned.plan)
        return []
    target.make_folders()
    job = planned.workspace.job(planned.loaded.job)
    return planned.scheduler.submit(job, target, runs, planned.script(target))


def surroundings_now() -> RunSpec:
    """Return what is the same in spec.json for all runs of a submission, and slow to find out."""
    commit, has_changes = git_state()
    return RunSpec(
        host=socket.gethostname(),
        versions=versions(),
        commit=commit,
        has_changes=has_changes,
        submission=os.environ.get(SUBMISSION_VARIABLE),
    )


def write_spec(run: Run, planned: PlannedRun, spec: RunSpec | None = None) -> None:
    """Write the spec.json of a planned run, and its call, if it has one.

    Values of the job that look secret are starred out, and stand in private.json alone.
    `spec` has what does not follow from the plan; None: the surroundings as they are now.
    """
    loaded, workspace, cluster = planned.loaded, planned.workspace, planned.cluster
    spec, stars = spec or surroundings_now(), Stars()
    job = job_to_dict(workspace.job(loaded.job))
    shown_job = stars.value(job)
    hidden = {key: value for key, value in job.items() if value != shown_job[key]}
    if hidden:
        files.write_json(run.private_file, hidden)
    if (place := spec.sweep) is not None:
        point, label = stars.value(place.point), place.label and stars.text(place.label)
        place = replace(place, point=point, label=label)
    container = planned.container_in(run.path.parent)
    run.write_spec(
        replace(
            spec,
            id=run.id,
            created_s=spec.created_s or time.time(),
            scheduler=planned.scheduler.name,
            cluster=UsedCluster(name=cluster.name, profile=cluster.profile),
            job=shown_job,
            hidden=sorted(hidden),
            plan=replace(planned.plan.launch, container=container),
            job_source=loaded.source,
            cwd=workspace.submit_dir,
            snapshot=workspace.used,
            container=used_container(loaded.job),
            sweep=place,
            planned=planned.foreseen,
        )
    )
    if planned.call is not None:
        files.write_whole(run.function_file, planned.call)


def git_state() -> tuple[str | None, bool | None]:
    """Return the commit of the working directory, and whether it was changed; None outside git."""
    status = ["status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:  # git starts one of its own in a submodule, by the settings there
        said = run_git(os.getcwd(), [*status, "--ignore-submodules=dirty"], limit_s=_GIT_LIMIT_S)
    except HpcdistError:  # there is no repository, git is not installed or does not answer
        return None, None
    first, *lines = said.splitlines()  # the commit is the first header
    return first.rpartition(" ")[2], any(not line.startswith("#") for line in lines)
