"""Submitting: from a plan to runs that a scheduler has. The one place with the effects.

Every submission goes one way: run directories with their spec.json, then the scripts, then the
hand-over. A single run is a submission of one point, which needs no folder of a sweep.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, SchedulerError, SubmissionUnclearError
from hpcdist.base.secrets import Stars, redact
from hpcdist.base.version import versions
from hpcdist.job.spec import job_to_dict
from hpcdist.runs.run import (
    Run,
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
from hpcdist.schedulers.tasks import array_of
from hpcdist.submission.container import used_container
from hpcdist.submission.plan import Job, PlannedRun, PlannedSubmission, lay_out

_GIT_LIMIT_S = 5.0


def submit(
    planned: PlannedSubmission,
    *,
    runs: Path,
    dependencies: Sequence[Dependency] = (),
) -> Submission:
    """Make the runs in the folder `runs`, and submit them; the scheduler has them from then on.

    An error before the first job is accepted leaves nothing behind, unless it is a
    SubmissionUnclearError. After one later, what the scheduler has, or may have, stays with it, the
    runs that it has not are deleted, and the error says so.
    """
    submission = Submission(planned, runs)
    try:
        jobs = lay_out(submission.planned, dependencies)
        # All directories before the scheduler is called: a full disk is found before too.
        for job in jobs:
            submission.make_runs(job)
        for job in jobs:
            submission.hand_over(job)
    except BaseException as error:  # noqa: BLE001 - it is raised below
        submission.take_back()
        known = cannot_write(runs, error) if isinstance(error, OSError) else error
        if isinstance(known, HpcdistError):
            known = submission.what_is_left(known)
        raise known from None
    return submission


class Submission:
    """Runs that a scheduler has; half way, those that it has and those that it has not."""

    def __init__(self, planned: PlannedSubmission, runs: Path) -> None:
        """Make the folder of the run, or of the sweep, in `runs`, and copy the code into it, once
        for all runs; an error leaves nothing behind."""
        make_runs_folder(runs)
        self.planned = planned.at(make_unique_folder(runs, slug(planned.name)))
        self.path, self.runs = self.planned.path, self.planned.runs
        try:
            if any(one.loaded.job.container.image for one in planned.plans):
                from hpcdist.base.carried import carry

                carry()
            if snapshots := [one for plan in planned.plans if (one := plan.workspace.snapshot)]:
                copy_code(snapshots[0], self.path)
            if (sweep := self.planned.sweep) is not None:
                sweep.write()
        except BaseException:
            delete_folder(self.path)
            raise
        self.id = self.path.name
        self.jobs: list[Job] = []
        """The jobs with runs that the scheduler has accepted."""
        self.job_ids: list[str] = []
        """Their ids; of an array its own."""
        self.messages: list[str] = []
        """The messages of the scheduler, each sentence once."""
        self._surroundings = surroundings_now()
        self._unclear: Job | None = None
        """A job of which nobody knows whether the scheduler has it."""

    def make_runs(self, job: Job) -> None:
        """Make the directories of a job's runs."""
        for task, index in enumerate(job.points):
            run, point = self.runs[index], self.planned.points[index]
            run.make()
            place = self.planned.sweep and SweepPlace(
                id=self.id,
                index=index,
                num_points=len(self.planned.points),
                point=point.values,
                repeat=point.repeat,
                label=point.label,
                comparison=self.planned.comparison,
                variant=point.variant,
                job_name=job.target.name,
                task=None if job.target.array_size is None else task,
            )
            planned = self.planned.plans[index] if job.points[1:] else job.planned
            write_spec(run, planned, msgspec.structs.replace(self._surroundings, sweep=place))

    def hand_over(self, job: Job) -> None:
        """Give a job to the scheduler."""
        runs, target = [self.runs[index] for index in job.points], job.target_behind(self.job_ids)
        try:
            said = hand_over(job.planned, target, runs)
        except SubmissionUnclearError:
            self._unclear = job
            raise
        self.jobs.append(job)
        self.job_ids.append(array_of(str(runs[0].read_job_id())))
        self.messages = list(dict.fromkeys([*self.messages, *said]))

    def take_back(self) -> None:
        """Delete the runs that the scheduler has not; with the last of them goes the sweep."""
        jobs = [*self.jobs, *([self._unclear] if self._unclear else [])]
        theirs = {index for job in jobs for index in job.points}
        for index, run in enumerate(self.runs):
            if index not in theirs:
                delete_folder(run.path)
        if not theirs and self.planned.sweep is not None:
            delete_folder(self.path)

    def what_is_left(self, error: HpcdistError) -> HpcdistError:
        """Return the error that says what the scheduler has, or may have, where that is some of the
        jobs of a sweep, and not all."""
        if not self.jobs and not (self._unclear and self.planned.is_sweep):
            return error
        number, name = sum(len(job.points) for job in self.jobs), name_to_type(self.path)
        unclear = f" of {len(self._unclear.points)} that is not known," if self._unclear else ""
        kind = SubmissionUnclearError if self._unclear else SchedulerError
        return kind(
            f"{number} of the {len(self.runs)} runs of sweep {self.id} were submitted,{unclear} "
            f"the others were not: {error.message}",
            hint=f"hpcdist status {name} shows what runs, hpcdist cancel {name} ends them",
        )


# A sweep on this machine.


def start_points(submission: Submission) -> Iterator[tuple[int, Run | HpcdistError]]:
    """Start the points of a sweep for this machine, each when the caller asks for it: yield its
    place and its run, or why it could not be started. Start no more once the sweep is cancelled.

    The caller waits for a run, and ends it after an error of its own.
    """
    for index in submission.planned.points_here():
        sweep, run = submission.planned.sweep, submission.runs[index]
        if sweep is not None and sweep.cancel_file.exists():
            return
        try:
            planned = submission.planned.plans[index].now()
            job = Job(planned=planned, target=planned.target(run), points=[index])
            submission.make_runs(job)
            submission.hand_over(job)
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
        environment=redact(os.environ),
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
        place = msgspec.structs.replace(place, point=point, label=label)
    container = planned.container_in(run.path.parent)
    run.write_spec(
        msgspec.structs.replace(
            spec,
            id=run.id,
            created_s=spec.created_s or time.time(),
            scheduler=planned.scheduler.name,
            cluster=UsedCluster(name=cluster.name, profile=cluster.profile),
            job=shown_job,
            hidden=sorted(hidden),
            plan=msgspec.structs.replace(planned.plan.launch, container=container),
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
    lines = said.splitlines()
    headers = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
    changed = [line for line in lines if not line.startswith("#")]
    return headers.get("branch.oid"), bool(changed)
