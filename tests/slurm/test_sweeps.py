"""Sweeps, dependencies and the summary after, on a real cluster."""

import json
import os
import re
import shutil
import signal

import pytest
from cluster_user import CPU, User, job_id, log

from hpcdist.runs.run import Sweep

SAYS = """
import os, sys, time
from pathlib import Path
word = sys.argv[1]
print("says", word, os.environ["WORLD_SIZE"], os.environ.get("SLURM_ARRAY_JOB_ID"), flush=True)
if word.startswith("wait"):
    while not Path("gate").exists():
        time.sleep(0.05)
if word.endswith("fail"):
    sys.exit(3)
"""
COUNTS = """
import os, time
from pathlib import Path
mine = Path("now", f"{os.environ['SLURM_JOB_ID']}-{os.environ['RANK']}")
if os.environ["RANK"] == "0":
    mine.touch()
    time.sleep(0.5)
    print("at once", len(os.listdir("now")), flush=True)
    mine.unlink()
"""


@pytest.fixture
def user(slurm, tmp_path):
    user = User(slurm, tmp_path)
    user.write("says.py", SAYS)
    return user


def ended(user, sweep):
    """The runs of a sweep, once all have verdicts and Slurm has let go of them."""
    for run in sweep.runs():
        user.verdict(run)
        user.cluster.wait_for_end(job_id(run))
    return sweep.runs()


def test_max_parallel_holds_over_all_shapes(user):
    user.write("counts.py", COUNTS)
    (user.folder / "now").mkdir()
    # Without a limit, all four would fit the cluster at once.
    words = ("--sweep", "nodes=1,2", "--repeat", "2", "--max-parallel", "2")
    sweep = user.submit_sweep("counts.py", *CPU, *words)
    assert max(int(log(run).split()[-1]) for run in ended(user, sweep)) <= 2


def test_a_later_refusal_says_what_was_submitted_and_leaves_no_half_made_runs(user):
    before, calls, folder = user.cluster.environment, user.folder / "calls", user.folder / "bin"
    folder.mkdir()
    (folder / "sbatch").write_text(
        f'#!/bin/bash\n[ "$1" = --version ] || echo "$*" >> {calls}\n'
        f"if [ $(wc -l < {calls}) -ge 2 ]; then\n"
        "  echo 'sbatch: error: AssocMaxSubmitJobLimit' >&2; exit 1\nfi\n"
        f'exec {shutil.which("sbatch", path=before["PATH"])} "$@"\n'
    )
    (folder / "sbatch").chmod(0o755)
    calls.touch()
    environment = before | {"PATH": f"{folder}{os.pathsep}{before['PATH']}"}
    words = ("--sweep", "nodes=1,2 args=[a],[b]")
    refused = user("submit", "says.py", *CPU, *words, env=environment)
    assert refused.returncode == 3
    assert "2 of the 4 runs of sweep" in refused.stderr
    assert "AssocMaxSubmitJobLimit" in refused.stderr
    (file,) = (user.folder / "runs").glob("*/sweep.json")
    sweep = Sweep(file.parent)
    assert f"hpcdist cancel {sweep.id}" in refused.stderr
    assert [run.spec.outline.resources.nodes for run in ended(user, sweep)] == [1, 1]


def test_a_sweep_goes_on_whatever_becomes_of_its_submission_and_cancel_ends_all_of_it(user):
    words = ("--sweep", "args=[wait]", "--repeat", "4", "--wait")
    process = user.start("submit", "says.py", *CPU, *words)
    sweep = Sweep(user.folder / "runs" / process.stdout.readline().strip())
    for run in sweep.runs():
        user.wait_for_line(run, "says wait")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=150)
    assert process.returncode == 130
    assert f"sweep {sweep.id} continues" in said

    for run in sweep.runs():
        run.submission_file.unlink()  # as if it had been killed right after sbatch
    assert user("status", sweep.id).stdout.startswith(f"{sweep.id}: 4 runs, 4 running\n")
    assert user("cancel", sweep.id).stderr.count(": cancelled") == 4
    assert [run.read_verdict().state for run in sweep.runs()] == ["cancelled"] * 4
    assert not user.cluster.queue()


STEPS = """
import time
from hpcdist import record
while True:
    record.step(samples=1)
    time.sleep(0.01)
"""


def test_a_part_that_is_suspended_rests_and_all_parts_are_cancelled(user):
    user.write("steps.py", STEPS)
    sweep = user.submit_sweep("steps.py", *CPU, "--repeat", "3", "--max-parallel", "1")
    works, *_ = sweep.runs()

    def progress(figure):
        return (user.status(works)["progress"] or {}).get(figure)

    user.cluster.wait_for(lambda: progress("samples_per_s"))
    user.cluster.run("scontrol", "suspend", job_id(works))
    said = user("status", works.id).stdout
    assert (f"{works.id}: running" in said, "Slurm has suspended it" in said) == (True, True)
    assert (progress("samples_per_s"), progress("step") > 0) == (None, 1)
    user.cluster.run("scontrol", "resume", job_id(works))
    assert user("cancel", sweep.id).returncode == 0


def test_a_run_after_a_sweep_waits_for_all_of_it_that_has_not_ended(user):
    sweep = user.submit_sweep("says.py", *CPU, "--sweep", "args=[a],[wait],[wait-and-fail]")
    done, waits, fails = sweep.runs()
    user.done(done)
    for run in (waits, fails):
        user.wait_for_line(run, "says wait")
    waits_for_all = user.submit("says.py", *CPU, "--after", sweep.id, "--", "a")
    goes_anyway = user.submit("says.py", *CPU, "--after", f"any:{sweep.id}", "--", "b")
    named = re.search(r"--dependency=(\S+)", waits_for_all.script_file.read_text())[1]
    assert named == f"afterok:{job_id(waits)}:{job_id(fails)}"
    refused = user("submit", "says.py", "--local", "--after", waits.id, "--", "b")
    assert refused.returncode == 2
    assert "is active on slurm, and the new run is for local" in refused.stderr
    user.write("gate", "")
    user.cluster.wait_for_state(job_id(waits_for_all), "CANCELLED")
    assert "did not end as --after requires" in user("status", waits_for_all.id).stdout
    user.done(goes_anyway)
    ended(user, sweep)
    (status, *_) = json.loads(user("status", sweep.id, "--json").stdout)
    assert (status["run"], status["state"]) == (done.id, "done")
