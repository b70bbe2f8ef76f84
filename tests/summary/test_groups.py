"""The choice of runs to compare: sizes, repeats, strategies, batches, and differences that keep
runs apart."""

import io
import json
import re

import msgspec
import pytest

from hpcdist.base import files
from hpcdist.cli.main import main
from hpcdist.runs.verdict import Verdict
from hpcdist.summary import print_summary, summarize
from hpcdist.summary.compare.against import compare_with
from hpcdist.summary.report.changes import conclusion as against_conclusion
from hpcdist.summary.report.report import make_report
from hpcdist.summary.report.sentences import conclusion
from hpcdist.summary.report.text import make_console

FAILED = Verdict(kind="exit", state="failed", message="rank 0 left with 3", exit_code_of_run=1)


@pytest.fixture
def add(make_run, events):
    """Add a run with these samples/s of all its ranks, and what it ran, and ran on."""
    count = iter(range(100))

    def add(
        rate,
        *,
        gpus=1,
        nodes=1,
        samples=100,
        device="cuda:0",
        gpu=None,
        cpu=None,
        code=None,
        cpus=lambda _: None,
        job_keys=(),
        spec=(),
        **options,
    ):
        run = make_run(f"run-{next(count):02d}", gpus=gpus, nodes=nodes, **options)
        content = files.read_json(run.spec_file) | dict(spec)
        for section, values in dict(job_keys).items():
            is_section = isinstance(values, dict)
            content["job"][section] = content["job"][section] | values if is_section else values
        files.write_json(run.spec_file, content)
        world_size = gpus * nodes
        for rank in range(world_size):
            fields = {"world_size": world_size, "num_nodes": nodes, "device": device, "code": code}
            start = events.start(rank, **fields, cpus=cpus(rank))
            windows = events.steady([rate / world_size] * 5, samples=samples)
            events.write(run, rank, [start, *windows, events.end()])
        if gpu or cpu:
            node = {"event": "node", "begin_s": 0.0, "node": 0, "cpu_model": cpu}
            node["gpus"] = [{"uuid": "GPU-1", "name": gpu}] if gpu else []
            run.usage_file(0).write_bytes(msgspec.json.encode(node) + b"\n")
        return run

    return add


def printed(runs, **options):
    text = io.StringIO()
    print_summary(summarize(runs, {}), make_console(text), **options)
    return text.getvalue()


def batch(size, accumulate=1):
    return {"train": {"batch_size": size, "accumulate": accumulate}}


