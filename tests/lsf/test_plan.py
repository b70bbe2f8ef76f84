"""`hpcdist plan` on an LSF site: what is free, the queue's limit, and the site's reservations."""

import json
import time

import pytest

SCRIPT = ("train.py", "--scheduler", "lsf", "--set", "resources.cpus_per_gpu=4")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--nodes", 4), "what it asks for is free now"),
        (("--nodes", 5), "not enough is free now"),
        (("--partition", "short", "--time", "2:00:00"), "short allows --time 1:00:00 at most"),
    ],
    ids=["free", "too many", "too long"],
)
def test_a_plan_says_what_is_free_and_what_the_queue_allows(user, options, said):
    user.write("train.py", "print('trained')\n")
    done = user("plan", *SCRIPT, *options)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout.splitlines()[1]
    assert "not known before its first run" in done.stdout


def test_a_plan_names_the_sites_own_reservation(user):
    user.write("train.py", "print('trained')\n")
    window = time.strftime("%m/%d/%H/%M", time.localtime(time.time() + 2 * 3600))
    brsvs = user.cluster.folder / "bin" / "brsvs"
    brsvs.write_text(
        f"#!/bin/sh\necho 'system#0  sys  system  0/8  hostA:0/8  {window}-{window}'\n"
    )
    brsvs.chmod(0o755)
    for limit, is_reached in (("1:00:00", False), ("3:00:00", True)):
        found = json.loads(user("plan", *SCRIPT, "--time", limit, "--json").stdout)
        assert (found["start"]["maintenance_s"] is not None) == is_reached
