from __future__ import annotations

import pytest

from hpcdist.runs.verdict import Verdict
from hpcdist.summary import summarize
from hpcdist.summary.report.cells import speed_tables
from hpcdist.summary.report.remarks import conclusion
from hpcdist.summary.report.report import make_sections

FAILED = Verdict(kind="exit", state="failed", message="rank 0 left with 3", exit_code_of_run=1)


@pytest.fixture
def measured_run(make_run, events):
    """Make a run whose ranks together make `rate` samples/s."""

    def make(name, rate, *, nodes=1, gpus=1, device="cpu", **options):
        run = make_run(name, nodes=nodes, gpus=gpus, **options)
        world_size = nodes * gpus
        for rank in range(world_size):
            start = events.start(rank, world_size=world_size, num_nodes=nodes, device=device)
            events.write(run, rank, [start, *events.steady([rate / world_size] * 5)])
        return run

    return make


def by_name(*runs, states=None):
    return {run.run: run for run in summarize(runs, states or {}).runs}


def test_groups_list_their_runs_smallest_first(measured_run):
    big = measured_run("big", 190.0, gpus=2)
    small = measured_run("small", 100.0)
    other = measured_run("other", 50.0, job="mine")
    groups = summarize([big, small, other], {}).groups
    assert [(group.job, group.runs, group.baseline) for group in groups] == [
        ("ddp", ["small", "big"], ["small"]),
        ("mine", ["other"], []),
    ]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        pytest.param(
            {"train": {"batch_size": 32}}, "train.batch_size is 32, but 64", id="batch size"
        ),
        pytest.param(
            {"train": {"precision": "bf16-mixed"}},
            "train.precision is bf16-mixed, but fp32",
            id="precision",
        ),
        pytest.param({"data": {"workers": 2}}, "data.workers is 2, but 0", id="data"),
        pytest.param(
            {"data": {"root": "/d"}}, "data.root is /d, but unset", id="data in another folder"
        ),
        pytest.param({"torch": "2.6.0"}, "torch is 2.6.0, but 2.15.0", id="torch"),
        pytest.param({"device": "cuda:0"}, "device is cuda, but cpu", id="device"),
        pytest.param({"scheduler": "slurm"}, "scheduler is slurm, but local", id="scheduler"),
    ],
)
def test_unlike_runs_are_not_compared_and_the_reason_is_told(measured_run, options, reason):
    unlike = measured_run("unlike", 500.0, gpus=4, **options)
    runs = by_name(unlike, measured_run("one", 100.0), measured_run("two", 180.0, gpus=2))
    assert runs["two"].speedup == pytest.approx(1.8)
    assert runs["unlike"].speedup is None
    assert runs["unlike"].efficiency is None
    assert runs["unlike"].not_compared_because == f"{reason} in one"


def test_many_differences_are_cut_short(measured_run):
    many = {"batch_size": 32, "epochs": 3, "lr": 0.1, "accumulate": 2}
    runs = by_name(
        measured_run("one", 100.0),
        measured_run("two", 180.0, gpus=2),
        measured_run("odd", 1.0, train=many),
    )
    assert runs["odd"].not_compared_because == (
        "train.accumulate is 2, but 1; train.batch_size is 32, but 64; train.epochs is 3, but 10"
        " in one (and 1 more)"
    )


def test_like_runs_have_their_own_baseline_apart_from_unlike_ones(measured_run):
    runs = by_name(
        measured_run("one", 100.0),
        measured_run("two", 180.0, gpus=2),
        measured_run("four", 300.0, gpus=4),
        measured_run("small-one", 50.0, train={"batch_size": 8}),
        measured_run("small-two", 60.0, gpus=2, train={"batch_size": 8}),
    )
    assert runs["small-two"].speedup == pytest.approx(1.2)
    assert runs["small-two"].compared_with == ["small-one"]
    assert runs["small-two"].not_compared_because == "train.batch_size is 8, but 64 in one"


def test_runs_that_are_not_done_do_not_enter(measured_run):
    runs = by_name(
        measured_run("failed", 1000.0, verdict=FAILED),
        measured_run("going", 1000.0, verdict=None),
        measured_run("unknown", 1000.0, verdict=None),
        measured_run("one", 100.0),
        measured_run("two", 180.0, gpus=2),
        states={"going": "running"},
    )
    assert runs["two"].speedup == pytest.approx(1.8)
    assert runs["failed"].speedup is None
    assert runs["failed"].samples_per_s.mean == pytest.approx(1000)
    assert [runs[name].not_compared_because for name in ("failed", "going", "unknown")] == [
        "its state is failed, and only done runs are compared",
        "its state is running, and only done runs are compared",
        "its state is not known, and only done runs are compared",
    ]


def test_a_done_run_without_steps_does_not_enter(measured_run, make_run):
    runs = by_name(make_run("silent"), measured_run("two", 180.0, gpus=2))
    assert runs["silent"].not_compared_because == "it recorded no steps"
    assert runs["two"].speedup is None


