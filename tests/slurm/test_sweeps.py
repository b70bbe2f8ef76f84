"""Sweeps, and runs that wait for others, on a real cluster."""

import re
import signal

import pytest
from cluster_user import CPU, User, job_id

from hpcdist.runs.run import Sweep

SAYS = """
import os, sys, time
from pathlib import Path
word = sys.argv[1]
print("says", word, flush=True)
while word.startswith("wait") and not Path("gate").exists():
    time.sleep(0.05)
sys.exit(3 if word.endswith("fail") else 0)
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


def test_a_later_refusal_says_what_was_submitted_and_leaves_no_half_made_runs(user):
    """And a sweep of several jobs has its --max-parallel by the second's dependency."""
    calls = user.folder / "calls"
    refuse = (
        f'touch {calls}; [ "$1" = --version ] || echo "$*" >> {calls}\n'
        f"[ $(wc -l < {calls}) -lt 2 ] || "
        "{ echo 'sbatch: error: AssocMaxSubmitJobLimit' >&2; exit 1; }\n"
    )
    words = ("says.py", *CPU, "--sweep", "nodes=1,2 args=[a],[b]")
    with user.cluster.replacing("sbatch", f'{refuse}exec {{}} "$@"'):
        refused = user("submit", *words)
    assert refused.returncode == 3
    assert "2 of the 4 runs of sweep" in refused.stderr
    assert "AssocMaxSubmitJobLimit" in refused.stderr
    (file,) = (user.folder / "runs").glob("*/sweep.json")
    sweep = Sweep(file.parent)
    assert f"hpcdist cancel {sweep.id}" in refused.stderr
    assert [run.spec.outline.resources.nodes for run in ended(user, sweep)] == [1, 1]
    rendered = user("render", *words, "--max-parallel", "1").stdout
    assert re.findall("--array=.*", rendered) == ["--array=0-1%1"] * 2
    assert re.search("--dependency=afterany:JOBID-of-", rendered)


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
    user.write("gate", "")
    user.cluster.wait_for_state(job_id(waits_for_all), "CANCELLED")
    assert "did not end as --after requires" in user("status", waits_for_all.id).stdout
    user.done(goes_anyway)
    ended(user, sweep)
