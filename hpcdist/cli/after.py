"""What `submit` and `render` do for --after and --summary-after."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdist.base.errors import SchedulerError, SubmissionUnclearError
from hpcdist.cli.options import JobOptions
from hpcdist.cli.printing import note
from hpcdist.runs.run import Run

if TYPE_CHECKING:
    from hpcdist.schedulers.base import Dependency, Scheduler
    from hpcdist.submission.single import PlannedSubmission


def settle_afters(options: JobOptions, scheduler: Scheduler) -> list[Dependency]:
    """What the scheduler has to wait for; on this machine, the waiting itself."""
    if not options.after:
        return []
    from hpcdist.submission.dependencies import find_afters, settle

    return settle(find_afters(options.runs, options.after), scheduler, told=note)


def settle(
    options: JobOptions, planned: PlannedSubmission
) -> tuple[PlannedSubmission, list[Dependency]]:
    """`settle_afters`, and the plan after it: this machine may look otherwise after the waiting."""
    from hpcdist.submission.single import plan_now

    dependencies = settle_afters(options, planned.scheduler)
    if options.after and not planned.scheduler.has_queue:
        return plan_now(planned), []
    return planned, dependencies


def dependencies_now(options: JobOptions, scheduler: Scheduler) -> list[Dependency]:
    """What the scheduler would have to wait for; nothing is waited for."""
    return settle_afters(options, scheduler) if scheduler.has_queue else []


def submit_summary(planned: PlannedSubmission, run: Run) -> None:
    """Submit the job that writes a run's summary, where the scheduler can hold it back.

    Raises SchedulerError, which says that the run itself was submitted.
    """
    from hpcdist.submission.summary_after import SummaryJob
    from hpcdist.summary.task import SummaryTask

    if not planned.scheduler.has_queue:
        return
    job = SummaryJob(scheduler=planned.scheduler, cluster=planned.plan.cluster, folder=run.path)
    job_id = str(run.read_job_id())
    try:
        summary_id, said = job.submit([run], [job_id], SummaryTask)
    except SchedulerError as error:
        perhaps = "perhaps " if isinstance(error, SubmissionUnclearError) else ""
        what = f"run {run.id} was submitted, but {perhaps}not the job for its summary"
        raise SchedulerError(
            f"{what}: {error.message}",
            hint=f"it goes on; summarize it later with: hpcdist summary {run.id}",
        ) from error
    for text in said:
        note(text)
    note(f"job {summary_id} will write {run.path / 'summary.txt'}")


def summary_scripts(options: JobOptions, planned: PlannedSubmission, run: Run) -> list[str]:
    """The script that `submit_summary` would submit, where it would."""
    from hpcdist.submission.summary_after import SummaryJob

    if not (options.summary_after and planned.scheduler.has_queue):
        return []
    job = SummaryJob(scheduler=planned.scheduler, cluster=planned.plan.cluster, folder=run.path)
    return [job.script(job.target([f"JOBID-of-{run.id}"]))]


def print_summary_here(runs: Sequence[Run], folder: Path, *, as_json: bool) -> None:
    """Write the summary of runs that have ended here, and show it."""
    from hpcdist.summary.writing import PICTURE, write_summary

    text = write_summary(runs, folder)
    print(text, end="", file=sys.stderr if as_json else sys.stdout)
    note(f"the summary is in {folder / 'summary.txt'}")
    if (folder / PICTURE).exists():
        note(f"its picture is in {folder / PICTURE}")
