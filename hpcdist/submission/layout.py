"""The scheduler's jobs that a submission becomes, and their scripts: `hpcdist render` prints what
is made here. Pure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from hpcdist.base.errors import UserError
from hpcdist.job import LoadedJob
from hpcdist.job.spec import JobSpec, Launch, Resources
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Dependency, Target
from hpcdist.submission.plan import PlannedRun, PlannedSubmission
from hpcdist.submission.workspace import PLACEHOLDER_ID, Workspace

_SUMMARY_LIMIT_MIN, _SUMMARY_MEM_GB = 10.0, 2.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job of a submission: a run, an array of runs that differ only in what they read, or the
    one that writes the summary."""

    planned: PlannedRun
    """The plan of its first run."""
    target: Target
    points: Sequence[int] = ()
    """Its runs; none: it writes the summary."""
    behind: Sequence[int] = ()
    """The jobs, by their places, whose ends it waits for."""

    def target_behind(self, job_ids: Sequence[str]) -> Target:
        """Return the target with the ids of the jobs before it."""
        if not self.behind:
            return self.target
        before = Dependency(kind="afterany", job_ids=[job_ids[place] for place in self.behind])
        dependencies = [*self.target.dependencies, before]
        return msgspec.structs.replace(self.target, dependencies=dependencies)


def group_points(
    scripts: Sequence[str], *, max_array_size: int, max_parallel: int | None = None
) -> list[tuple[list[int], int | None, list[int]]]:
    """Put points of one script into arrays of at most `max_array_size`, in the points' order;
    return each group with how many of it may run at one time, and the group that it waits for.

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
    lanes = min(max_parallel or len(parts), len(parts))
    return [
        # Where the lanes cannot share the number evenly, the first have one more.
        (
            points,
            max_parallel and (max_parallel + lanes - 1 - place % lanes) // lanes,
            [place - lanes] if place >= lanes else [],
        )
        for place, points in enumerate(parts)
    ]


def lay_out(
    planned: PlannedSubmission,
    dependencies: Sequence[Dependency] = (),
    *,
    summary_after: bool = False,
) -> list[Job]:
    """Return the jobs of a submission that has its folder: runs whose scripts are the same go into
    one array, and behind all others comes the job of --summary-after, where there is a queue.

    Raises UserError where a job would have to wait for others, and its scheduler cannot.
    """
    scheduler, path = planned.scheduler, planned.path
    groups: list[tuple[list[int], int | None, list[int]]]
    groups = [([index], None, []) for index in range(len(planned.points))]
    if planned.is_sweep and scheduler.has_queue:
        groups = group_points(
            [one.script(one.target(Run(path))) for one in planned.plans],
            max_array_size=scheduler.max_array_size(),
            max_parallel=planned.max_parallel,
        )
    arrays = [points for points, _, _ in groups if len(points) > 1]
    jobs: list[Job] = []
    for points, max_parallel, behind in groups:
        first = planned.plans[points[0]]
        target = first.target(planned.runs[points[0]], dependencies)
        if (size := len(points)) > 1:  # a single run needs no array
            number = arrays.index(points)
            target = msgspec.structs.replace(
                target,
                name=planned.id if len(arrays) == 1 else f"{planned.id}.{number}",
                folder=path / f"array-{number}",
                array_size=size,
                max_parallel=max_parallel if max_parallel and max_parallel < size else None,
            )
        jobs.append(Job(planned=first, target=target, points=points, behind=behind))
    if scheduler.has_queue and summary_after:
        jobs.append(_summary_job(planned, jobs))
    if scheduler.has_queue and not scheduler.jobs_can_wait:
        limited = planned.max_parallel is not None and planned.max_parallel < len(planned.points)
        for option, is_asked, instead in (
            ("--after", dependencies, "submit it when the other run has ended"),
            (
                "--max-parallel",
                limited,
                "submit without it; the nodes of the compute are the limit",
            ),
            ("--summary-after", summary_after, "hpcdist submit --wait, or hpcdist summary then"),
        ):
            if is_asked:
                problem = f"{option}: a job of {scheduler.title} cannot wait for others"
                raise UserError(problem, hint=instead)
    return jobs


def _summary_job(planned: PlannedSubmission, others: Sequence[Job]) -> Job:
    """Return the small job that writes the summary once the others have ended."""
    of_runs, cwd = planned.plans[0], os.getcwd()
    cluster = of_runs.plan.cluster
    mem_gb = cluster.mem_gb and min(cluster.mem_gb, _SUMMARY_MEM_GB)
    job = JobSpec(
        name=f"summary of {planned.id}",
        workload="summary",
        resources=Resources(cpus_per_gpu=1, time_limit_min=_SUMMARY_LIMIT_MIN),
        launch=Launch(device="cpu"),
    )
    small = msgspec.structs.replace(cluster, mem_gb=mem_gb, notify=[])
    loaded = LoadedJob(job=job, source=job.name)
    plan = planned.scheduler.plan(job, small)
    target = Target(name=f"{planned.id}.summary", folder=planned.path / "summary-job", cwd=cwd)
    return Job(
        planned=replace(of_runs, loaded=loaded, plan=plan, workspace=Workspace(submit_dir=cwd)),
        target=target,
        behind=range(len(others)),
    )


def planned_scripts(
    planned: PlannedSubmission,
    folder: Path,
    dependencies: Sequence[Dependency] = (),
    *,
    summary_after: bool = False,
) -> list[tuple[str, Sequence[int]]]:
    """Return what would be submitted with the runs in `folder`: each script with its points; that
    of the summary has none. RUN and JOBID-of-NAME stand for ids that are not known yet."""
    planned = planned.at(folder / PLACEHOLDER_ID)
    jobs = lay_out(planned, dependencies, summary_after=summary_after)
    ids = [f"JOBID-of-{job.target.name}" for job in jobs]
    return [(job.planned.script(job.target_behind(ids)), job.points) for job in jobs]
