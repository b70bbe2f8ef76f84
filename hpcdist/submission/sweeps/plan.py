"""A sweep that is checked: a loaded and planned job per point, and the scheduler's jobs for them.

Nothing here has an effect: every mistake in any point is found before anything is submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from hpcdist.job import LoadedJob
from hpcdist.runs.run import Run
from hpcdist.runs.spec import SweepPlace
from hpcdist.runs.sweep import Sweep
from hpcdist.schedulers.base import Dependency, Scheduler, Target
from hpcdist.submission.single import PlannedSubmission, code_of, plan_again, prepare, shape_of
from hpcdist.submission.sweeps.jobs import SweepJob, group_points
from hpcdist.submission.sweeps.points import Point
from hpcdist.submission.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class PlannedSweep:
    """All points of a sweep, and how each would run."""

    points: list[Point]
    runs: list[PlannedSubmission]
    """One per point."""
    max_parallel: int | None = None
    comparison: str | None = None
    """Name of the comparison whose variants the points are."""

    @property
    def scheduler(self) -> Scheduler:
        """The one that gets all of them."""
        return self.runs[0].scheduler

    def prepare(self) -> None:
        """Do what comes before any submission, once for runs that are the same."""
        for one in {id(one): one for one in self.runs}.values():
            prepare(one)

    def stored(self, folder: Path) -> PlannedSweep:
        """With its snapshots stored, each once, in the folder of the runs."""
        stored: dict[int, Workspace] = {}
        for run in self.runs:
            if id(run.workspace) not in stored:
                stored[id(run.workspace)] = run.workspace.store(folder)
        runs = [replace(run, workspace=stored[id(run.workspace)]) for run in self.runs]
        return replace(self, runs=runs)

    @property
    def name(self) -> str:
        """The job's, or the comparison's."""
        return self.comparison or self.runs[0].loaded.job.name

    @property
    def notes(self) -> list[str]:
        """What the user should know, each sentence once."""
        return list(dict.fromkeys(note for run in self.runs for note in run.notes))


class LaidOutJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a sweep, as its scheduler is to get it."""

    target: Target
    points: list[int]
    behind: int | None
    """The job, by its place, whose end it waits for; not among the target's dependencies yet."""

    def target_behind(self, job_id: str | None) -> Target:
        """The target once the id of the job before it is known."""
        if job_id is None:
            return self.target
        one = Dependency(kind="afterany", job_ids=[job_id])
        return msgspec.structs.replace(self.target, dependencies=[*self.target.dependencies, one])


def plan_sweep(
    points: Sequence[Point],
    *,
    load: Callable[[Point], LoadedJob],
    plan: Callable[[LoadedJob], PlannedSubmission],
    max_parallel: int | None = None,
    comparison: str | None = None,
) -> PlannedSweep:
    """Load and plan every point: once for its repeats, the scheduler's plan once for every shape,
    and what depends on the code once for all.

    Raises UserError or SchedulerError, as `load` and `plan` do.
    """
    by_values: dict[tuple[str, ...], PlannedSubmission] = {}
    by_shape: dict[tuple[str, ...], PlannedSubmission] = {}
    for point in points:
        values = _values(point)
        if values not in by_values:
            loaded = load(point)
            code = code_of(loaded.job)
            shape = (*code, shape_of(loaded.job))
            known = by_shape.get(shape) or by_shape.get(code)
            planned = plan(loaded) if known is None else plan_again(known, loaded)
            by_values[values] = by_shape[shape] = by_shape[code] = planned
    return PlannedSweep(
        points=list(points),
        runs=[by_values[_values(point)] for point in points],
        max_parallel=max_parallel,
        comparison=comparison,
    )


def lay_out(
    planned: PlannedSweep,
    sweep: Sweep,
    *,
    max_array_size: int,
    dependencies: Sequence[Dependency] = (),
) -> list[LaidOutJob]:
    """The jobs of a sweep: runs whose scripts are the same go into one array."""
    probe = planned.runs[0].target(Run(sweep.path))
    shapes = [run.script(probe) for run in planned.runs]
    jobs = group_points(shapes, max_array_size=max_array_size, max_parallel=planned.max_parallel)
    arrays = [place for place, job in enumerate(jobs) if job.is_array]
    laid_out = []
    for place, job in enumerate(jobs):
        first = planned.runs[job.points[0]]
        if job.is_array:
            target = _array_target(first, sweep, job, (arrays.index(place), len(arrays)))
        else:
            target = first.target(sweep.run(job.points[0], len(planned.points)))
        target = msgspec.structs.replace(target, dependencies=list(dependencies))
        laid_out.append(LaidOutJob(target=target, points=job.points, behind=job.behind))
    return laid_out


def described_point(
    planned: PlannedSweep, sweep: Sweep, index: int, job: tuple[str, int | None] | None = None
) -> SweepPlace:
    """What spec.json says of a run's place in its sweep; `job` is its job's name, and its task."""
    point = planned.points[index]
    name, task = job or (None, None)
    return SweepPlace(
        id=sweep.id,
        index=index,
        num_points=len(planned.points),
        point=point.values,
        repeat=point.repeat,
        label=point.label,
        comparison=planned.comparison,
        variant=point.variant,
        job_name=name,
        task=task,
    )


def _array_target(
    first: PlannedSubmission, sweep: Sweep, job: SweepJob, numbered: tuple[int, int]
) -> Target:
    number, num_arrays = numbered
    size = len(job.points)
    limits = job.max_parallel is not None and job.max_parallel < size
    return msgspec.structs.replace(
        first.target(Run(sweep.path)),
        name=sweep.id if num_arrays == 1 else f"{sweep.id}.{number}",
        folder=sweep.path / f"array-{number}",
        array_size=size,
        max_parallel=job.max_parallel if limits else None,
    )


def _values(point: Point) -> tuple[str, ...]:
    return (point.job or "", *(flag.name for flag in point.flags.values()))
