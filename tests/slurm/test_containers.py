"""Runs in a container image on a real Slurm: charliecloud starts the agents, and what the end of a
job's life takes of Slurm's commands, which no image has, is done outside."""

import pytest
from cluster_user import User, job_id, log
from containers import container, image  # noqa: F401 - a fixture
from counting import COUNT, await_counting
from runtime_stand_ins import image_file, install
from trainings import CPU, TWO

from hpcdist.runs.run import Run

HANGS = """\
import os, time
from hpcdist import record
record.start()
record.step(samples=1)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def user(slurm, tmp_path):
    return User(slurm, tmp_path)


@pytest.mark.timeout(240)
def test_runs_in_an_image_go_on_after_their_limit_meet_hang_and_are_cancelled_as_others(
    user,
    tmp_path,
    image,  # noqa: F811
):
    """At one time, since most of it is waiting: Slurm looks at limits every 30 s."""
    inside = container(image)
    counts = user.submit(user.write("count.py", COUNT), *CPU, *TWO, *inside, "--time", 10)
    programs = install(tmp_path / "bin", "srun")
    environment = user.cluster.environment
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    by_step = container(image_file(image, ".sqsh"), runtime="pyxis")
    done = user("submit", "count.py", *CPU, *TWO, *by_step, "--time", 10, env=environment)
    assert done.returncode == 0, done.stderr
    steps = Run(tmp_path / "runs" / done.stdout.strip())
    hangs = user.submit(
        user.write("hangs.py", HANGS), *CPU, *inside, "--set", "launch.hang_timeout_s=3"
    )
    sleeps = user.submit(user.write("sleeps.py", HANGS), *CPU, *inside)
    for run in (counts, steps):
        await_counting(user, run)
        user.cluster.run("scontrol", "update", f"JobId={job_id(run)}", "EndTime=now+100")
    user.wait_for_line(sleeps, "up")
    user.cluster.run("scancel", job_id(sleeps))
    checks = user.submit("check", *CPU, *TWO, *inside)

    verdict = user.verdict(hangs)
    assert verdict.kind == "hang"
    assert "hangs.py:6" in verdict.message
    assert user.cluster.wait_for_end(job_id(hangs)) == "FAILED"
    assert user.verdict(sleeps).kind == "cancelled"
    user.done(checks)

    for run in (counts, steps):
        user.cluster.wait_for(lambda run=run: run.newest_attempt() == 1, 150)
    user.write("gate", "")
    for run in (counts, steps):
        user.done(run)
        assert_went_on(run)


def assert_went_on(run):
    first = run.read_attempt_verdict(0)
    assert (first.kind, first.exit_code_of_run) == ("time_limit", 75)
    for rank in range(2):
        (stopped,) = {line for line in log(run, rank).splitlines() if "stopped" in line}
        assert f"counted from {stopped.split()[1]}" in log(run, rank)
