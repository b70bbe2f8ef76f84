"""The scheduler's jobs that a submission becomes, and the scripts that they are given.

Pure but for `SummaryJob.submit`: `hpcdist render` prints what is made here.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcdist.base.errors import UserError
from hpcdist.job.spec import JobSpec, Launch, Resources
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Dependency, Target
from hpcdist.schedulers.tasks import SummaryTask
from hpcdist.submission.plan import Places, PlannedRun, PlannedSubmission
from hpcdist.submission.workspace import PLACEHOLDER_ID

_SUMMARY_LIMIT_MIN = 10.0
_SUMMARY_MEM_GB = 2.0
_SUMMARY_FOLDER = "summary-job"


class PointGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Points that go to the scheduler together: one, or an array of runs that differ only in what
    they read."""

    points: list[int]
    """Indices of the points."""
    max_parallel: int | None = None
    """So many of its runs at one time."""
    behind: int | None = None
    """The group, by its place in the list, whose end this one waits for."""


class LaidOutJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a submission, as its scheduler is to get it."""

    target: Target
    points: list[int]
    behind: int | None = None
    """The job, by its place, whose end it waits for; not among the target's dependencies yet."""

    def target_behind(self, job_id: str | None) -> Target:
        """Return the target once the id of the job before it is known."""
        if job_id is None:
            return self.target
        before = Dependency(kind="afterany", job_ids=[job_id])
        return msgspec.structs.replace(
            self.target, dependencies=[*self.target.dependencies, before]
        )


def group_points(
    shapes: Sequence[str], *, max_array_size: int, max_parallel: int | None = None
) -> list[PointGroup]:
    """Put points of one shape into arrays of at most `max_array_size`, in the points' order.

    `max_parallel` holds for all of them together: the groups are dealt out to as many lanes, one
    group of a lane waits for the one before it, and the lanes share the number.
    """
    by_shape: dict[str, list[int]] = {}
    for index, shape in enumerate(shapes):
        by_shape.setdefault(shape, []).append(index)
    size = max(1, max_array_size)
    parts = [
        points[start : start + size]
        for points in by_shape.values()
        for start in range(0, len(points), size)
    ]
    if max_parallel is None:
        return [PointGroup(points=points) for points in parts]
    num_lanes = min(max_parallel, len(parts))
    return [
        PointGroup(
            points=points,
            # The lanes share the number: where it does not divide, the first have one more.
            max_parallel=(max_parallel + num_lanes - 1 - place % num_lanes) // num_lanes,
            behind=place - num_lanes if place >= num_lanes else None,
        )
        for place, points in enumerate(parts)
    ]


def lay_out(
    planned: PlannedSubmission, places: Places, dependencies: Sequence[Dependency] = ()
) -> list[LaidOutJob]:
    """Return the jobs of a submission: runs whose scripts are the same go into one array.

    Raises UserError where a job would have to wait, and its scheduler knows no waiting.
    """
    check_waits(planned, dependencies)
    groups: list[PointGroup] = []
    # What runs on this machine comes last: the places of the others are those of their jobs.
    here = set(planned.points_here())
    for points in sorted(planned.by_scheduler().values(), key=lambda own: own[0] in here):
        groups += _group_of_scheduler(planned, places, points, num_before=len(groups))
    has_one_array = sum(len(group.points) > 1 for group in groups) == 1
    array_numbers = itertools.count()
    jobs = []
    for group in groups:
        size = len(group.points)
        if size > 1:  # a single run needs no array
            number = next(array_numbers)
            limits = group.max_parallel is not None and group.max_parallel < size
            target = msgspec.structs.replace(
                planned.runs[group.points[0]].target(Run(places.path), dependencies),
                name=places.id if has_one_array else f"{places.id}.{number}",
                folder=places.path / f"array-{number}",
                array_size=size,
                max_parallel=group.max_parallel if limits else None,
            )
            job = LaidOutJob(target=target, points=group.points)
        else:
            job = single_job(planned, places, group.points[0], dependencies)
        jobs.append(msgspec.structs.replace(job, behind=group.behind))
    return jobs


def _group_of_scheduler(
    planned: PlannedSubmission, places: Places, points: Sequence[int], *, num_before: int
) -> list[PointGroup]:
    """Group the points of one scheduler; there are `num_before` groups of others."""
    runs = [planned.runs[index] for index in points]
    scheduler = runs[0].scheduler
    if not (planned.is_sweep and scheduler.has_queue):
        return [PointGroup(points=[index]) for index in points]
    probe = runs[0].target(Run(places.path))

    def script(run: PlannedRun) -> str:
        return run.script(probe)

    groups = group_points(
        [script(run) for run in runs],
        max_array_size=scheduler.max_array_size(),
        max_parallel=planned.max_parallel,
    )
    return [
        msgspec.structs.replace(
            group,
            points=[points[index] for index in group.points],
            behind=None if group.behind is None else num_before + group.behind,
        )
        for group in groups
    ]


