"""`hpcdist plan` on a real Slurm: a busy cluster, and a maintenance."""

import json
import re

import pytest
from cluster_user import CPU

JOB = ("train.py", "--nodes", 4, *CPU)
IN_HALF_AN_HOUR = r"\w+ \d\d:\d\d, in 0:(29|30|31):\d\d, at the latest, as things stand"


@pytest.fixture(autouse=True)
def script(user):
    user.write("train.py", "import time\ntime.sleep(600)\n")


def plan(user, *options, text=False):
    done = user("plan", *JOB, *options, *([] if text else ["--json"]))
    assert done.returncode == 0, done.stderr
    return done.stdout if text else json.loads(done.stdout)


def test_a_plan_names_smaller_requests_that_start_sooner(user):
    limit = ("--time", "0:40:00")
    idle = plan(user, *limit)
    assert idle["planned"]["wait_s"] < 30
    assert idle["start"]["sooner"] == {}
    # Two of four nodes are held for half an hour: four are free then, at the latest.
    held = user.cluster.submit("sleep 900", "--nodes=2", "--time=30", "--exclusive")
    user.cluster.wait_for_state(held, "RUNNING")
    busy = plan(user, *limit)
    assert busy["planned"]["wait_s"] == pytest.approx(1800, abs=120)
    sooner = {name: at_s - busy["asked_s"] for name, at_s in busy["start"]["sooner"].items()}
    assert sooner == {"--nodes 2": pytest.approx(0, abs=60)}
    said = plan(user, *limit, text=True)
    assert re.search(rf"^start +{IN_HALF_AN_HOUR}$", said, re.MULTILINE)
    assert re.search(r"^ +--nodes 2 +at once$", said, re.MULTILINE)
    # A submission says as much where Slurm answers in time, and its spec.json keeps it.
    note = re.compile(f"note: start: {IN_HALF_AN_HOUR}")
    submissions = (user("submit", *JOB, *limit) for _ in range(3))
    assert any(note.search(done.stderr) for done in submissions)
    assert user.runs()[0].spec.planned.wait_s == pytest.approx(1800, abs=180)
    user.cluster.run("scancel", "--me")


def test_another_partition_that_starts_sooner_is_named(user):
    # Where the time limit is too long: sbatch --test-only accepts that.
    where = ("PartitionName=brief", "Nodes=ALL", "MaxTime=20", "PriorityTier=10")
    user.cluster.run("scontrol", "create", *where)
    places = {"main": "slurm", "high": "slurm", "brief": "slurm", "elsewhere": "lsf"}
    clusters = "".join(
        f"  {name}: {{scheduler: {scheduler}, partition: {name}}}\n"
        for name, scheduler in places.items()
    )
    user.write("hpcdist.yaml", f"default: main\nclusters:\n{clusters}")
    # What the partition high takes from it, main waits for.
    held = user.cluster.submit("sleep 900", "--nodes=4", "--time=30", "-plow", "--exclusive")
    user.cluster.wait_for_state(held, "RUNNING")
    found = plan(user, "--time", "0:40:00")
    user.cluster.run("scancel", "--me")
    sooner = {name: at_s - found["asked_s"] for name, at_s in found["start"]["sooner"].items()}
    assert sooner == {"--cluster high": pytest.approx(0, abs=60)}


def test_a_time_limit_that_reaches_into_a_maintenance_is_shortened(user):
    reserved = "scontrol create reservation ReservationName=maintenance StartTime=now+330minutes"
    words = "Duration=120 Nodes=ALL Users=root Flags=MAINT,IGNORE_JOBS"
    user.cluster.run(*reserved.split(), *words.split())
    try:
        found = plan(user, "--time", "6:00:00")["start"]
        said = plan(user, "--time", "6:00:00", text=True)
    finally:
        user.cluster.run("scontrol", "delete", "ReservationName=maintenance")
    assert found["start"]["time_s"] - found["maintenance_s"] == pytest.approx(7200, abs=60)
    assert found["longest_min"] == 5 * 60
    shorter = r"^ +--time 5:00:00 or less starts before the maintenance on "
    assert re.search(shorter, said, re.MULTILINE)
