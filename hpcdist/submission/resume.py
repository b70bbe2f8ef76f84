"""Resuming: a run that ended before its work was done goes on from its checkpoint, as another job.

The job starts another life of the same run, in the same directory: logs, events and attempts go on
in it, a script of one's own finds what it saved, and the summary sees one run. Where nodes do not
see that directory (Azure), another run starts from its checkpoint.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import (
    JobError,
    RunDirectoryError,
    SchedulerError,
    SubmissionUnclearError,
    UserError,
)
from hpcdist.cluster.load import LoadedProfile
from hpcdist.job.load import Flag, load_values
from hpcdist.job.spec import Container, JobSpec, ScriptJob, job_to_dict
from hpcdist.monitor.states import OPEN_STATES, end_verdict, run_conditions, wait_until_gone
from hpcdist.runs.run import Run, check_own, name_to_type
from hpcdist.runs.spec import RunSpec
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers import load_scheduler
from hpcdist.schedulers.base import FORMER_LIVES_VARIABLE
from hpcdist.schedulers.tasks import claim_file
from hpcdist.submission.plan import PlannedRun, plan_run
from hpcdist.submission.submit import hand_over, write_spec
from hpcdist.submission.workspace import Workspace
from hpcdist.training.checkpoint.files import list_checkpoints, step_of

_CHANGEABLE = (
    *("resources.time_limit_min", "resources.mem_gb", "resources.cpus_per_gpu", "launch."),
    *("checkpoint.every_epochs", "checkpoint.every_steps", "checkpoint.keep"),
)
"""Keys, and beginnings of keys, that the next life may have otherwise."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A run that can be resumed."""

    spec: RunSpec
    job: JobSpec
    verdict: Verdict
    step: int | None
    """Step of its newest checkpoint; None: it has saved none."""


def look_at(run: Run) -> Ended:
    """Return what a run has come to.

    Raises UserError where it goes on, or is done; SchedulerError where that is not known.
    """
    check_own(run.path, "resume")
    condition = run_conditions([run])[run.id]
    verdict = run.read_verdict() or end_verdict(run, condition)
    if condition.state == "unknown":
        raise SchedulerError(
            f"it is not known whether run {run.id} has ended: {condition.reason}",
            hint=f"see hpcdist status {name_to_type(run.path)}; two jobs of one run would be in "
            "each other's way",
        )
    if condition.state in OPEN_STATES:
        raise UserError(
            f"run {run.id} is {condition.state}: there is nothing to resume",
            hint=f"follow it with hpcdist logs --follow {name_to_type(run.path)}, or end it with "
            f"hpcdist cancel {name_to_type(run.path)}",
        )
    try:
        job, _, spec = run.read_launch()
    except msgspec.ValidationError as error:
        why = run.describe_damage() or f"{run.spec_file.name} cannot be read: {error}"
        raise RunDirectoryError(f"{run.path}: {why}", hint="submit the job again") from None
    if verdict.state == "done":
        hint = "submit the job again"
        if "checkpoint" in job.__struct_fields__:
            hint += f"; --set checkpoint.resume={run.path} trains on from it"
        raise UserError(f"run {run.id} is done: there is nothing to resume", hint=hint)
    checkpoints = list_checkpoints(run.checkpoints_folder)
    step = step_of(checkpoints[0]) if checkpoints else None
    return Ended(spec=spec, job=job, verdict=verdict, step=step)


