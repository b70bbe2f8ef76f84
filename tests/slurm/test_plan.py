"""`hpcdist plan` on a real Slurm: a busy partition, another one, and a maintenance."""

import json
import re

import pytest
from cluster_user import CPU, User

JOB = ("train.py", "--nodes", 4, *CPU)
# With the day, where that is another.
IN_HALF_AN_HOUR = r"(?:\w+ )?\d\d:\d\d, in (29|30|31) min, at the latest, as things stand"
PROFILES = """\
default: main
clusters:
  main: {{scheduler: slurm, partition: {main}, cpus_per_gpu: 4}}
  other: {{scheduler: slurm, partition: other, cpus_per_gpu: 4}}
"""


@pytest.fixture
def user(slurm, tmp_path):
    """Has a script, and two profiles; the second partition has two nodes, and takes an hour."""
    user = User(slurm, tmp_path)
    user.write("train.py", "import time\ntime.sleep(600)\n")
    main = slurm.run("sinfo", "--noheader", "--format=%R").stdout.split()[0]
    nodes = slurm.run("sinfo", "--noheader", "--Node", "--format=%N").stdout.split()
    user.write("hpcdist.yaml", PROFILES.format(main=main))
    wanted = f"Nodes={','.join(nodes[:2])}"
    slurm.run("scontrol", "create", "PartitionName=other", wanted, "MaxTime=60", "State=UP")
    yield user
    slurm.run("scancel", "--me", "--full", check=False)
    slurm.run("scontrol", "delete", "ReservationName=maintenance", check=False)
    slurm.wait_for(lambda: not slurm.run("squeue", "--noheader").stdout.strip(), 60)
    slurm.run("scontrol", "delete", "PartitionName=other")


def plan(user, *options, text=False):
    done = user("plan", *options, *([] if text else ["--json"]))
    assert done.returncode == 0, done.stderr
    return done.stdout if text else json.loads(done.stdout)


def test_a_plan_names_smaller_requests_that_start_sooner_and_what_never_would(user):
    idle = plan(user, *JOB, "--time", "0:40:00")
    assert idle["planned"]["wait_s"] < 30
    assert idle["start"]["sooner"] == {}
    # Two of four nodes are held for half an hour: four are free then, at the latest.
    user.cluster.run(
        "sbatch", "--nodes=2", "--time=30", "--exclusive", "--output=/dev/null", "--wrap=sleep 900"
    )
    wait = ("squeue", "--noheader", "--states=RUNNING", "--format=%N")
    assert user.cluster.wait_for(lambda: bool(user.cluster.run(*wait).stdout.strip()), 30)
    busy = plan(user, *JOB, "--time", "0:40:00")
    assert busy["planned"]["wait_s"] == pytest.approx(1800, abs=120)
    sooner = {name: at_s - busy["asked_s"] for name, at_s in busy["start"]["sooner"].items()}
    assert sooner == {"--nodes 2": pytest.approx(0, abs=60)}
    said = plan(user, *JOB, "--time", "0:40:00", text=True)
    assert re.search(rf"^start +{IN_HALF_AN_HOUR}$", said, re.MULTILINE)
    assert re.search(r"^ +--nodes 2 +at once$", said, re.MULTILINE)
    # The other partition has two nodes, and takes an hour.
    assert "Slurm says: " in plan(user, *JOB, "--cluster", "other")["start"]["start"]["says"]
    long = plan(user, "train.py", *CPU, "--cluster", "other", "--time", "2:00:00")
    assert (
        long["start"]["start"]["says"] == "it would not start: other allows --time 1:00:00 at most"
    )
    # A submission says as much where Slurm answers in time, and its spec.json keeps it.
    note = re.compile(f"note: start: {IN_HALF_AN_HOUR}")
    submissions = (user("submit", *JOB, "--time", "0:40:00") for _ in range(3))
    assert any(note.search(done.stderr) for done in submissions)
    assert user.runs()[0].spec.planned.wait_s == pytest.approx(1800, abs=180)


def test_a_time_limit_that_reaches_into_a_maintenance_is_shortened(user):
    reserved = "scontrol create reservation ReservationName=maintenance StartTime=now+330minutes"
    words = "Duration=120 Nodes=ALL Users=root Flags=MAINT,IGNORE_JOBS"
    user.cluster.run(*reserved.split(), *words.split())
    found = plan(user, *JOB, "--time", "6:00:00")["start"]
    assert found["start"]["time_s"] - found["maintenance_s"] == pytest.approx(7200, abs=60)
    assert found["longest_min"] == 5 * 60
    said = plan(user, *JOB, "--time", "6:00:00", text=True)
    assert re.search(
        r"^ +--time 5:00:00 or less starts before the maintenance on ", said, re.MULTILINE
    )
    inside = plan(user, *JOB, "--time", "5:00:00")["start"]
    assert inside["maintenance_s"] is None
    assert inside["start"]["time_s"] < found["maintenance_s"]


def test_a_scheduler_that_does_not_answer_is_no_error_of_a_plan(user, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").write_text(
        "#!/bin/sh\necho Unable to contact slurm >&2\nexit 1\n"
    )
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    path = user.cluster.run("printenv", "PATH").stdout.strip()
    done = user("plan", *JOB, "--scheduler", "slurm", env={"PATH": f"{tmp_path}/bin:{path}"})
    assert done.returncode == 0, done.stderr
    assert "Unable to contact slurm" in done.stdout