def check_waits(
    planned: PlannedSubmission,
    dependencies: Sequence[Dependency] = (),
    *,
    summary_after: bool = False,
) -> None:
    """Raise UserError where a job would have to wait for others, and cannot."""
    queues = [run.scheduler for run in planned.runs if run.scheduler.has_queue]
    scheduler = next((one for one in queues if not one.jobs_can_wait), None)
    if scheduler is None:
        return
    limit = planned.max_parallel
    for option, is_asked, instead in (
        ("--after", bool(dependencies), "submit it when the other has ended (hpcdist status)"),
        (
            "--max-parallel",
            limit is not None and limit < len(planned.runs),
            "the nodes of the compute are the limit: jobs wait until some are free",
        ),
        ("--summary-after", summary_after, "hpcdist submit --wait, or hpcdist summary afterwards"),
    ):
        if is_asked:
            raise UserError(
                f"{option}: a job of {scheduler.title} cannot wait for others", hint=instead
            )


def single_job(
    planned: PlannedSubmission,
    places: Places,
    index: int,
    dependencies: Sequence[Dependency] = (),
) -> LaidOutJob:
    target = planned.runs[index].target(places.runs[index], dependencies)
    return LaidOutJob(target=target, points=[index])


def planned_scripts(
    planned: PlannedSubmission,
    folder: Path,
    dependencies: Sequence[Dependency] = (),
    *,
    summary_after: bool = False,
) -> list[str]:
    """Return what would be submitted with the runs in `folder`, script by script.

    RUN and JOBID-of-NAME stand for ids that are not known yet.
    """
    jobs, summary = _planned(planned, folder, dependencies, summary_after=summary_after)
    return [script for script, _ in jobs] + summary


def scripts_by_point(
    planned: PlannedSubmission, folder: Path, dependencies: Sequence[Dependency] = ()
) -> dict[int, str]:
    """Return the script that each point is run by, as `planned_scripts` has it."""
    jobs, _ = _planned(planned, folder, dependencies, summary_after=False)
    return {point: script for script, job in jobs for point in job.points}


def _planned(
    planned: PlannedSubmission,
    folder: Path,
    dependencies: Sequence[Dependency],
    *,
    summary_after: bool,
) -> tuple[list[tuple[str, LaidOutJob]], list[str]]:
    """Return the script of each job, and that of the summary's."""
    check_waits(planned, summary_after=summary_after)
    planned = planned.placed(folder / PLACEHOLDER_ID)
    places = planned.places(folder / PLACEHOLDER_ID)
    jobs = lay_out(planned, places, dependencies)
    ids = [f"JOBID-of-{job.target.name}" for job in jobs]
    scripts = [
        planned.runs[job.points[0]].script(
            job.target_behind(None if job.behind is None else ids[job.behind])
        )
        for job in jobs
    ]
    of_summary = []
    if summary_after and planned.scheduler.has_queue:
        summary = SummaryJob(planned, places)
        of_summary = [summary.script(summary.target(ids))]
    return list(zip(scripts, jobs, strict=True)), of_summary


class SummaryJob:
    """The small job of --summary-after: it writes the summary once all other jobs have ended."""

    def __init__(self, planned: PlannedSubmission, places: Places) -> None:
        cluster = planned.runs[0].plan.cluster
        mem_gb = cluster.mem_gb and min(cluster.mem_gb, _SUMMARY_MEM_GB)
        self._cluster = msgspec.structs.replace(cluster, mem_gb=mem_gb, notify=[])
        self._scheduler = planned.scheduler
        self._folder = places.path  # its name is the first part of the job's
        self._job = JobSpec(
            name=f"summary of {places.path.name}",
            workload="summary",
            resources=Resources(cpus_per_gpu=1, time_limit_min=_SUMMARY_LIMIT_MIN),
            launch=Launch(device="cpu"),
        )

    def target(self, job_ids: Sequence[str]) -> Target:
        """Return what its script is for; `job_ids` are those that must have ended."""
        return Target(
            name=f"{self._folder.name}.summary",
            folder=self._folder / _SUMMARY_FOLDER,
            cwd=os.getcwd(),
            dependencies=[Dependency(kind="afterany", job_ids=list(job_ids))],
        )

    def script(self, target: Target) -> str:
        plan = self._scheduler.plan(self._job, self._cluster)
        return self._scheduler.render(self._job, target, plan)

    def submit(self, runs: Sequence[Run], job_ids: Sequence[str]) -> tuple[str, list[str]]:
        """Submit it; return its job id, and what the scheduler had to say.

        Raises SchedulerError.
        """
        target = self.target(job_ids)
        target.make_folders()
        task = SummaryTask(run_paths=[str(run.path) for run in runs], folder=str(self._folder))
        return self._scheduler.submit_task(self._job, target, task, self.script(target))
