"""How long a job takes, from earlier runs of known length."""

import pytest
from msgspec.structs import replace

from hpcdist.base.statistics import Interval, Measure
from hpcdist.planning.earlier import (
    Duration,
    count_requeues,
    find_duration,
    suggest_limit_min,
)
from hpcdist.runs.spec import Planned
from hpcdist.summary.compare.planned import ratios
from hpcdist.summary.figures.run import MeasuredRun
from hpcdist.summary.values import Cost, RunFigures, Size, StepTime

JOB = {"name": "ddp", "train.lr": 0.1, "train.batch_size": 32, "train.epochs": 10}
STARTUP_S = 20.0


def run(number=0, *, gpus=1, held_s=120.0, steps=100, state="done", step_s=1.0, **conditions):
    """A run whose steps take `step_s`; the rest of its time is startup, and between steps."""
    rate = 32 * gpus / step_s
    figures = RunFigures(
        run=f"run-{number}",
        job="ddp",
        state=state,
        nodes=1,
        gpus_per_node=gpus,
        world_size=gpus,
        hosts=["h"],
        samples_per_s=Measure(mean=rate, sd=0.01 * rate, count=20),
        samples_per_step=32.0 * gpus,
        step_time_s=StepTime(mean=step_s),
        steps=steps,
        startup_s=STARTUP_S,
        cost=Cost(held_s=held_s),
    )
    return MeasuredRun(
        figures=figures,
        conditions=JOB | {"device": "cpu", "code": "c"} | conditions,
        missing=None,
        bests=b"\x80",
        series=b"\x80",
    )


def found(runs, *, gpus=1, steps=100, **conditions):
    return find_duration(runs, JOB | conditions, Size(gpus, 1), steps)


@pytest.mark.parametrize(
    ("steps", "time_s"), [(100, 120), (200, 220), (50, 70), (None, 120)], ids=str
)
def test_the_time_after_the_startup_is_proportional_to_the_steps(steps, time_s):
    duration = found([run()], steps=steps)
    assert duration.time_s.mean == pytest.approx(time_s)
    assert (duration.startup_s, duration.source) == (STARTUP_S, "from 1 run of this size")
    assert duration.time_s.interval is None


def test_the_interval_is_that_of_one_more_run():
    duration = found([run(number, held_s=held_s) for number, held_s in enumerate((110, 120, 130))])
    # Student's t for 2 degrees of freedom is 4.303; the sd is 10.
    half_s = 4.303 * 10 * (1 + 1 / 3) ** 0.5
    interval = duration.time_s.interval
    assert interval.low == pytest.approx(120 - half_s, abs=0.01)
    assert interval.high == pytest.approx(120 + half_s, abs=0.01)
    assert duration.runs == ["run-0", "run-1", "run-2"]


@pytest.mark.parametrize(
    "other",
    [
        run(state="failed"),
        run(**{"train.batch_size": 16}),
        run(strategy="fsdp"),
        run(gpus=2),
        run(steps=None),
    ],
    ids=["failed", "other batch", "other strategy", "other size", "not recorded"],
)
def test_runs_that_are_not_like_the_job_do_not_count(other):
    duration = found([other])
    assert duration.time_s is None
    assert "no run" in duration.source


def test_length_place_and_seed_of_a_run_do_not_matter():
    other = {"train.epochs": 3, "train.seed": 5, "device": "cuda", "checkpoint.every_epochs": 0}
    assert found([run(**other)]).time_s.mean == pytest.approx(120)


def test_another_size_goes_by_the_law_of_the_forecast():
    # Weak scaling, t(N) = 1 + 0.4 (N - 1) / N: at 8 GPUs 1.35 s. A quarter more is between steps.
    runs = []
    for number, gpus in enumerate((1, 1, 2, 2, 4, 4)):
        step_s = 1 + 0.4 * (gpus - 1) / gpus
        runs.append(run(number, gpus=gpus, step_s=step_s, held_s=STARTUP_S + 125 * step_s))
    duration = found(runs, gpus=8)
    assert duration.time_s.mean == pytest.approx(STARTUP_S + 1.25 * 135, rel=0.01)
    assert duration.time_s.interval.low < duration.time_s.mean < duration.time_s.interval.high
    assert duration.source == "by the law of the forecast, from 6 runs of other sizes"


def test_only_runs_that_are_done_say_how_right_a_plan_was():
    figures = replace(
        run().figures, peak_rss_bytes=12, planned=Planned(memory_bytes=10, duration_s=100)
    )
    assert ratios(figures) == {"duration": 1.2, "memory": 1.2}
    assert ratios(replace(figures, state="failed")) == {}


@pytest.mark.parametrize(
    ("time_s", "limit_min"),
    [
        (Measure(mean=100), 5),  # 1.25 x 1.1 x 100 s, and a warning of 120 s
        (Measure(mean=36_000, interval=Interval(low=30_000, high=42_000)), 780),
    ],
    ids=["a moment", "a night"],
)
def test_a_suggested_limit_is_round_and_leaves_time_for_the_warning(time_s, limit_min):
    duration = Duration(time_s=time_s, source="")
    assert suggest_limit_min(duration, warning_s=120) == limit_min


@pytest.mark.parametrize(("limit_min", "requeues"), [(61, 0), (60, 1), (31, 2), (2, None)])
def test_requeues_are_counted(limit_min, requeues):
    duration = Duration(time_s=Measure(mean=3600), startup_s=60, source="")
    assert count_requeues(duration, limit_min=limit_min, warning_s=60) == requeues