FSDP, SINGLE = {"strategy": "fsdp"}, {"strategy": "single"}
LINES = {
    "each GPU keeps its batch": (
        [(360.0, {"gpus": 4}), (100.0, {}), (190.0, {"gpus": 2})],
        [("1 2 0", "1", "weak")],
        [3.6, 1.0, 1.9],
    ),
    "all share one batch, though the settings differ": (
        [(100.0, batch(64)), (180.0, {"gpus": 2} | batch(32)), (300.0, {"gpus": 4} | batch(16))],
        [("0 1 2", "0", "strong")],
        [1.0, 1.8, 3.0],
    ),
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
        [
            *((100.0, SINGLE), (190.0, {"gpus": 2}), (360.0, {"gpus": 4})),
            *((160.0, {"gpus": 2} | FSDP), (300.0, {"gpus": 4} | FSDP)),
        ],
        [("0 1 2", "0", "weak"), ("3 4", "0", "weak")],
        [1.0, 1.9, 3.6, 1.6, 3.0],
    ),
    "strategies without a GPU alone": (
        [
            *((190.0, {"gpus": 2}), (360.0, {"gpus": 4})),
            *((160.0, {"gpus": 2} | FSDP), (300.0, {"gpus": 4} | FSDP)),
        ],
        [("0 1", "0", "weak"), ("2 3", "2", "weak")],
        [1.0, 360 / 190, 1.0, 300 / 160],
    ),
    "repeats differ in their seed, and other jobs are other groups": (
        [(99.0, {"train": {"seed": 1}}), (101.0, {"train": {"seed": 2}}), (50.0, {"job": "mine"})],
        [("0 1", "", None), ("2", "", None)],
        [None, None, None],
    ),
    "failed runs and those that go on do not enter": (
        [
            *((999.0, {"verdict": FAILED}), (999.0, {"verdict": None})),
            *((100.0, {}), (180.0, {"gpus": 2})),
        ],
        [("2 3", "2", "weak")],
        [None, None, 1.0, 1.8],
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


def test_sizes_of_two_lines_have_a_table_each(add):
    runs, _, _ = LINES["one smallest size begins a weak and a strong line"]
    text = printed([add(rate, **options) for rate, options in runs])
    assert re.search(r"Strong scaling \(\d+ samples per step, shared by all GPUs\)", text)
    for table in text.split("Weak scaling")[1].split("Strong scaling"):
        assert re.search(r"1 x 1 +1 +100 ± 0 .* 1 \*", table)
    runs, _, _ = LINES["strategies begin with the same GPU"]
    text = printed([add(rate, job="other", **options) for rate, options in runs])
    assert re.findall(r"(\w+): Weak scaling", text) == ["ddp", "fsdp"]


A100, CLUSTER = {"gpu": "A100"}, {"spec": {"cluster": {"name": "north"}}}
UNLIKE = {
    "train.batch_size is 32, but 64": ({}, batch(32)),
    "train.precision is bf16-mixed, but fp32": ({}, {"train": {"precision": "bf16-mixed"}}),
    "data.workers is 2, but 0": ({}, {"data": {"workers": 2}}),
    "data.root is /d, but unset": ({}, {"data": {"root": "/d"}}),
    "torch is 2.6.0, but 2.15.0": ({}, {"torch": "2.6.0"}),
    "device is cpu, but cuda": ({}, {"device": "cpu"}),
    "scheduler is slurm, but local": ({}, {"scheduler": "slurm"}),
    "device_model is H100, but A100": (A100, {"gpu": "H100"}),
    "cluster is south, but north": (CLUSTER, {"spec": {"cluster": {"name": "south"}}}),
    "resources.cpus_per_gpu is 8, but ": ({}, {"job_keys": {"resources": {"cpus_per_gpu": 8}}}),
    "record.digest is 5, but ": ({}, {"job_keys": {"record": {"digest": 5}}}),
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
    is_free = key.startswith(("code", "torch", "scheduler", "data.root", "device", "cluster"))
    assert (one.settings == three.settings) is is_free


def test_what_is_not_known_of_a_run_is_taken_as_that_of_the_others(add):
    runs = [add(100.0, gpu="A100"), add(101.0)]
    assert [run.cell.num_measured for run in summarize(runs, {}).runs] == [2, 2]


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
    kinds = [(100.0, "A100", "aa", "ddp"), (900.0, "A100", "bb", "ddp"), (300.0, "H100", "aa", "f")]
    runs = [
        add(rate, gpu=gpu, code=code, spec={"sweep": {"id": "s", "variant": name, "index": place}})
        for place, (rate, gpu, code, name) in enumerate(kinds)
    ]
    summary = summarize(runs, {})
    first, second = summary.comparisons[0].cells
    assert (first.num_measured, second.speedup.mean) == (1, pytest.approx(3.0))
    assert "f ran on H100, and ddp on A100." in " ".join(
        make_report(summary).sections[0].conclusions
    )
    assert "code is" in summary.runs[1].not_compared_because


# What the summary says of them.


def test_runs_with_other_settings_have_them_in_a_column_and_none_is_the_headline(add):
    text = printed([add(100.0), add(180.0, train={"precision": "bf16-mixed"})])
    assert " ".join(text.split("\n\n")[0].split()) == (
        "ddp: its runs differ in train.precision, so they are not compared."
    )
    header, first, second = (
        line.split() for line in text.splitlines() if re.match(r"# +run|[12] +run", line)
    )
    assert header[:4] == ["#", "run", "settings", "state"]
    assert (first[2], second[2]) == ("precision=fp32", "precision=bf16-mixed")
    sizes = [add(100.0, job="b"), add(190.0, gpus=2, job="b")]
    text = printed([*sizes, add(900.0, job="b", train={"precision": "bf16-mixed"})])
    assert text.startswith("b with precision=fp32: 2 ranks (1 x 2) are 1.90 times as fast as 1")


def test_arguments_stand_as_a_command_line_and_many_settings_are_counted(add):
    scripts = [
        add(100.0, job_keys={"workload": "script", "args": args})
        for args in (["--seed", "1"], ["--name", "a b"])
    ]
    differing = [run.differs_in for run in summarize(scripts, {}).runs]
    assert differing == [{"args": "['--seed', '1']"}, {"args": "['--name', 'a b']"}]
    train = {"precision": "bf16-mixed", "batch_size": 8, "accumulate": 2, "epochs": 3}
    runs = [add(100.0), add(50.0, train=train)]
    assert (
        summarize(runs, {}).runs[1].settings_text
        == "accumulate=2, batch_size=8, epochs=3, precision=bf16-mixed"
    )


def test_one_process_without_its_gpus_has_the_size_that_was_asked_for_and_no_speed_up(
    make_run, events, monkeypatch, capsys, tmp_path
):
    runs = []
    for gpus in (1, 2, 2, 4):
        run = make_run(f"dp-{gpus}-{len(runs)}", gpus=gpus, strategy="data_parallel")
        start = events.start(0, world_size=1, cpus=[0, 1])
        events.write(run, 0, [start, *events.steady([100.0 * gpus] * 5)])
        runs.append(run)
    summary = summarize(runs, {})
    assert [run.gpus_per_node for run in summary.runs] == [1, 2, 2, 4]
    assert [run.speedup for run in summary.runs] == [None] * 4
    assert [run.cell.num_measured for run in summary.runs] == [1, 2, 2, 1]
    monkeypatch.setenv("HPCDIST_RUNS", str(tmp_path / "runs"))
    assert main(["runs", "--json"]) == 0
    listed = {run["run"]: run["gpus_per_node"] for run in json.loads(capsys.readouterr().out)}
    assert listed == {run.run: run.gpus_per_node for run in summary.runs}
    alone = summarize(runs[1:2], {})
    assert conclusion(alone.runs, alone.groups).endswith(
        "It had no GPU: this says nothing about the speed with 2 GPUs."
    )


@pytest.mark.parametrize(
    ("gpus", "cpus", "said"),
    [
        (4, lambda rank: [rank // 2], " Its 4 ranks had to share 2 CPUs."),
        (
            2,
            lambda rank: [rank],
            " There is no GPU here: it ran on 2 CPUs, and the baseline on 2 CPUs.",
        ),
    ],
    ids=["ranks share CPUs", "one rank had all of them"],
)
def test_ranks_on_the_same_cpus_are_called_no_more_hardware(add, gpus, cpus, said):
    one = add(100.0, device="cpu", cpus=lambda _: [0, 1])
    summary = summarize([one, add(190.0, device="cpu", gpus=gpus, cpus=cpus)], {})
    assert [run.num_cpus for run in summary.runs] == [2, 2]
    assert conclusion(summary.runs, summary.groups).endswith(said)


@pytest.mark.parametrize(
    ("rates", "differs"),
    [((180.0, 182.0, 184.0), True), ((103.0, 105.0, 101.0), False)],
    ids=["apart", "overlapping"],
)
def test_sizes_are_not_distinguishable_where_the_interval_of_their_ratio_holds_1(
    add, rates, differs
):
    made = [add(rate) for rate in (98.0, 100.0, 102.0)]
    made += [add(rate, gpus=2) for rate in rates]
    found = [run.cell.differs_from_baseline for run in summarize(made, {}).runs]
    assert found == [None] * 3 + [differs] * 3
    said, table = printed(made).split("\n\n", 1)
    assert re.search(r"1 x 1 +3 +100 ± 5 +100 +1 \* +100 +-", table)
    assert ("faster than 1 (1 x 1) is not certain" in said.replace("\n", " ")) is not differs
    assert re.search(rf"1 x 2 +3 .* {'yes' if differs else 'no'}$", table, re.MULTILINE)


def test_scripts_are_told_apart_by_the_samples_that_they_recorded(add):
    for job, each in (("strong", {1: 240, 2: 120}), ("weak", {1: 120, 2: 120})):
        runs = [add(100.0 * gpus, gpus=gpus, job=job, samples=each[gpus]) for gpus in (1, 2)]
        for run in runs:
            spec = files.read_json(run.spec_file)
            spec["job"].pop("train")
            files.write_json(run.spec_file, spec)
        (group,) = summarize(runs, {}).groups
        assert group.cells[-1].scaling == job