def test_ranks_that_had_to_share_cpus_are_told_of(make_run, events):
    runs = []
    for gpus, cpus in ((1, [[0, 1]]), (4, [[0], [0], [1], [1]])):
        run = make_run(f"on-{gpus}", gpus=gpus)
        runs.append(run)
        for rank in range(gpus):
            start = events.start(rank, world_size=gpus, cpus=cpus[rank])
            windows = [
                events.window(step=10 * index, times_s=[0.01] * 10, samples=640)
                for index in range(1, 5)
            ]
            events.write(run, rank, [start, *windows])

    summary = summarize(runs, {})

    assert [run.num_cpus for run in summary.runs] == [2, 2]
    assert "Its 4 ranks had to share 2 CPUs." in conclusion(summary.runs, summary.groups)
    alone = summarize(runs[1:], {})
    assert conclusion(alone.runs, alone.groups).endswith(" Its 4 ranks had to share 2 CPUs.")


def test_more_ranks_on_the_same_cpus_are_called_no_more_hardware(make_run, events):
    """One rank may use both CPUs: two of them need not be twice as fast."""
    runs = []
    for gpus, cpus in ((1, [[0, 1]]), (2, [[0], [1]])):
        run = make_run(f"on-{gpus}", gpus=gpus)
        runs.append(run)
        for rank in range(gpus):
            start = events.start(rank, world_size=gpus, cpus=cpus[rank])
            events.write(run, rank, [start, *events.steady([100.0, 101.0, 99.0, 100.0])])
    summary = summarize(runs, {})
    assert conclusion(summary.runs, summary.groups).endswith(
        " There is no GPU here. It ran on 2 CPUs, and the smallest size on 2 CPUs, which is no "
        "more hardware."
    )


def test_one_process_without_the_gpus_that_it_is_for_is_not_asked_for_other_sizes(make_run, events):
    run = make_run("alone", gpus=2, strategy="data_parallel")
    start = events.start(0, world_size=1, cpus=[0, 1])
    events.write(run, 0, [start, *events.steady([100.0] * 4)])
    summary = summarize([run], {})
    text = conclusion(summary.runs, summary.groups)
    assert text.endswith(
        "whose process had no GPU to use: this says nothing about the speed with 2 GPUs."
    )


def test_strategies_of_one_size_are_no_repeats_and_begin_with_the_same_gpu(measured_run):
    made = [
        measured_run("one", 100.0, strategy="single"),
        measured_run("ddp-2", 190.0, gpus=2),
        measured_run("ddp-4", 360.0, gpus=4),
        measured_run("fsdp-2", 160.0, gpus=2, strategy="fsdp"),
        measured_run("fsdp-4", 300.0, gpus=4, strategy="fsdp"),
    ]
    summary = summarize(made, {})
    runs = {run.run: run for run in summary.runs}
    assert [(group.runs, group.baseline, group.strategy) for group in summary.groups] == [
        (["one", "ddp-2", "ddp-4"], ["one"], "ddp"),
        (["fsdp-2", "fsdp-4"], ["one"], "fsdp"),
    ]
    assert [run.cell.num_measured for run in runs.values()] == [1] * 5
    assert runs["fsdp-4"].cell.speedup.mean == pytest.approx(3.0)
    assert runs["fsdp-4"].not_compared_because is None
    captions = [table.caption for table in speed_tables(summary.groups, list(rows_of(summary)))]
    assert captions == [
        f"{strategy}: Weak scaling (10 samples per step for each GPU)"
        for strategy in ("ddp", "fsdp")
    ]


def test_strategies_without_a_gpu_alone_are_compared_by_themselves(measured_run):
    runs = by_name(
        measured_run("ddp-2", 190.0, gpus=2),
        measured_run("ddp-4", 360.0, gpus=4),
        measured_run("fsdp-2", 160.0, gpus=2, strategy="fsdp"),
        measured_run("fsdp-4", 300.0, gpus=4, strategy="fsdp"),
    )
    assert runs["fsdp-4"].compared_with == ["fsdp-2"]
    assert runs["fsdp-4"].not_compared_because == "strategy is fsdp, but ddp in ddp-2"


def rows_of(summary):
    (section,) = make_sections(summary)
    return section.rows


def test_a_size_that_was_run_once_beside_repeats_has_an_interval_of_its_own_kind(measured_run):
    runs = [measured_run(f"one-{rate}", rate) for rate in (99.0, 101.0)]
    runs.append(measured_run("two", 180.0, gpus=2))
    once = "samples/s of what was run once: over equal parts of its run"
    for some, is_said in ((runs, True), (runs[1:], False)):
        (section,) = make_sections(summarize(some, {}))
        (table,) = speed_tables(section.groups, section.rows)
        assert (once in table.footnote) is is_said
