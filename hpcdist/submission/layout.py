"""The scheduler's jobs that a submission becomes, and their scripts: `hpcdist render` prints what
is made here. Pure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from hpcdist.base.errors import UserError
from hpcdist.job.spec import JobSpec, Launch, Resources
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Dependency, Target
from hpcdist.submission.plan import Places, PlannedSubmission
from hpcdist.submission.workspace import PLACEHOLDER_ID

_SUMMARY_LIMIT_MIN = 10.0
_SUMMARY_MEM_GB = 2.0


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a submission: a run, or an array of runs that differ only in what they read."""

    target: Target
    points: list[int]
    behind: int | None = None
    """The job, by its place, whose end it waits for."""

    def target_behind(self, job_ids: Sequence[str]) -> Target:
        """Return the target with the ids of the jobs before it."""
        if self.behind is None:
            return self.target
        before = Dependency(kind="afterany", job_ids=[job_ids[self.behind]])
        waits_for = [*self.target.dependencies, before]
        return msgspec.structs.replace(self.target, dependencies=waits_for)


class Group(NamedTuple):
    """Points of one script; so many of them may run at one time, and once another group is over."""

    points: list[int]
    max_parallel: int | None
    behind: int | None


def group_points(
    scripts: Sequence[str], *, max_array_size: int, max_parallel: int | None = None
) -> list[Group]:
    """Put points of one script into arrays of at most `max_array_size`, in the points' order.

    `max_parallel` holds for all of them together: the groups are dealt out to as many lanes, one
    group of a lane waits for the one before it, and the lanes share the number.
    """
    by_script: dict[str, list[int]] = {}
    for index, script in enumerate(scripts):
        by_script.setdefault(script, []).append(index)
    size = max(1, max_array_size)
    parts = [
        points[start : start + size]
        for points in by_script.values()
        for start in range(0, len(points), size)
    ]
    if max_parallel is None:
        return [Group(points, None, None) for points in parts]
    lanes = min(max_parallel, len(parts))
    return [
        # Where the lanes cannot share the number evenly, the first have one more.
        Group(
            points,
            (max_parallel + lanes - 1 - place % lanes) // lanes,
            place - lanes if place >= lanes else None,
        )
        for place, points in enumerate(parts)
    ]


def lay_out(
    planned: PlannedSubmission, places: Places, dependencies: Sequence[Dependency] = ()
) -> list[Job]:
    """Return the jobs of a submission: runs whose scripts are the same go into one array."""
    scheduler, runs = planned.scheduler, planned.runs
    groups = [Group([index], None, None) for index in range(len(runs))]
    if planned.is_sweep and scheduler.has_queue:
        probe = runs[0].target(Run(places.path))
        groups = group_points(
            [run.script(probe) for run in runs],
            max_array_size=scheduler.max_array_size(),
            max_parallel=planned.max_parallel,
        )
    num_arrays = sum(len(group.points) > 1 for group in groups)
    jobs: list[Job] = []
    for points, max_parallel, behind in groups:
        target = runs[points[0]].target(places.runs[points[0]], dependencies)
        if (size := len(points)) > 1:  # a single run needs no array
            number = sum(len(job.points) > 1 for job in jobs)
            target = msgspec.structs.replace(
                target,
                name=places.id if num_arrays == 1 else f"{places.id}.{number}",
                folder=places.path / f"array-{number}",
                array_size=size,
                max_parallel=max_parallel if max_parallel and max_parallel < size else None,
            )
        jobs.append(Job(target=target, points=points, behind=behind))
    return jobs


def check_waits(
    planned: PlannedSubmission,
    dependencies: Sequence[Dependency] = (),
    *,
    summary_after: bool = False,
) -> None:
    """Raise UserError where a job would have to wait for others, and its scheduler cannot."""
    if not planned.has_queue or planned.scheduler.jobs_can_wait:
        return
    is_limited = planned.max_parallel is not None and planned.max_parallel < len(planned.runs)
    for option, is_asked, instead in (
        ("--after", dependencies, "submit it when the other has ended (hpcdist status)"),
        ("--max-parallel", is_limited, "the nodes of the compute are the limit"),
        ("--summary-after", summary_after, "hpcdist submit --wait, or hpcdist summary afterwards"),
    ):
        if is_asked:
            title = planned.scheduler.title
            raise UserError(f"{option}: a job of {title} cannot wait for others", hint=instead)


def summary_job(
    planned: PlannedSubmission, folder: Path, job_ids: Sequence[str]
) -> tuple[JobSpec, Target, str]:
    """Return the small job of --summary-after with its target and script: it writes the summary
    into the folder once all other jobs have ended."""
    cluster = planned.runs[0].plan.cluster
    mem_gb = cluster.mem_gb and min(cluster.mem_gb, _SUMMARY_MEM_GB)
    job = JobSpec(
        name=f"summary of {folder.name}",
        workload="summary",
        resources=Resources(cpus_per_gpu=1, time_limit_min=_SUMMARY_LIMIT_MIN),
        launch=Launch(device="cpu"),
    )
    target = Target(
        name=f"{folder.name}.summary",
        folder=folder / "summary-job",
        cwd=os.getcwd(),
        dependencies=[Dependency(kind="afterany", job_ids=list(job_ids))],
    )
    cluster = msgspec.structs.replace(cluster, mem_gb=mem_gb, notify=[])
    plan = planned.scheduler.plan(job, cluster)
    return job, target, planned.scheduler.render(job, target, plan)


def planned_jobs(
    planned: PlannedSubmission,
    folder: Path,
    dependencies: Sequence[Dependency] = (),
    *,
    summary_after: bool = False,
) -> list[tuple[str, list[int]]]:
    """Return what would be submitted with the runs in `folder`: each script with its points; that
    of the summary has none. RUN and JOBID-of-NAME stand for ids that are not known yet."""
    check_waits(planned, dependencies, summary_after=summary_after)
    path = folder / PLACEHOLDER_ID
    planned = planned.placed(path)
    jobs = lay_out(planned, planned.places(path), dependencies)
    ids = [f"JOBID-of-{job.target.name}" for job in jobs]
    scripts = [
        (planned.runs[job.points[0]].script(job.target_behind(ids)), job.points) for job in jobs
    ]
    if summary_after and planned.has_queue:
        scripts.append((summary_job(planned, path, ids)[2], []))
    return scripts


def planned_scripts(
    planned: PlannedSubmission,
    folder: Path,
    dependencies: Sequence[Dependency] = (),
    *,
    summary_after: bool = False,
) -> list[str]:
    """Return what would be submitted, script by script."""
    jobs = planned_jobs(planned, folder, dependencies, summary_after=summary_after)
    return [script for script, _ in jobs]


def scripts_by_point(
    planned: PlannedSubmission, folder: Path, dependencies: Sequence[Dependency] = ()
) -> dict[int, str]:
    """Return the script that each point is run by."""
    jobs = planned_jobs(planned, folder, dependencies)
    return {point: script for script, points in jobs for point in points}
