"""Strong and weak scaling are told apart by the batch."""

import io
import json
import re

import pytest

from hpcdist.summary import print_summary, summarize, to_json
from hpcdist.summary.report.text import make_console


@pytest.fixture
def add_run(make_run, events):
    """Add a run whose every GPU takes `batch_size` samples at a time; samples/s are of all."""
    count = iter(range(100))

    def add(rate, *, gpus=1, nodes=1, batch_size=64, accumulate=1, **options):
        train = {"batch_size": batch_size, "accumulate": accumulate}
        name = f"run-{next(count):02d}"
        run = make_run(name, gpus=gpus, nodes=nodes, train=train, **options)
        world_size = gpus * nodes
        for rank in range(world_size):
            start = events.start(rank, world_size=world_size, num_nodes=nodes, device="cuda:0")
            samples = 10 * batch_size * accumulate
            windows = events.steady([rate / world_size] * 5, samples=samples)
            events.write(run, rank, [start, *windows])
        return run

    return add


def groups_of(*runs):
    summary = summarize(runs, {})
    return summary, [(group.runs, group.baseline, group.scaling) for group in summary.groups]


def test_the_same_batch_for_each_gpu_is_weak_scaling(add_run):
    runs = add_run(100.0), add_run(190.0, gpus=2), add_run(360.0, gpus=4)
    summary, groups = groups_of(*runs)
    assert groups == [(["run-00", "run-01", "run-02"], ["run-00"], "weak")]
    assert [run.cell.scaling for run in summary.runs] == ["weak"] * 3
    assert [run.samples_per_step for run in summary.runs] == pytest.approx([64, 128, 256])


def test_one_batch_shared_by_all_gpus_is_strong_scaling_though_the_settings_differ(add_run):
    runs = (
        add_run(100.0, batch_size=64),
        add_run(180.0, gpus=2, batch_size=32),
        add_run(300.0, gpus=2, nodes=2, batch_size=16),
    )
    summary, groups = groups_of(*runs)
    assert groups == [(["run-00", "run-01", "run-02"], ["run-00"], "strong")]
    assert [run.speedup for run in summary.runs] == pytest.approx([1.0, 1.8, 3.0])
    assert [run.efficiency for run in summary.runs] == pytest.approx([1.0, 0.9, 0.75])
    assert [run.not_compared_because for run in summary.runs] == [None] * 3
    assert [run["cell"]["scaling"] for run in to_json(summary)] == ["strong"] * 3
    file = io.StringIO()
    print_summary(summary, make_console(file), details=True)
    assert "Strong scaling (64 samples per step, shared by all GPUs)" in file.getvalue()
    assert "75 % of the ideal speed-up (strong scaling)" in file.getvalue().replace("\n", " ")


def test_accumulated_batches_count_into_the_whole_batch(add_run):
    runs = add_run(100.0, batch_size=16, accumulate=4), add_run(150.0, gpus=4, batch_size=16)
    summary, groups = groups_of(*runs)
    assert groups == [(["run-00", "run-01"], ["run-00"], "strong")]
    assert summary.runs[1].speedup == pytest.approx(1.5)


def test_one_smallest_size_can_begin_a_weak_and_a_strong_line(add_run):
    one = add_run(100.0)
    weak = add_run(190.0, gpus=2), add_run(360.0, gpus=4)
    strong = add_run(170.0, gpus=2, batch_size=32), add_run(250.0, gpus=4, batch_size=16)
    summary, groups = groups_of(one, *weak, *strong)
    assert groups == [
        (["run-00", "run-01", "run-02"], ["run-00"], "weak"),
        (["run-03", "run-04"], ["run-00"], "strong"),
    ]
    assert [run.speedup for run in summary.runs] == pytest.approx([1.0, 1.9, 3.6, 1.7, 2.5])
    file = io.StringIO()
    print_summary(summary, make_console(file), details=True)
    weak_table, strong_table = file.getvalue().split("Weak scaling")[1].split("Strong scaling")
    for table in (weak_table, strong_table):
        assert re.search(r"1 x 1 +1 +100 ± 0 .* 1 \*", table)


def test_another_whole_batch_is_not_compared(add_run):
    _, groups = groups_of(add_run(100.0), add_run(180.0, gpus=2, batch_size=48))
    assert [(baseline, scaling) for _, baseline, scaling in groups] == [([], None)] * 2


def test_scripts_are_told_apart_by_the_samples_that_they_recorded(make_run, events):
    for job, samples in (("shares", 240), ("grows", 120)):
        runs = []
        for gpus in (1, 2):
            run = make_run(f"{job}-{gpus}", job=job, gpus=gpus)
            spec = json.loads(run.spec_file.read_text())
            spec["job"].pop("train")
            run.spec_file.write_text(json.dumps(spec))
            each = samples // gpus if job == "shares" else samples
            for rank in range(gpus):
                windows = events.steady([100.0] * 4, samples=each)
                events.write(run, rank, [events.start(rank, world_size=gpus), *windows])
            runs.append(run)
        (group,) = summarize(runs, {}).groups
        assert group.scaling == {"shares": "strong", "grows": "weak"}[job]
