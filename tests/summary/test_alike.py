"""Runs are repeats and sizes of each other only where code, settings and machines are equal."""

import msgspec
import pytest

from hpcdist.base import files
from hpcdist.summary import summarize
from hpcdist.summary.compare.against import compare_with
from hpcdist.summary.report.changes import conclusion
from hpcdist.summary.report.report import make_report


@pytest.fixture
def add(make_run, events):
    """Add a run of a script, and what it ran on."""
    count = iter(range(100))

    def add(rate, *, code=None, gpu=None, cpu=None, cluster=None, ranks=1, change=None, **spec):
        run = make_run(f"run-{next(count):02d}", gpus=ranks)
        content = files.read_json(run.spec_file) | spec | {"cluster": {"name": cluster}}
        for section, values in (change or {}).items():
            content["job"][section] |= values
        files.write_json(run.spec_file, content)
        device = "cuda:0" if gpu else "cpu"
        for rank in range(ranks):
            start = events.start(rank, world_size=ranks, device=device, code=code)
            steps = events.steady([rate / ranks * (1 + 0.01 * n) for n in range(5)])
            events.write(run, rank, [start, *steps, events.end()])
        node = {"event": "node", "begin_s": 0.0, "node": 0, "cpu_model": cpu}
        node["gpus"] = [{"uuid": "GPU-1", "name": gpu}] if gpu else []
        (run.usage_file(0)).write_bytes(msgspec.json.encode(node) + b"\n")
        return run

    return add


@pytest.mark.parametrize(
    ("key", "first", "other"),
    [
        ("code", {"code": "aa"}, {"code": "bb"}),
        ("device_model", {"gpu": "A100"}, {"gpu": "H100"}),
        ("device_model", {"cpu": "EPYC 7763"}, {"cpu": "Xeon"}),
        ("cluster", {"cluster": "north"}, {"cluster": "south"}),
        (
            "resources.cpus_per_gpu",
            {"change": {"resources": {"cpus_per_gpu": 2}}},
            {"change": {"resources": {"cpus_per_gpu": 8}}},
        ),
        ("record.digest", {}, {"change": {"record": {"digest": 5}}}),
    ],
)
def test_what_differs_is_a_column_and_no_repeat(add, key, first, other):
    runs = [add(100, **first), add(102, **first), add(300, **other), add(800, **other, ranks=2)]
    summary = summarize(runs, {})
    one, two, three, _ = summary.runs
    assert [run.differs_in.keys() for run in summary.runs] == [{key}] * 4
    assert one.cell.num_measured == 2
    assert three.cell.num_measured == 1
    assert one.speedup is None
    assert key in one.not_compared_because
    assert three.compared_with == [three.run]
    assert two.configuration == one.configuration != three.configuration or key == "code"


def test_what_is_not_known_of_a_run_is_taken_as_that_of_the_others(add):
    runs = [add(100, gpu="A100"), add(101, gpu="A100")]
    runs[1].usage_file(0).write_text("")
    assert [run.cell.num_measured for run in summarize(runs, {}).runs] == [2, 2]


def test_a_comparison_with_a_baseline_says_what_differs(add):
    before = summarize([add(100, code="aa", gpu="A100"), add(101, code="aa", gpu="A100")], {}).runs
    now = summarize([add(300, code="bb", gpu="H100"), add(302, code="bb", gpu="H100")], {}).runs
    changes = compare_with(before, now, threshold=0.05)
    assert changes.changes[0].differing == {"code": [digest(before), digest(now)]} | {
        "device_model": ["A100", "H100"]
    }
    assert "device_model is H100, and was A100" in conclusion(changes)


def digest(runs):
    return runs[0].ran_with.code


def test_variants_on_other_devices_and_repeats_with_other_code_are_said(add):
    sweep = {"id": "s", "job_name": "s"}
    runs = [
        add(100, gpu="A100", code="aa", sweep=sweep | {"variant": "ddp", "index": 0}),
        add(900, gpu="A100", code="bb", sweep=sweep | {"variant": "ddp", "index": 1}),
        add(300, gpu="H100", code="aa", sweep=sweep | {"variant": "fsdp", "index": 2}),
    ]
    summary = summarize(runs, {})
    first, second = summary.comparisons[0].cells
    assert first.num_measured == 1
    assert second.speedup.mean == pytest.approx(3.0, rel=0.01)
    text = " ".join(make_report(summary).sections[0].conclusions)
    assert "fsdp ran on H100, and ddp on A100." in text
    assert "code is" in summary.runs[1].not_compared_because
