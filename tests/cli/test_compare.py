"""Comparisons: several jobs put to one question by one command."""

import json
import re

import pytest

LOOP = """
import sys, time
from hpcdist import record
sys.modules["mpi4py"] = sys  # as if the ranks exchanged data
record.start()
for step in range(40):
    time.sleep(float(sys.argv[1]))
    record.mark(sys.argv[2])
    record.step(samples=8)
"""
COMPARE = """
description: One rank against two that wait for data
repeat: 2
resources: {gpus: 2}
set: {record.window_s: 0.02}
compare:
  one:
    job: loop.py
    set: {args: ['0.002', forward_backward], resources.gpus: 1}
  two:
    job: loop.py
    set: {args: ['0.006', data_wait]}
"""


@pytest.fixture
def folder(hpcdist):
    hpcdist.write("jobs/loop.py", LOOP)
    hpcdist.write("jobs/slow.yaml", COMPARE)
    return hpcdist


def test_the_variants_are_run_in_turn_and_compared(folder):
    done = folder("submit", "slow", "--local")
    assert done.returncode == 0, done.stderr
    assert not [word for word in ("\x1b", "samples/s") if word in done.stderr]  # no progress
    name = done.stdout.split()[0]
    assert name.startswith("slow-")
    order = [line.partition(": ")[2] for line in done.stderr.splitlines() if " of 4)" in line]
    assert order == ["one repeat=0", "two repeat=0", "one repeat=1", "two repeat=1"]
    assert f"comparison {name}" in done.stdout
    assert "waiting for data" in " ".join(done.stdout.split())
    sweep = folder.folder / "runs" / name
    one, two = (run["cell"] for run in json.loads((sweep / "summary.json").read_text())[:2])
    assert (one["name"], one["gpus_per_node"], two["gpus_per_node"]) == ("one", 1, 2)
    assert two["shares"]["data"] > 0.2
    assert (sweep / "summary.txt").read_text() in done.stdout

    runs = json.loads(folder("summary", name, "--json").stdout)
    assert [run["variant"] for run in runs] == ["one", "two"] * 2
    assert folder("runs").stdout.splitlines()[1].endswith("slow, comparison of 4 runs")


def test_a_comparison_is_listed_and_rendered_as_its_runs(folder):
    folder.write("jobs/broken.yaml", "compare: {a: {job: nope}, b: {job: ddp}}")
    listed = {job["name"]: job for job in json.loads(folder("jobs", "--json").stdout)}
    assert listed["slow"]["workload"] == "compare"
    assert listed["slow"]["description"] == "One rank against two that wait for data"
    assert listed["compare"]["error"] is None
    assert "no job called 'nope'" in listed["broken"]["error"]
    rendered = folder("render", "slow", "--scheduler", "slurm", "--repeat", "3", "--gpus", "3")
    assert rendered.stdout.count("#SBATCH --array=0-2") == 2
    sizes = re.findall(r"^#SBATCH --gpus-per-node=(\d)", rendered.stdout, re.MULTILINE)
    assert sizes == ["1", "3"]  # a flag holds for variants without a size of their own
    assert folder.runs == []


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (COMPARE, ["--sweep", "gpus=1,2"], "slow compares jobs already: submit it without --sweep"),
        ("compare: {a: {job: ddp}}", [], "compare has 1 variants, must be 2 or more"),
        ("compare: {a: {job: ddp}, b: ddp}", [], 'compare.b is "ddp", must be a section'),
        (
            "compare: {a: {job: ddp}, b: {job: ddp, set: {train.lr: x}}}",
            [],
            'compare.b.set.train.lr="x": train.lr is "x", must be',
        ),
    ],
)
def test_a_mistake_in_a_comparison_is_named_and_nothing_is_run(folder, text, options, message):
    folder.write("jobs/slow.yaml", text)
    done = folder("submit", "slow", "--local", *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert folder.runs == []
