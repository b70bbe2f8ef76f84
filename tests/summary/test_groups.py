"""The choice of runs to compare: sizes, repeats, strategies, batches, and differences that keep
runs apart."""

import re

import msgspec
import pytest
from summary_text import only_section, printed

from hpcdist.base import files
from hpcdist.runs.verdict import Verdict
from hpcdist.summary import summarize
from hpcdist.summary.compare.against import compare_with
from hpcdist.summary.report.changes import conclusion as against_conclusion
from hpcdist.summary.report.sentences import conclusion

FAILED = Verdict(kind="exit", state="failed", message="rank 0 left with 3", exit_code_of_run=1)


@pytest.fixture
def add(record_run, events):
    """Add a run with these samples/s of all its ranks, and what it ran, and ran on."""
    count = iter(range(100))

    def add(
        rate,
        *,
        gpus=1,
        samples=100,
        device="cuda:0",
        gpu=None,
        code=None,
        job_keys=(),
        **options,
    ):
        windows = events.steady([rate / gpus] * 5, samples=samples)
        name, ranks = f"run-{next(count):02d}", [[*windows, events.end(time_s=3600.0)]] * gpus
        run = record_run(name, *ranks, start={"device": device, "code": code}, **options)
        content = files.read_json(run.spec_file)
        for section, values in dict(job_keys).items():
            content["job"][section] = content["job"][section] | values
        files.write_json(run.spec_file, content)
        if gpu:
            node = {
                "event": "node",
                "begin_s": 0.0,
                "node": 0,
                "gpus": [{"uuid": "1", "name": gpu}],
            }
            run.usage_file(0).write_bytes(msgspec.json.encode(node) + b"\n")
        return run

    return add


def batch(size, accumulate=1):
    return {"train": {"batch_size": size, "accumulate": accumulate}}


FSDP = {"strategy": "fsdp"}
LINES = {
    "accumulated batches count": (
        [(100.0, batch(16, 4)), (150.0, {"gpus": 4} | batch(16))],
        [("0 1", "0", "strong")],
        [1.0, 1.5],
    ),
    "one smallest size begins a weak and a strong line": (
        [
            *((100.0, {}), (190.0, {"gpus": 2}), (360.0, {"gpus": 4})),
            *((170.0, {"gpus": 2} | batch(32)), (250.0, {"gpus": 4} | batch(16))),
        ],
        [("0 1 2", "0", "weak"), ("3 4", "0", "strong")],
        [1.0, 1.9, 3.6, 1.7, 2.5],
    ),
    "another whole batch": (
        [(100.0, {}), (180.0, {"gpus": 2} | batch(48))],
        [("0", "", None), ("1", "", None)],
        [None, None],
    ),
    "strategies begin with the same GPU": (
        [(100.0, {"strategy": "single"}), (190.0, {"gpus": 2}), (160.0, {"gpus": 2} | FSDP)],
        [("0 1", "0", "weak"), ("2", "0", "weak")],
        [1.0, 1.9, 1.6],
    ),
    "repeats differ in their seed, and other jobs are other groups": (
        [(99.0, {"train": {"seed": 1}}), (101.0, {"train": {"seed": 2}}), (50.0, {"job": "mine"})],
        [("0 1", "", None), ("2", "", None)],
        [None, None, None],
    ),
}


@pytest.mark.parametrize(("runs", "groups", "speedups"), LINES.values(), ids=LINES)
def test_runs_that_differ_in_size_alone_are_compared(add, runs, groups, speedups):
    made = [add(rate, **options) for rate, options in runs]
    places = {run.id: str(place) for place, run in enumerate(made)}
    summary = summarize(made, {})
    found = [
        (*(" ".join(places[run] for run in side) for side in (each.runs, each.baseline)), each)
        for each in summary.groups
    ]
    assert [(runs, baseline, each.cells[-1].scaling) for runs, baseline, each in found] == groups
    for run, speedup in zip(summary.runs, speedups, strict=True):
        assert run.speedup == (None if speedup is None else pytest.approx(speedup))
        assert run.efficiency == (run.speedup and pytest.approx(run.speedup / run.cell.ideal))


A100, CLUSTER = {"gpu": "A100"}, {"spec": {"cluster": {"name": "north"}}}
IMAGE = {"image": "/torch.sif", "runtime": "apptainer", "identity": "a"}
UNLIKE = {
    "train.precision is bf16-mixed, but fp32": ({}, {"train": {"precision": "bf16-mixed"}}),
    "torch is 2.6.0, but 2.15.0": ({}, {"torch": "2.6.0"}),
    "device is cpu, but cuda": ({}, {"device": "cpu"}),
    "device_model is H100, but A100": (A100, {"gpu": "H100"}),
    "cluster is south, but north": (CLUSTER, {"spec": {"cluster": {"name": "south"}}}),
    "resources.cpus_per_gpu is 8, but ": ({}, {"job_keys": {"resources": {"cpus_per_gpu": 8}}}),
    "record.digest is 5, but ": ({}, {"job_keys": {"record": {"digest": 5}}}),
    "image is ": (
        {"spec": {"container": IMAGE}},
        {"spec": {"container": IMAGE | {"identity": "b"}}},
    ),
    "code is ": ({"code": "aa"}, {"code": "bb"}),
}