def plan_resume(run: Run, ended: Ended, flags: Mapping[str, Flag]) -> PlannedRun:
    """Plan the next life of a run, or the run that starts from its checkpoint; `flags` are keys of
    its job that are to be otherwise.

    Raises UserError or SchedulerError.
    """
    spec, source, values = ended.spec, str(run.spec_file), job_to_dict(ended.job)
    scheduler = str(run.read_scheduler())
    for key, flag in flags.items():
        if not key.startswith(_CHANGEABLE):
            raise JobError(
                f"{flag.name}: {key} stays as it is when a run is resumed",
                hint="a new run may change it: hpcdist submit JOB --set "
                f"checkpoint.resume={run.path}",
            )
    if not load_scheduler(scheduler).shares_files:
        if "checkpoint" not in values:
            raise UserError(
                f"run {run.id} ran code of your own on disks that are gone: hpcdist cannot bring "
                "back there what it saved",
                hint=f"submit a job that reads it from hpcdist/{run.id} of the datastore",
            )
        if ended.step is not None:
            values["checkpoint"]["resume"] = str(run.path)
    loaded = load_values(values, source=source, flags=flags)
    loaded = msgspec.structs.replace(loaded, source=spec.job_source or source)
    workspace = Workspace(submit_dir=str(spec.cwd), used=spec.snapshot)
    needed = [workspace.cwd, *([loaded.job.script] if isinstance(loaded.job, ScriptJob) else [])]
    if gone := [path for path in needed if not os.path.exists(path)]:
        raise RunDirectoryError(
            f"run {run.id} cannot be resumed: its code, or its directory, {gone[0]} is gone",
            hint="submit the job again; checkpoint.resume names a run to start from",
        )
    os.chdir(workspace.cwd)  # modules and relative paths are looked for there
    # The job's container is settled.
    profile = msgspec.structs.replace(spec.cluster.profile, container=Container())
    origins = dict.fromkeys(profile.__struct_fields__, "the cluster profile")
    cluster = LoadedProfile(name=spec.cluster.name, profile=profile, origins=origins)
    return plan_run(loaded, scheduler=scheduler, cluster=cluster, workspace=workspace)


def resume(run: Run, ended: Ended, planned: PlannedRun) -> list[str]:
    """Give the next life of a run to its scheduler; return what that had to say.

    Where it is refused, the run is as it was, unless the error is a SubmissionUnclearError. Waits
    for the end of the former job, whose script may be doing its last; raises SchedulerError where
    that does not come.
    """
    if not wait_until_gone(run, with_job=True):
        raise SchedulerError(
            f"run {run.id} has ended, but {planned.scheduler.title} still has its job",
            hint="try again when it is gone, or end it with hpcdist cancel "
            f"{name_to_type(run.path)}",
        )
    name = f"{run.id}.{1 + int((ended.spec.job_name or '').rpartition('.')[2] or 1)}"
    target = planned.target(run)
    environment = target.environment | {FORMER_LIVES_VARIABLE: str(run.next_life())}
    target = msgspec.structs.replace(target, name=name, environment=environment)
    with _reopened(run, ended.verdict):
        write_spec(run, planned, msgspec.structs.replace(ended.spec, job_name=name))
        return hand_over(planned, target, [run])


@contextmanager
def _reopened(run: Run, verdict: Verdict) -> Iterator[None]:
    """Have a run without its end, whose verdict becomes that on its last attempt, and without what
    its agents and its scheduler left; after an error, it is as it was."""
    aside = run.path / "launch.before"
    try:
        run.launch_folder.rename(aside)
    except OSError as error:
        raise RunDirectoryError(
            f"{run.launch_folder} cannot be renamed to {aside.name}: {error.strerror}",
            hint="another command may be resuming it, see hpcdist status; after a crash of the "
            f"machine, rename {aside} back",
        ) from None
    # What says which job has the run, and how the run ended.
    ends = (run.submission_file, run.verdict_file, claim_file(run.submitit_folder, 0))
    kept: dict[Path, bytes] = {}
    try:
        for path in (run.spec_file, run.private_file, *ends):
            if path.exists():
                kept[path] = files.read_bytes(path, most_bytes=files.MOST_JSON_BYTES)
        run.launch_folder.mkdir(mode=files.PRIVATE_FOLDER)
        run.write_reserve()
        if (attempt := run.newest_attempt()) >= 0:
            last = run.read_attempt_verdict(attempt) or verdict
            run.write_attempt_verdict(msgspec.structs.replace(last, attempt=attempt, resumed=True))
        for path in ends:
            path.unlink(missing_ok=True)
        yield
    except SubmissionUnclearError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    except BaseException:
        with suppress(OSError):
            shutil.rmtree(run.launch_folder, ignore_errors=True)
            aside.rename(run.launch_folder)
            for path, content in kept.items():
                files.write_whole(path, content)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def sentence(run: Run, ended: Ended) -> str:
    """Say where a run goes on."""
    if ended.step is not None:
        return f"run {run.id} continues from its checkpoint of step {ended.step}"
    return f"run {run.id} starts again, from what its program has saved itself, if anything"
