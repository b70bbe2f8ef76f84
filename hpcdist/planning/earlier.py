"""Sources of a plan: the user's earlier runs, the steps of a training, and a probe of it."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from hpcdist.base.errors import HpcdistError
from hpcdist.base.progress import poll
from hpcdist.base.statistics import Measure
from hpcdist.data.catalog import check_data
from hpcdist.job.spec import LightningJob, TrainingJob
from hpcdist.monitor.states import run_accounting
from hpcdist.planning.foresight import FOLDER
from hpcdist.planning.how_long import Duration
from hpcdist.runs.run import all_runs, make_runs_folder, make_unique_folder
from hpcdist.submission.plan import PlannedRun, PlannedSubmission, plan_run
from hpcdist.submission.submit import submit
from hpcdist.summary.figures.run import MeasuredRun, place_run
from hpcdist.summary.measuring import find_measurements, measure

_MOST_RUNS = 200


def count_steps(job: TrainingJob) -> int:
    """Return the optimizer steps of a training, by the size of its data."""
    train, num_samples = job.train, check_data(job.data).train
    ranks = job.resources.nodes * job.resources.gpus
    per_epoch = math.ceil(num_samples / (train.batch_size * ranks * train.accumulate))
    if isinstance(job, LightningJob):  # whose loader drops the last batch
        batches = math.ceil(num_samples / ranks) // train.batch_size
        per_epoch = math.ceil(batches / train.accumulate)
    return min(train.epochs * per_epoch, train.max_steps or train.epochs * per_epoch)


def read_earlier(folder: Path) -> list[MeasuredRun]:
    """Return the newest runs in figures, with the books on those whose start was foreseen."""
    runs = all_runs(folder)[-_MOST_RUNS:]
    found = find_measurements(runs, uses_kept=True)
    pairs = [(run, one.run) for run, one in zip(runs, found, strict=True) if one.run]
    foreseen = [run for run, one in pairs if (plan := one.figures.planned) and plan.wait_s]
    books = run_accounting(foreseen, warn=lambda _: None) if foreseen else {}
    return [
        place_run(one, run.path, state=None, accounting=books.get(run.id)) for run, one in pairs
    ]


def device_of(planned: PlannedRun) -> str:
    """Return cpu or cuda: as a scheduler is asked, or as this machine has it."""
    is_here, plan = planned.scheduler.runs_here, planned.plan
    return "cuda" if (plan.launch.device == "cuda" if is_here else plan.asks_for_gpus) else "cpu"


def at_its_place(runs: Sequence[MeasuredRun], planned: PlannedRun) -> list[MeasuredRun]:
    """Return the runs on the same device of the same cluster: others say nothing about a job."""
    on_gpus, name = device_of(planned) == "cuda", planned.scheduler.name
    figures = [(run, run.figures.scheduler, run.figures.ran_with.device) for run in runs]
    # The device of DataParallel without its GPUs is neither.
    there = [run for run, at, device in figures if at == name and (device == "cuda") == on_gpus]
    return [run for run in there if planned.cluster.name in {None, run.figures.cluster}]


def probe(planned: PlannedRun, runs: Path, probe_s: float, steps: int | None) -> Duration:
    """Run the job here for some seconds, with one rank, and say how long its steps would take."""
    resources = replace(planned.loaded.job.resources, nodes=1, gpus=1)
    make_runs_folder(runs)
    own = make_unique_folder(runs / FOLDER, "probe")
    try:
        there = plan_run(
            planned.loaded.with_job(resources=resources), scheduler="local", snapshot=False
        )
        there.prepare()
        (run,) = submit(PlannedSubmission(plans=[there]), runs=own).runs
        try:
            poll(run.read_verdict, interval_s=0.2, limit_s=probe_s)
        finally:  # also after Ctrl-C
            if run.read_verdict() is None:
                there.scheduler.cancel([run])
        figures = (found := measure(run).run) and found.figures
    except HpcdistError as error:
        return Duration(source=f"the probe failed: {error.message}")
    finally:
        shutil.rmtree(own, ignore_errors=True)
    if not figures or not figures.step_time_s or not steps:
        return Duration(source="the probe recorded too few steps: give --probe more seconds")
    startup_s, step_s = figures.startup_s or 0.0, figures.step_time_s.mean
    return Duration(
        time_s=Measure(mean=startup_s + steps * step_s),
        startup_s=startup_s,
        source=f"{steps:,} steps at the pace of a probe: one rank here, without communication",
    )
