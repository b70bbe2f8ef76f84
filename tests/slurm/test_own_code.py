"""Functions from Python and comparisons, on a real cluster."""

import json
import subprocess
import sys

import pytest
from cluster_user import User, log

HELPER = """
import os
def place(word):
    return word, int(os.environ["RANK"]), os.environ["SLURMD_NODENAME"]
"""
MAIN = """
import json, pathlib, sys
import helper
import hpcdist

cpu = {"launch.device": "cpu"}
run = hpcdist.submit(helper.place, ("as submitted",), nodes=2, scheduler="slurm", set=cpu)
pathlib.Path(helper.__file__).write_text("raise SystemExit('the file as it is now')")
print(json.dumps({"results": run.results(timeout_s=90), "path": str(run.path)}))
"""
MODULE = """
import os, sys
from .words import WORD
print(WORD, os.environ["RANK"], sys.argv[1:])
"""
ON_TWO_NODES = ("--nodes", "2", "--set", "launch.device=cpu")
LOOP = """
import sys, time
from hpcdist import record
sys.modules["mpi4py"] = sys  # as if the ranks exchanged data
record.start()
for step in range(30):
    time.sleep(0.004)
    record.step(samples=int(sys.argv[1]))
"""
COMPARE = """
resources: {gpus: 2}
set: {record.window_s: 0.02, launch.device: cpu}
compare:
  one: {job: ../loop.py, set: {args: ['8'], resources.gpus: 1}}
  two: {job: ../loop.py, set: {args: ['8']}}
"""


@pytest.fixture
def user(slurm, tmp_path):
    return User(slurm, tmp_path)


def test_a_function_runs_on_its_nodes_from_the_code_as_it_was_submitted(user, tmp_path):
    user.write("helper.py", HELPER)
    user.write("main.py", MAIN)
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    done = user.cluster.run(sys.executable, "main.py", cwd=tmp_path, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["results"] == [
        ["as submitted", 0, "127.0.1.1"],
        ["as submitted", 1, "127.0.1.2"],
    ]
    spec = json.loads((tmp_path / "runs" / answer["path"] / "spec.json").read_text())
    assert spec["job"]["python_path"][0].startswith(spec["snapshot"]["folder"])
    user.cluster.wait_for_end(spec_job(tmp_path, answer["path"]))


def test_a_module_runs_on_its_nodes_from_the_code_as_it_was_submitted(user, tmp_path):
    package = tmp_path / "pkg"
    package.mkdir()
    user.write("pkg/words.py", "WORD = 'as submitted'")
    user.write("pkg/main.py", MODULE)
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    run = user.submit("-m", "pkg.main", "--scheduler=slurm", *ON_TWO_NODES, "--", "--lr", "0.1")
    user.write("pkg/words.py", "raise SystemExit('the file as it is now')")
    user.done(run)
    for rank in range(2):
        assert f"as submitted {rank} ['--lr', '0.1']" in log(run, rank)


def spec_job(tmp_path, path):
    return json.loads((tmp_path / path / "submission.json").read_text())["job_id"]


def test_the_variants_of_a_comparison_are_arrays_and_are_compared_at_the_end(user, tmp_path):
    user.write("loop.py", LOOP)
    (tmp_path / "jobs").mkdir()
    user.write("jobs/two.yaml", COMPARE)
    done = user("submit", "two", "--scheduler=slurm", "--no-snapshot", "--repeat=2", "--wait")
    assert done.returncode == 0, done.stderr
    name, *lines = done.stdout.splitlines()
    assert "4 runs submitted to slurm, as 2 jobs" in done.stderr
    assert any("two: " in line and "times as fast as one on 2 ranks" in line for line in lines)
    assert (tmp_path / "runs" / name / "compare.png").exists()
    for job in json.loads((tmp_path / "runs" / name / "sweep.json").read_text())["jobs"]:
        user.cluster.wait_for_end(job["job_id"])


STEPS = """
import time
import torch
from hpcdist import record

record.start()
print("here", flush=True)
while True:
    torch.ones(100).sum()
    record.step(samples=1)
    time.sleep(0.01)
"""


def test_a_living_job_shows_where_its_ranks_are_is_profiled_and_entered(user, tmp_path):
    user.write("steps.py", STEPS)
    run = user.submit("steps.py", *ON_TWO_NODES)
    user.wait_for_line(run, "here", rank=1)
    where = json.loads(user("stacks", run.id, "--json").stdout)
    assert [(one["node"], one["of"]["rank"]) for one in where["ranks"]] == [(0, 0), (1, 1)]
    profiled = user("profile", run.id, "--steps", "3")
    assert profiled.returncode == 0, profiled.stderr
    assert "aten::sum" in profiled.stdout
    assert len(list((run.path / "traces").iterdir())) == 2
    show = "echo $RANK $WORLD_SIZE $SLURM_JOB_ID $SLURMD_NODENAME $PWD; exit 7"
    done = user("attach", run.id, "--rank", "1", "--", "sh", "-c", show)
    assert done.returncode == 7, done.stderr
    assert done.stdout.split()[:3] == ["1", "2", run.read_job_id()]
    assert done.stdout.split()[4] == str(tmp_path)
    assert f"on {done.stdout.split()[3]}, its log" in done.stderr
    user("cancel", run.id)
