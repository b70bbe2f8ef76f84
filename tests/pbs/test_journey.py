"""What is special to PBS: its server and its launcher, as the doctor sees them, and plans."""

import json
import shutil
from pathlib import Path

import pytest
from cluster_user import User
from counting import COUNT
from pbs_cluster import REAL


@pytest.fixture
def user(pbs, pbs_folder):
    return User(pbs, pbs_folder, options=("--scheduler", "pbs"))


def test_detect_writes_a_profile_and_the_doctor_examines_the_server(user):
    assert "scheduler: pbs" in user("cluster", "detect").stdout
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


@pytest.mark.skipif(bool(REAL), reason="the stand-in has two nodes with four CPUs")
@pytest.mark.parametrize(
    ("nodes", "said"), [(2, "what it asks for is free now"), (3, "not enough is free now")]
)
def test_a_plan_says_what_is_free(user, nodes, said):
    words = ("--nodes", str(nodes), "--set", "resources.cpus_per_gpu=4")
    done = user("plan", user.write("count.py", COUNT), *user.options, *words)
    assert said in done.stdout