@pytest.mark.parametrize(("reason", "first", "other"), [(k, *v) for k, v in UNLIKE.items()])
def test_what_differs_is_a_column_and_no_repeat_and_the_reason_is_told(add, reason, first, other):
    runs = [add(rate, gpus=gpus, **first) for rate, gpus in ((100.0, 1), (102.0, 1), (180.0, 2))]
    runs += [add(500.0, **other), add(900.0, gpus=4, **other)]
    summary = summarize(runs, {})
    one, _, two, three, four = summary.runs
    key = reason.partition(" is ")[0]
    assert all(key in run.differs_in for run in summary.runs)
    assert (one.cell.num_measured, three.cell.num_measured) == (2, 1)
    assert two.speedup == pytest.approx(180 / 101)
    assert (four.compared_with, four.speedup) == ([three.run], pytest.approx(1.8))
    is_free = key.startswith(("code", "torch", "device", "cluster"))
    assert (one.settings == three.settings) is is_free


def test_why_a_run_is_not_compared_is_told(add, make_run):
    runs = [add(1.0, verdict=FAILED), add(1.0, verdict=None), add(1.0, verdict=None)]
    runs += [make_run("silent"), add(100.0)]
    found = summarize(runs, {"run-01": "running"}).runs
    assert [run.not_compared_because for run in found] == [
        "its state is failed, and only done runs are compared",
        "its state is running, and only done runs are compared",
        "its state is not known, and only done runs are compared",
        "it recorded no steps",
        "there is no finished run like it of another size",
    ]


def test_comparisons_with_a_baseline_and_of_variants_say_what_differs(add):
    before = summarize([add(100.0, code="aa", **A100), add(101.0, code="aa", **A100)], {}).runs
    now = summarize([add(300.0, code="bb", gpu="H100"), add(302.0, code="bb", gpu="H100")], {}).runs
    changes = compare_with(before, now, threshold=0.05)
    assert changes.changes[0].differing["device_model"] == ["A100", "H100"]
    assert changes.changes[0].differing.keys() == {"code", "device_model"}
    assert "device_model is H100, and was A100" in against_conclusion(changes)
    runs = [
        add(rate, gpu=gpu, spec={"sweep": {"id": "s", "variant": name, "index": place}})
        for place, (rate, gpu, name) in enumerate([(100.0, "A100", "ddp"), (300.0, "H100", "f")])
    ]
    said = " ".join(only_section(summarize(runs, {})).conclusions)
    assert "f ran on H100, and ddp on A100." in said


# What the summary says of them.


def test_runs_with_other_settings_have_them_in_a_column_and_none_is_the_headline(add):
    text = printed([add(100.0), add(180.0, train={"precision": "bf16-mixed"})])
    assert " ".join(text.split("\n\n")[0].split()) == (
        "ddp: its runs differ in train.precision, so they are not compared."
    )
    rows = [line.split() for line in text.splitlines() if re.match(r"# +run|[12] +run", line)]
    assert [row[2] for row in rows] == ["settings", "precision=fp32", "precision=bf16-mixed"]


def test_ranks_on_the_same_cpus_are_called_no_more_hardware(add):
    one = add(100.0, device="cpu", cpus=lambda _: [0, 1])
    four = add(190.0, device="cpu", gpus=4, cpus=lambda rank: [rank // 2])
    summary = summarize([one, four], {})
    assert [run.num_cpus for run in summary.runs] == [2, 2]
    text = conclusion(summary.runs, summary.groups)
    assert text.endswith(" Its 4 ranks had to share 2 CPUs.")


def test_scripts_are_told_apart_by_the_samples_that_they_recorded(add):
    for job, each in (("strong", {1: 240, 2: 120}), ("weak", {1: 120, 2: 120})):
        runs = [add(100.0 * gpus, gpus=gpus, job=job, samples=each[gpus]) for gpus in (1, 2)]
        for run in runs:
            spec = files.read_json(run.spec_file)
            spec["job"].pop("train")
            files.write_json(run.spec_file, spec)
        (group,) = summarize(runs, {}).groups
        assert group.cells[-1].scaling == job


def test_a_job_that_ran_on_two_clusters_is_compared_with_what_it_cost(add):
    def on(cluster, rate, price, **options):
        profile = {"scheduler": "azure", "price_per_hour": price}
        return add(rate, spec={"cluster": {"name": cluster, "profile": profile}}, **options)

    cpu = on("azure-cpu", 100.0, 0.5, device="cpu", cpus=lambda _: [0, 1])
    summary = summarize([cpu, on("azure-gpu", 400.0, 3.0)], {})
    section = only_section(summary)
    assert section.conclusions[0] == (
        "ddp: azure-gpu (GPU) is 4.00 times as fast as azure-cpu (CPU) (1 x 1 each); a run "
        "cost 3 there and 0.5 on azure-cpu, 0.17 times as many samples for the same money."
    )
    assert [run.cost.price for run in summary.runs] == pytest.approx([0.5, 3.0], rel=1e-3)
    assert "cluster" in [column.header for table in section.tables for column in table.columns]
