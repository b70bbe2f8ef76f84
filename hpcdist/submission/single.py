"""Submitting: from a loaded job to a run that a scheduler knows. The one place with the effects."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from hpcdist.agent.task import AgentTask
from hpcdist.base import files
from hpcdist.base.errors import JobError, SubmissionUnclearError
from hpcdist.base.secrets import redact
from hpcdist.base.version import versions
from hpcdist.cluster.load import NO_PROFILE, LoadedProfile
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job import LoadedJob, locate
from hpcdist.job.spec import JobSpec, ScriptJob, job_to_dict
from hpcdist.runs.run import Run, cannot_write
from hpcdist.runs.spec import GitState, JobSource, RunSpec, SweepPlace, UsedCluster
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers import detect_scheduler, load_scheduler
from hpcdist.schedulers.base import Allocation, Dependency, Plan, Scheduler, Target
from hpcdist.submission.workspace import SnapshotRequest, Workspace, plan_workspace
from hpcdist.workloads import load_workload

_GIT_TIMEOUT_S = 5.0
_PLACEHOLDER_ID = "RUN"


@dataclass(frozen=True, kw_only=True)
class PlannedSubmission:
    """A checked job, and how its scheduler would run it on a cluster."""

    loaded: LoadedJob
    scheduler: Scheduler
    cluster: LoadedProfile
    plan: Plan
    workspace: Workspace
    call: bytes | None = None
    """The function that is submitted, with its arguments, pickled; None: the job is no function."""

    @property
    def notes(self) -> list[str]:
        """What the user should know, one sentence each."""
        of_job = load_workload(self.loaded.job).notes()
        of_plan = [*self.plan.notes, *self.workspace.notes]
        return [*self.loaded.notes, *_notes(self.cluster), *of_plan, *of_job]

    def script(self, target: Target) -> str:
        """What would be executed for `target`."""
        return self.scheduler.render(self.loaded.job, target, self.plan)

    def target(self, run: Run, dependencies: Sequence[Dependency] = ()) -> Target:
        """What the script of a single run is for."""
        place = self.workspace.place(run.path.parent)
        return Target(
            name=run.id,
            folder=run.path,
            cwd=place.cwd,
            environment=place.environment,
            dependencies=list(dependencies),
            allocation=self.plan.allocation,
            step_options=self.plan.step_options,
        )

    def hand_over(self, target: Target, runs: Sequence[Run]) -> list[str]:
        """Submit runs whose directories are there; what the scheduler had to say."""
        job = self.workspace.job_in(runs[0].path.parent, self.loaded.job)
        agents = [AgentTask(str(run.path), self.scheduler.name) for run in runs]
        return self.scheduler.submit(job, target, runs, self.script(target), agents=agents)


def plan_submission(
    loaded: LoadedJob,
    *,
    scheduler: str,
    cluster: LoadedProfile = NO_PROFILE,
    snapshot: SnapshotRequest | None = None,
) -> PlannedSubmission:
    """Check the job and plan how it would run on the cluster, without any effect.

    `snapshot` says whether the job runs from a snapshot; None: as its scheduler does by default.
    Raises UserError or SchedulerError: nothing that can be known beforehand is left for later.
    """
    chosen = load_scheduler(detect_scheduler() if scheduler == "auto" else scheduler)
    with _located(loaded):
        load_workload(loaded.job).check()
        plan = chosen.plan(loaded.job, cluster.profile)
    workspace = plan_workspace(
        loaded.job, snapshot or SnapshotRequest(), by_default=not chosen.runs_here
    )
    return PlannedSubmission(
        loaded=loaded, scheduler=chosen, cluster=cluster, plan=plan, workspace=workspace
    )


def plan_step(
    loaded: LoadedJob,
    allocation: Allocation,
    *,
    scheduler: Scheduler,
    cluster: LoadedProfile = NO_PROFILE,
    snapshot: SnapshotRequest | None = None,
) -> PlannedSubmission:
    """Check the job and plan how it would run in an allocation, without any effect.

    A step cannot be requeued: one that is told to stop ends with what it has saved.

    Raises UserError.
    """
    launch = msgspec.structs.replace(loaded.job.launch, requeue=False)
    loaded = msgspec.structs.replace(loaded, job=msgspec.structs.replace(loaded.job, launch=launch))
    with _located(loaded):
        load_workload(loaded.job).check()
        plan = scheduler.plan_step(loaded.job, cluster.profile, allocation)
    # It starts while its user looks on: as on this machine, there is no queue to wait in.
    workspace = plan_workspace(loaded.job, snapshot or SnapshotRequest(), by_default=False)
    return PlannedSubmission(
        loaded=loaded,
        scheduler=scheduler,
        cluster=cluster,
        plan=plan,
        workspace=workspace,
    )


def plan_again(planned: PlannedSubmission, loaded: LoadedJob) -> PlannedSubmission:
    """The plan for other values of a job that runs the same code (see `code_of`), checked too.

    What depends on the code, and on what does not change, is shared.
    """
    job = loaded.job
    with _located(loaded):
        load_workload(job).check()
        is_same = shape_of(job) == shape_of(planned.loaded.job)
        plan = planned.plan if is_same else planned.scheduler.plan(job, planned.cluster.profile)
    return replace(planned, loaded=loaded, plan=plan)


def plan_now(planned: PlannedSubmission, busy_gpus: Collection[str] = ()) -> PlannedSubmission:
    """Return the plan for the machine as it is at present: which of its GPUs are idle changes.

    `busy_gpus` are UUIDs of GPUs that are given away, but may not look so yet.
    """
    with _located(planned.loaded):
        plan = planned.scheduler.plan(planned.loaded.job, planned.plan.cluster, busy_gpus=busy_gpus)
    return replace(planned, plan=plan)


def shape_of(job: JobSpec) -> str:
    """What a scheduler's plan depends on: jobs of one code and shape can share a plan."""
    return msgspec.json.encode((job.resources, job.launch)).decode()


