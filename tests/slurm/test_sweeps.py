"""Sweeps, dependencies and the summary after, on a real cluster."""

import json
import os
import re
import shutil
import signal

import pytest
from cluster_user import User, job_id, log

from hpcdist.runs.run import Sweep

CPU = ("--set", "launch.device=cpu")

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


@pytest.fixture
def sbatch_calls(user, tmp_path):
    """Environment in which sbatch notes its calls, and fails from one of them on."""
    folder = tmp_path / "bin"
    folder.mkdir()
    calls = tmp_path / "calls"
    real = shutil.which("sbatch", path=user.cluster.environment["PATH"])

    def environment(fails_from=1000):
        (folder / "sbatch").write_text(
            f'#!/bin/bash\n[ "$1" = --version ] || echo "$*" >> {calls}\n'
            f"if [ $(wc -l < {calls}) -ge {fails_from} ]; then\n"
            "  echo 'sbatch: error: AssocMaxSubmitJobLimit' >&2; exit 1\nfi\n"
            f'exec {real} "$@"\n'
        )
        (folder / "sbatch").chmod(0o755)
        calls.touch()
        before = user.cluster.environment
        return before | {"PATH": f"{folder}{os.pathsep}{before['PATH']}"}

    environment.made = lambda: calls.read_text().splitlines()
    return environment


def submit_sweep(user, *arguments, **options):
    done = user("submit", "says.py", *CPU, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return Sweep(user.folder / "runs" / done.stdout.splitlines()[0])


def ended(user, sweep):
    """The runs of a sweep, once all have verdicts and Slurm has let go of them."""
    runs = sweep.runs()
    for run in runs:
        user.verdict(run)
        user.cluster.wait_for_end(job_id(run))
    return runs


def test_max_parallel_holds_over_all_shapes(user):
    user.write("says.py", COUNTS)
    (user.folder / "now").mkdir()
    # Without a limit, all four would fit the cluster at once.
    options = ("--sweep", "nodes=1,2", "--repeat", "2")
    sweep = submit_sweep(user, *options, "--max-parallel", "2")
    counts = [int(log(run).split()[-1]) for run in ended(user, sweep)]
    assert max(counts) <= 2


def test_a_later_refusal_says_what_was_submitted_and_leaves_no_half_made_runs(user, sbatch_calls):
    options = ("--sweep", "nodes=1,2 args=[a],[b]")
    refused = user("submit", "says.py", *CPU, *options, env=sbatch_calls(fails_from=2))
    assert refused.returncode == 3
    assert "2 of the 4 runs of sweep" in refused.stderr
    assert "AssocMaxSubmitJobLimit" in refused.stderr
    (file,) = (user.folder / "runs").glob("*/sweep.json")
    sweep = Sweep(file.parent)
    assert f"hpcdist cancel {sweep.id}" in refused.stderr
    assert [run.spec.outline.resources.nodes for run in ended(user, sweep)] == [1, 1]


def test_an_interruption_of_the_waiting_leaves_the_sweep_and_cancel_ends_all_of_it(user):
    process = user.start(
        "submit", "says.py", *CPU, "--sweep", "args=[wait]", "--repeat=4", "--wait"
    )
    sweep = Sweep(user.folder / "runs" / process.stdout.readline().strip())
    for run in sweep.runs():
        user.wait_for_line(run, "says wait")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=150)
    assert process.returncode == 130
    assert f"sweep {sweep.id} continues" in said

    status = user("status", sweep.id).stdout
    assert status.startswith(f"{sweep.id}: 4 runs, 4 running\n")
    assert user("cancel", sweep.id).stderr.count(": cancelled") == 4
    assert [run.read_verdict().state for run in sweep.runs()] == ["cancelled"] * 4


STEPS = """
import time
from hpcdist import record
while True:
    record.step(samples=1)
    time.sleep(0.01)
"""


def test_a_part_that_is_suspended_rests_and_all_parts_are_cancelled(user):
    user.write("steps.py", STEPS)
    done = user("submit", "steps.py", *CPU, "--repeat", "3", "--max-parallel", "1")
    assert done.returncode == 0, done.stderr
    sweep = Sweep(user.folder / "runs" / done.stdout.splitlines()[0])
    works, *_ = sweep.runs()
    user.cluster.wait_for(lambda: progress(user, works, "samples_per_s"))
    user.cluster.run("scontrol", "suspend", job_id(works))
    said = user("status", works.id).stdout
    assert (f"{works.id}: running" in said, "Slurm has suspended it" in said) == (True, True)
    assert (progress(user, works, "samples_per_s"), progress(user, works, "step") > 0) == (None, 1)
    user.cluster.run("scontrol", "resume", job_id(works))
    assert user("cancel", sweep.id).returncode == 0


def progress(user, run, figure):
    """A figure of `hpcdist status --json`; None before there is one."""
    return (user.status(run)["progress"] or {}).get(figure)


def test_a_run_after_a_sweep_waits_for_all_of_it(user):
    sweep = submit_sweep(user, "--sweep", "args=[wait],[wait-and-fail]")
    waits_for_all = user.submit("says.py", *CPU, "--after", sweep.id, "--", "a")
    goes_anyway = user.submit("says.py", *CPU, "--after", f"any:{sweep.id}", "--", "b")
    user.write("gate", "")  # Slurm decides about an array when all of it has ended
    user.cluster.wait_for_state(job_id(waits_for_all), "CANCELLED")
    assert "did not end as --after requires" in user("status", waits_for_all.id).stdout
    user.done(goes_anyway)
    ended(user, sweep)


def test_after_a_sweep_of_which_a_part_has_ended_only_the_rest_is_named(user):
    sweep = submit_sweep(user, "--sweep", "args=[a],[wait]")
    done, waits = sweep.runs()
    user.done(done)
    user.wait_for_line(waits, "says wait")
    after = user.submit("says.py", *CPU, "--after", sweep.id, "--", "b")
    script = after.script_file.read_text()
    assert re.search(r"--dependency=(\S+)", script)[1] == f"afterok:{job_id(waits)}"
    user.write("gate", "")
    user.done(after)


def test_a_run_here_does_not_wait_for_one_on_the_cluster(user):
    run = user.submit("says.py", *CPU, "--", "wait")
    refused = user("submit", "says.py", "--local", "--after", run.id, "--", "b")
    assert refused.returncode == 2
    assert "is active on slurm, and the new run is for local" in refused.stderr
    user("cancel", run.id)


def test_a_sweep_whose_submission_was_killed_is_found_by_its_jobs(user):
    sweep = submit_sweep(user, "--sweep", "args=[wait]", "--repeat", "2")
    runs = sweep.runs()
    for run in runs:
        user.wait_for_line(run, "says wait")
        run.submission_file.unlink()  # as if it had been killed right after sbatch
    described = json.loads(user("status", sweep.id, "--json").stdout)
    assert [run["state"] for run in described] == ["running", "running"]
    user("cancel", sweep.id)
    assert not user.cluster.queue()
