"""Sweeps as arrays, runs that wait for others, and the summary after, on a simulated LSF."""

import re

import pytest
from cluster_user import CPU, job_id
from counting import COUNT, await_counting, end_counting

from hpcdist.runs.run import Sweep

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
