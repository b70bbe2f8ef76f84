"""Submitting: from a plan to runs that a scheduler has. The one place with the effects.

Every submission goes one way: run directories with their spec.json, then the scripts, then the
hand-over. A single run is a submission of one point, which needs no folder of a sweep.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, SchedulerError, SubmissionUnclearError
from hpcdist.base.secrets import redact
from hpcdist.base.version import versions
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import job_to_dict
from hpcdist.runs.run import Run, cannot_write, make_unique_folder, slug
from hpcdist.runs.spec import (
    GitState,
    JobSource,
    RunSpec,
    SubmittedJob,
    SweepPlace,
    SweepSpec,
    UsedCluster,
)
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.base import Dependency
from hpcdist.submission.layout import LaidOutJob, MakeTask, SummaryJob, lay_out
from hpcdist.submission.plan import Places, PlannedRun, PlannedSubmission

_GIT_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """Runs that a scheduler has."""

    places: Places
    jobs: list[SubmittedJob]
    summary_job_id: str | None
    messages: list[str]
    """What the scheduler had to say, each sentence once."""

    @property
    def id(self) -> str:
        """The name by which the user calls the submission."""
        return self.places.id

    @property
    def runs(self) -> list[Run]:
        """In the order of the points."""
        return self.places.runs


def submit(
    planned: PlannedSubmission,
    *,
    runs: Path,
    command: Sequence[str],
    dependencies: Sequence[Dependency] = (),
    summary_task: MakeTask | None = None,
) -> Submitted:
    """Make the runs in the folder `runs`, and submit them; the scheduler has them from then on.

    `command` is how the user asked for it, for spec.json. An error before the first job is accepted
    leaves nothing behind, unless it is a SubmissionUnclearError. After one later, what the
    scheduler has, or may have, stays with it, the runs that it has not are deleted, and the error
    says so.
    """
    submission = Submission(planned.stored(runs), runs, command)
    try:
        submission.make_runs(dependencies)
        for job in submission.jobs:
            submission.hand_over(job)
        if summary_task is not None:
            submission.submit_summary(summary_task)
    except BaseException as error:
        submission.take_back()
        if isinstance(error, HpcdistError):
            left = submission.what_is_left(error)
            if left is not error:
                raise left from error
        if isinstance(error, OSError):
            raise cannot_write(runs, error) from None
        raise
    return submission.result()


class Submission:
    """A submission half way: what the scheduler has, and what it has not."""

    def __init__(self, planned: PlannedSubmission, runs: Path, command: Sequence[str]) -> None:
        """`planned` is stored already, and `runs` the folder of the runs."""
        self.planned = planned
        self.jobs: list[LaidOutJob] = []
        self.submitted: list[SubmittedJob] = []
        self._command = list(command)
        self._surroundings = surroundings_now()
        self.places = planned.places(make_unique_folder(runs, slug(planned.name)))
        self._created_s = time.time()
        self._unclear: list[str] = []
        """Ids of runs of which nobody knows whether the scheduler has them."""
        self._summary_job_id: str | None = None
        self._messages: list[str] = []
        self._are_runs_submitted = False

    def make_runs(self, dependencies: Sequence[Dependency]) -> None:
        """Make all directories before the scheduler is called: a full disk is found before too."""
        self.jobs = lay_out(self.planned, self.places, dependencies)
        self.write_sweep()
        for job in self.jobs:
            for task, index in enumerate(job.points):
                self.make_run(index, self.planned.runs[index], job, task)

    def make_run(self, index: int, planned: PlannedRun, job: LaidOutJob, task: int = 0) -> None:
        """Make the directory of a point's run, which is a task of a job."""
        run = self.places.runs[index]
        run.make()
        sweep = self._place_in_sweep(index, job, task)
        spec = msgspec.structs.replace(self._surroundings, command=self._command, sweep=sweep)
        write_spec(run, planned, spec)

    def hand_over(self, job: LaidOutJob, planned: PlannedRun | None = None) -> None:
        """Give a job to the scheduler, as `planned` or as its first point is planned."""
        runs = [self.places.runs[index] for index in job.points]
        behind = None if job.behind is None else self.submitted[job.behind].job_id
        target = job.target_behind(behind)
        target.submitit_folder.mkdir(parents=True, exist_ok=True)
        try:
            planned = planned or self.planned.runs[job.points[0]]
            self._messages += planned.hand_over(target, runs)
        except SubmissionUnclearError:
            self._unclear = [run.id for run in runs]
            raise
        first = str(runs[0].read_job_id())
        self.submitted.append(
            SubmittedJob(
                name=target.name,
                job_id=self.planned.scheduler.dependency_id(first),
                runs=[run.id for run in runs],
            )
        )
        self.write_sweep()

    def submit_summary(self, make_task: MakeTask) -> None:
        """Submit the job that writes the summary, where the scheduler can hold it back."""
        self._are_runs_submitted = True
        if not self.planned.scheduler.has_queue:
            return
        summary = SummaryJob.of(self.planned, self.places)
        job_ids = [job.job_id for job in self.submitted]
        self._summary_job_id, messages = summary.submit(self.places.runs, job_ids, make_task)
        self._messages += messages
        self.write_sweep()

    def write_sweep(self) -> None:
        """Write sweep.json, where the runs belong to a sweep."""
        if self.places.sweep is None:
            return
        self.places.sweep.write(
            SweepSpec(
                id=self.places.id,
                created_s=self._created_s,
                job=self.planned.name,
                scheduler=self.planned.scheduler.name,
                command=self._command,
                num_points=len(self.planned.points),
                max_parallel=self.planned.max_parallel,
                jobs=self.submitted,
                summary_job_id=self._summary_job_id,
            )
        )

    def take_back(self) -> None:
        """Delete the runs that the scheduler has not; with the last of them goes the sweep."""
        theirs = {name for job in self.submitted for name in job.runs}.union(self._unclear)
        for run in self.places.runs:
            if run.id not in theirs:
                shutil.rmtree(run.path, ignore_errors=True)
        if not theirs and self.places.sweep is not None:
            self.places.sweep.remove()

    def what_is_left(self, error: HpcdistError) -> HpcdistError:
        """Return the error that says what the scheduler has, or may have."""
        if self._are_runs_submitted:
            return self._without_summary(error)
        if self.places.sweep is None or not (self.submitted or self._unclear):
            return error
        kind = SubmissionUnclearError if self._unclear else SchedulerError
        return kind(
            f"{self._what_was_submitted()}: {error.message}",
            hint=f"hpcdist status {self.places.id} shows what runs, hpcdist cancel "
            f"{self.places.id} ends them",
        )

    def _without_summary(self, error: HpcdistError) -> SchedulerError:
        what = "run" if self.places.sweep is None else "sweep"
        perhaps = "perhaps " if isinstance(error, SubmissionUnclearError) else ""
        return SchedulerError(
            f"{what} {self.places.id} was submitted, but {perhaps}not the job for its summary: "
            f"{error.message}",
            hint=f"it goes on; summarize it later with: hpcdist summary {self.places.id}",
        )

    def _what_was_submitted(self) -> str:
        number = sum(len(job.runs) for job in self.submitted)
        of_all = f"of the {len(self.planned.points)} runs of sweep {self.places.id}"
        if not self._unclear:
            return f"{number} {of_all} were submitted, the others were not"
        return (
            f"{number} {of_all} were submitted, of {len(self._unclear)} that is not known, and the "
            "others were not"
        )

    def _place_in_sweep(self, index: int, job: LaidOutJob, task: int) -> SweepPlace | None:
        if self.places.sweep is None:
            return None
        point = self.planned.points[index]
        return SweepPlace(
            id=self.places.id,
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

    def result(self) -> Submitted:
        """Return what was submitted."""
        return Submitted(
            places=self.places,
            jobs=self.submitted,
            summary_job_id=self._summary_job_id,
            messages=list(dict.fromkeys(self._messages)),
        )


def debug(planned: PlannedRun, *, runs: Path, command: Sequence[str]) -> tuple[Run, Verdict]:
    """Run a job of `one_rank`, planned for this machine and prepared, in this very process.

    There is no fork, so breakpoints and pdb work.
    """
    from hpcdist.agent.debug import begin, run_here

    planned = planned.stored(runs)
    submission = Submission(PlannedSubmission.of_run(planned), runs, command)
    (run,) = submission.places.runs
    job = planned.workspace.job_in(runs, planned.loaded.job)
    place = planned.workspace.place(runs)
    try:
        submission.make_runs(())
        rank = begin(run, job, planned.plan)
    except BaseException as error:
        submission.take_back()
        if isinstance(error, OSError):
            raise cannot_write(runs, error) from None
        raise
    os.environ.update(place.environment)
    os.chdir(place.cwd)
    try:
        return run, run_here(run, job, rank)
    except OSError as error:
        raise cannot_write(runs, error) from None


def surroundings_now() -> RunSpec:
    """Return what is the same in spec.json for all runs of a submission, and slow to find out."""
    return RunSpec(
        user=_user(),
        host=socket.gethostname(),
        versions=versions(),
        git=git_state(),
        environment=redact(os.environ),
    )


def write_spec(run: Run, planned: PlannedRun, spec: RunSpec | None = None) -> None:
    """Write the spec.json of a planned run, and its call, if it has one.

    `spec` has what does not follow from the plan; None: the surroundings as they are now.
    """
    runs = run.path.parent
    loaded, workspace, cluster = planned.loaded, planned.workspace, planned.cluster
    run.write_spec(
        msgspec.structs.replace(
            spec or surroundings_now(),
            id=run.id,
            created_s=time.time(),
            scheduler=planned.scheduler.name,
            cluster=UsedCluster(name=cluster.name, profile=_without_secrets(cluster.profile)),
            job=job_to_dict(workspace.job_in(runs, loaded.job)),
            plan=planned.plan.launch,
            source=JobSource(job=loaded.source, overrides=list(loaded.overrides)),
            cwd=workspace.submit_dir,
            snapshot=workspace.used_snapshot(runs),
        )
    )
    if planned.call is not None:
        files.write_whole(run.function_file, planned.call)


def git_state() -> GitState | None:
    """Return commit, branch and changes of the working directory; None outside git."""
    text = _git("status", "--porcelain=v2", "--branch", "--untracked-files=no")
    if text is None:
        return None
    lines = text.splitlines()
    headers = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
    changed = [line for line in lines if not line.startswith("#")]
    return GitState(
        commit=headers.get("branch.oid"), branch=headers.get("branch.head"), dirty=bool(changed)
    )


def _without_secrets(profile: ClusterProfile) -> ClusterProfile:
    kept = redact(profile.environment)
    hidden = {name: kept.get(name, "***") for name in profile.environment}
    return msgspec.structs.replace(profile, environment=hidden)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container that knows the user by number only
        return str(os.getuid())


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
