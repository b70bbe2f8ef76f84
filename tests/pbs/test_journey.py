"""What is special to PBS: its queues and server, and sweeps on it and on this machine at once."""

import json
import os
import shutil
from pathlib import Path

import pytest
from counting import COUNT
from pbs_cluster import REAL


def test_detect_writes_a_profile(user):
    text = user("cluster", "detect").stdout
    assert "scheduler: pbs" in text


def refused(user, *words):
    """What is said where a submission is refused as wrong input."""
    user.write("count.py", COUNT)
    done = user("submit", "count.py", *(words if "--sweep" in words else (*user.options, *words)))
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_doctor_examines_the_server(user):
    found = json.loads(user("doctor", "--scheduler", "pbs", "--no-job", "--json").stdout)
    states = {finding["name"]: finding["state"] for finding in found}
    assert states["controller"] == "pass"


@pytest.mark.skipif(bool(REAL), reason="only the stand-in loses a command")
def test_doctor_does_not_advise_a_key_of_lsf_where_pbs_tmrsh_is_missing(user):
    Path(shutil.which("pbs_tmrsh")).unlink()
    words = ("--scheduler", "pbs", "--nodes", "2", "--set", "launch.join_timeout_s=20")
    done = user("doctor", *words, "--set", "launch.device=cpu", "--json")
    (found,) = (one for one in json.loads(done.stdout) if one["name"] == "launcher")
    assert "pbs_tmrsh {host} {command} cannot be run" in found["detail"]
    assert "PATH" in found["advice"]
    assert "lsf" not in found["advice"]


@pytest.mark.skipif(bool(REAL), reason="only the stand-in falls silent")
def test_cancel_ends_the_known_job_though_qstat_says_nothing(user):
    user.write("count.py", COUNT)
    run = user.submit("count.py", "--set", "launch.device=cpu")
    silent = Path(os.environ["PBS_SITE"], "silent")
    silent.touch()
    done = user("cancel", run.id)
    silent.unlink()
    assert done.returncode == 3
    assert f"PBS was told to end {run.read_job_id()}; whether anything is left" in done.stderr
    user.cluster.wait_for_end(run.read_job_id())
    assert json.loads(user("status", run.id, "--json").stdout)[0]["state"] == "cancelled"


@pytest.mark.skipif(bool(REAL), reason="the stand-in has two nodes with four CPUs")
@pytest.mark.parametrize(
    ("nodes", "said"), [(2, "what it asks for is free now"), (3, "not enough is free now")]
)
def test_a_plan_says_what_is_free(user, nodes, said):
    user.write("count.py", COUNT)
    words = ("--nodes", str(nodes), "--set", "resources.cpus_per_gpu=4")
    done = user("plan", "count.py", *user.options, *words)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
