"""Sweeps as arrays, runs that wait for others, and the summary after, on a simulated LSF."""

import json
import re

import pytest
from cluster_user import job_id, log
from counting import COUNT, await_counting, end_counting
from trainings import CPU

from hpcdist.runs.sweep import Sweep

SAYS = """
import os, sys, time
from pathlib import Path
word = sys.argv[1]
print("says", word, os.environ["WORLD_SIZE"], os.environ["LSB_JOBINDEX"], flush=True)
if word == "fail":
    sys.exit(3)
while word == "wait" and not Path("gate").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def user(user):
    user.write("says.py", SAYS)
    return user


def submit_sweep(user, script, *arguments):
    done = user("submit", script, *CPU, *arguments)
    assert done.returncode == 0, done.stderr
    return Sweep(user.folder / "runs" / done.stdout.splitlines()[0])


def test_a_sweep_of_a_module_is_an_array_per_shape_and_its_worst_end_counts(user):
    # `user.write` has made says.py, a module of the folder that is submitted from.
    options = ("--sweep", "nodes=1,2 args=[a],[fail]", "--summary-after", "--wait", "--json")
    done = user("submit", "-m", "says", "--no-snapshot", *CPU, *options)
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    sweep = Sweep(user.folder / "runs" / answer["sweep"])
    runs = sweep.runs()
    assert [run.read_verdict().state for run in runs] == ["done", "failed"] * 2
    assert [log(run).strip() for run in runs] == [
        f"says {word} {nodes} {index}"
        for nodes in (1, 2)
        for index, word in enumerate(("a", "fail"), 1)
    ]
    arrays = [job.job_id for job in sweep.read().jobs]
    ids = [job_id(run) for run in runs]
    assert ids == [f"{array}[{index}]" for array in arrays for index in (1, 2)]
    assert "2 done, 2 failed" in user("status", sweep.id).stdout
    for array in arrays:
        user.cluster.wait_for_end(array)
    assert user.cluster.wait_for_end(answer["summary_job_id"]) == "DONE"
    assert len(json.loads((sweep.path / "summary.json").read_text())) == 4


def test_one_element_is_requeued_and_another_cancelled_by_itself(user):
    user.write("count.py", COUNT)
    sweep = submit_sweep(user, "count.py", "--repeat", 3, "--max-parallel", 2)
    first, second, third = sweep.runs()
    site = user.cluster
    for run in (first, second):
        await_counting(user, run, num_ranks=1)
    pending = user.status(third)
    assert (pending["state"], "--max-parallel" in pending["reason"]) == ("pending", True)
    site.reach_limit(job_id(first))
    assert user("cancel", second.id).returncode == 0
    assert site.job_state(job_id(second)) == "EXIT"
    end_counting(user, first)
    user.done(third)
    assert [run.newest_attempt() for run in (second, third)] == [0, 0]


def test_an_element_that_may_not_be_requeued_goes_on_as_one_of_another_array(user):
    user.write("count.py", COUNT)
    _, run = submit_sweep(user, "count.py", "--repeat", 2).runs()
    former = job_id(run)
    await_counting(user, run, num_ranks=1)
    with user.cluster.refusing_requeues():
        user.cluster.reach_limit(former)
        await_counting(user, run, 1, num_ranks=1)
    assert job_id(run) != former
    assert re.fullmatch(r"\d+\[2\]", job_id(run))
    assert user.status(run)["state"] == "running"
    end_counting(user, run)


def test_a_run_waits_for_another_and_one_that_waits_in_vain_says_so(user):
    site = user.cluster
    first = user.submit("says.py", *CPU, "--", "wait")
    ok = user.submit("says.py", *CPU, "--after", first.id, "--", "b")
    failing = user.submit("says.py", *CPU, "--after", f"any:{first.id}", "--", "fail")
    never = user.submit("says.py", *CPU, "--after", failing.id, "--", "c")
    notok = user.submit("says.py", *CPU, "--after", f"notok:{failing.id}", "--", "d")
    assert "wait" in user.status(ok)["reason"]
    conditions = [site.job(job_id(run)).condition for run in (ok, failing, never, notok)]
    assert conditions == [
        f"done({job_id(first)})",
        f"ended({job_id(first)})",
        f"done({job_id(failing)})",
        f"exit({job_id(failing)})",
    ]
    user.write("gate", "")
    user.done(ok)
    user.done(notok)
    assert user.verdict(failing).state == "failed"
    site.wait_for_end(job_id(failing))
    assert "did not end as --after requires" in user("status", never.id).stdout
    assert user("cancel", never.id).returncode == 0

    refused = user("submit", "says.py", *CPU, "--after", failing.id, "--", "c")
    assert refused.returncode == 2
    assert f"run {failing.id} is failed" in refused.stderr


ORPHANS_END = """
clusters:
  lab:
    scheduler: lsf
    lsf: {options: [-J, -n, -R, -o, -w, -ti]}
"""


def test_where_the_profile_allows_it_lsf_ends_what_could_never_start(user):
    user.write("hpcdist.yaml", ORPHANS_END)
    first = user.submit("says.py", *CPU, "--", "wait")
    never = user.submit("says.py", *CPU, "--after", f"notok:{first.id}", "--", "a")
    user.write("gate", "")
    user.done(first)
    assert user.cluster.wait_for_end(job_id(never)) == "EXIT"
    found = user.status(never)
    assert found["state"] == "cancelled", found
    assert "--after" in found["reason"]
