"""The doctor on a real cluster: one that works, and one fault at a time; where the controller is
down, see test_controller.py."""

import json
import os
import signal

from cluster_user import CPU, User


def examine(user, *options, setup=()):
    """The doctor's exit code, its findings by name, and what stderr says."""
    user.write("hpcdist.yaml", json.dumps({"clusters": {"here": {"setup": [*setup, "true"]}}}))
    done = user("doctor", "--json", *options, timeout=150)
    assert done.stdout, done.stderr
    return done.returncode, {one["name"]: one for one in json.loads(done.stdout)}, done.stderr


def failures(found):
    return sorted(name for name, finding in found.items() if finding["state"] == "FAIL")


def test_gpus_that_were_asked_for_and_a_setup_line_that_fails_are_shown_though_the_job_goes_on(
    user,
):
    code, found, said = examine(user, "--nodes", "1", setup=["hpcdist-no-such-command one"])
    assert code == 1
    assert failures(found) == ["GPUs", "setup lines"]
    assert "NVML shows none on 127.0.1.1" in found["GPUs"]["detail"]
    assert "exit code 127: hpcdist-no-such-command one" in found["setup lines"]["detail"]
    assert found["collective"]["state"] == "pass"
    assert "the job's run is kept" in said


def test_a_job_that_does_not_start_is_cancelled_with_the_reason_and_so_by_ctrl_c(user):
    slurm = user.cluster
    blocking = slurm.submit("sleep 600", "--nodes=4", "--exclusive")
    slurm.wait_for_state(blocking, "RUNNING")
    code, found, said = examine(user, *CPU, "--timeout", "0.05")
    assert code == 1
    assert failures(found) == ["job"]
    assert "pending: it waits for nodes" in found["job"]["detail"]
    assert "the job is pending: it waits for nodes" in said
    assert slurm.queue() == [blocking]

    with user.start("doctor", *CPU) as process:
        slurm.wait_for(lambda: len(slurm.queue()) == 2)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=150)
    assert process.returncode == 130
    assert slurm.queue() == [blocking]
    slurm.run("scancel", blocking)


def test_a_cluster_that_works_passes_and_nothing_is_left(slurm_netns, tmp_path):
    code, found, said = examine(User(slurm_netns, tmp_path), *CPU, "--gpus", "2")
    assert code == 0, found
    assert not failures(found)
    names = ("controller", "shared folder", "setup lines", "interpreter", "interface", "port")
    for name in (*names, "collective"):
        assert found[name]["state"] == "pass", found[name]
    assert found["interface"]["detail"].startswith("eth0, ")
    assert "10.77.0.1:" in found["port"]["detail"]
    assert "reached from 1 node" in found["port"]["detail"]
    assert "4 ranks on 2 nodes" in found["collective"]["detail"]
    assert os.listdir(tmp_path / "runs") == [], said
