"""Runs in a container image on a real Slurm: charliecloud starts the agents, and what the end of a
job's life takes of Slurm's commands, which no image has, is done outside."""

import pytest
from cluster_user import CPU, TWO, User, job_id
from containers import container, image  # noqa: F401 - a fixture
from counting import COUNT, await_counting, end_counting
from interruptions import warn
from runtime_stand_ins import image_file, install

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


def test_runs_in_an_image_are_started_by_srun_itself_hang_and_are_cancelled_as_others(
    user,
    tmp_path,
    image,  # noqa: F811
):
    inside = container(image)
    programs = install(tmp_path / "bin", "srun")
    environment = user.cluster.environment
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    by_step = container(image_file(image, ".sqsh"), runtime="pyxis")
    steps = user.submit(user.write("count.py", COUNT), *CPU, *TWO, *by_step, env=environment)
    hangs = user.submit(
        user.write("hangs.py", HANGS), *CPU, *inside, "--set", "launch.hang_timeout_s=3"
    )
    sleeps = user.submit(user.write("sleeps.py", HANGS), *CPU, *inside)
    checks = user.submit("check", *CPU, *TWO, *inside)
    await_counting(user, steps)
    warn(user, steps)
    user.wait_for_line(sleeps, "up")
    user.cluster.run("scancel", job_id(sleeps))

    verdict = user.verdict(hangs)
    assert verdict.kind == "hang"
    assert "hangs.py:6" in verdict.message
    assert user.cluster.wait_for_end(job_id(hangs)) == "FAILED"
    assert user.verdict(sleeps).kind == "cancelled"
    user.done(checks)
    end_counting(user, steps)
    assert steps.read_attempt_verdict(0).kind == "time_limit"