def code_of(job: JobSpec) -> tuple[str, str]:
    """What the ranks run: the workload, and the script where it is one."""
    return job.workload, job.script if isinstance(job, ScriptJob) else ""


def placeholder_run(runs: Path) -> Run:
    """A run for rendering: RUN stands in place of an id that does not exist yet."""
    return Run(runs / _PLACEHOLDER_ID)


def prepare(planned: PlannedSubmission) -> None:
    """Do what comes before any submission, such as a download, which may take long."""
    with _located(planned.loaded):
        load_workload(planned.loaded.job).prepare()


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A run that a scheduler has."""

    run: Run
    said: list[str]
    """What the scheduler had to say, one sentence each."""


def submit(
    planned: PlannedSubmission,
    *,
    runs: Path,
    command: Sequence[str],
    dependencies: Sequence[Dependency] = (),
) -> Submitted:
    """Make the run directory, and submit what is prepared; the run is the scheduler's from then on.

    `command` is how the user asked for it, for spec.json. On an error nothing is left behind,
    unless it is a SubmissionUnclearError.
    """
    planned = store_workspace(planned, runs)
    with _new_run(planned, runs, command) as run:
        said = planned.hand_over(planned.target(run, dependencies), [run])
    return Submitted(run=run, said=said)


def store_workspace(planned: PlannedSubmission, runs: Path) -> PlannedSubmission:
    """Store the snapshot, if there is one: once, also where several runs are submitted with it.

    The plan that comes back is the one to submit: files that changed since the plan was made are
    taken as they are now.
    """
    return replace(planned, workspace=planned.workspace.store(runs))


@contextmanager
def _new_run(planned: PlannedSubmission, runs: Path, command: Sequence[str]) -> Iterator[Run]:
    """A run directory with its spec.json; an error in the block leaves nothing of it behind, unless
    a scheduler may have the run."""
    run = Run.create(runs, planned.loaded.job.name)
    try:
        describe(run, planned, command)
        yield run
    except SubmissionUnclearError:
        raise
    except BaseException as error:
        shutil.rmtree(run.path, ignore_errors=True)
        if isinstance(error, OSError):
            raise cannot_write(runs, error) from None
        raise


def describe(
    run: Run,
    planned: PlannedSubmission,
    command: Sequence[str],
    *,
    surroundings: RunSpec | None = None,
    sweep: SweepPlace | None = None,
) -> None:
    """Write the spec.json of a planned run, and its call, if it has one.

    `sweep` says which point of which sweep it is.
    """
    write_spec(
        run,
        planned.loaded,
        scheduler=planned.scheduler.name,
        cluster=planned.cluster,
        plan=planned.plan,
        command=command,
        surroundings=surroundings,
        sweep=sweep,
        workspace=planned.workspace,
    )
    if planned.call is not None:
        files.write_whole(run.function_file, planned.call)


def one_rank(loaded: LoadedJob) -> LoadedJob:
    """The job as debug mode runs it: on one rank."""
    resources = msgspec.structs.replace(loaded.job.resources, nodes=1, gpus=1)
    return msgspec.structs.replace(
        loaded, job=msgspec.structs.replace(loaded.job, resources=resources)
    )


def debug(planned: PlannedSubmission, *, runs: Path, command: Sequence[str]) -> tuple[Run, Verdict]:
    """Run a job of `one_rank`, planned for this machine and prepared, in this very process.

    There is no fork, so breakpoints and pdb work.
    """
    from hpcdist.agent.debug import begin, run_here

    planned = store_workspace(planned, runs)
    job = planned.workspace.job_in(runs, planned.loaded.job)
    place = planned.workspace.place(runs)
    with _new_run(planned, runs, command) as run:
        rank = begin(run, job, planned.plan)
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


def write_spec(
    run: Run,
    loaded: LoadedJob,
    *,
    scheduler: str,
    cluster: LoadedProfile = NO_PROFILE,
    plan: Plan,
    command: Sequence[str],
    surroundings: RunSpec | None = None,
    sweep: SweepPlace | None = None,
    workspace: Workspace | None = None,
) -> None:
    """Write spec.json: all that was decided, and what it was decided with."""
    workspace = workspace or Workspace(submit_dir=os.getcwd())
    runs = run.path.parent
    run.write_spec(
        msgspec.structs.replace(
            surroundings or surroundings_now(),
            id=run.id,
            created_s=time.time(),
            scheduler=scheduler,
            cluster=UsedCluster(name=cluster.name, profile=_without_secrets(cluster.profile)),
            job=job_to_dict(workspace.job_in(runs, loaded.job)),
            plan=plan.launch,
            source=JobSource(job=loaded.source, overrides=list(loaded.overrides)),
            cwd=workspace.submit_dir,
            snapshot=workspace.used_snapshot(runs),
            command=list(command),
            sweep=sweep,
        )
    )


def _without_secrets(profile: ClusterProfile) -> ClusterProfile:
    kept = redact(profile.environment)
    hidden = {name: kept.get(name, "***") for name in profile.environment}
    return msgspec.structs.replace(profile, environment=hidden)


def _notes(cluster: LoadedProfile) -> list[str]:
    if cluster.name is not None or not cluster.known:
        return []
    listed = f"{' and '.join(cluster.files)} has {', '.join(cluster.known)} and no default"
    return [f"no cluster profile is used: {listed}; choose one with --cluster"]


def git_state() -> GitState | None:
    """Commit and branch of the working directory, and whether it has changes; None outside git."""
    text = _git("status", "--porcelain=v2", "--branch", "--untracked-files=no")
    if text is None:
        return None
    lines = text.splitlines()
    headers = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
    changed = [line for line in lines if not line.startswith("#")]
    return GitState(
        commit=headers.get("branch.oid"), branch=headers.get("branch.head"), dirty=bool(changed)
    )


@contextmanager
def _located(loaded: LoadedJob) -> Iterator[None]:
    """Errors name the place that a wrong value came from."""
    try:
        yield
    except JobError as error:
        raise locate(loaded, error) from None


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
