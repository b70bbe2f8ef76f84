"""Sweeps as arrays, and runs that wait for others, on a simulated LSF."""

import pytest
from cluster_user import CPU, job_id

SAYS = """
import os, sys, time
from pathlib import Path
word = sys.argv[1]
print("says", word, os.environ["WORLD_SIZE"], os.environ["LSB_JOBINDEX"], flush=True)
while word.startswith("wait") and not Path("gate").exists():
    time.sleep(0.05)
if word.endswith("fail"):
    sys.exit(3)
"""


@pytest.fixture
def user(user):
    user.write("says.py", SAYS)
    return user


ORPHANS_END = """
clusters:
  lab:
    scheduler: lsf
    lsf: {options: [-J, -n, -R, -o, -w, -ti]}
"""


def test_where_the_profile_allows_it_lsf_ends_what_could_never_start(user):
    user.write("hpcdist.yaml", ORPHANS_END)
    first = user.submit("says.py", *CPU, "--", "wait-and-fail")
    never = user.submit("says.py", *CPU, "--after", first.id, "--", "a")
    user.write("gate", "")
    assert user.verdict(first).state == "failed"
    assert user.cluster.wait_for_end(job_id(never)) == "EXIT"
    found = user.status(never)
    assert found["state"] == "cancelled", found
    assert "--after" in found["reason"]
