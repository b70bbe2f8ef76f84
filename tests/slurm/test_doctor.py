"""The doctor on a real cluster: one that works, and one fault at a time."""

import json
import os
import signal

from cluster_user import CPU, User


def examine(user, *options, profile=None):
    """The doctor's exit code, its findings by name, and what stderr says."""
    if profile is not None:
        user.write("hpcdist.yaml", json.dumps({"clusters": {"here": profile}}))
    done = user("doctor", "--json", *options, timeout=150)
    assert done.stdout, done.stderr
    return done.returncode, {one["name"]: one for one in json.loads(done.stdout)}, done.stderr


def failures(found):
    return [name for name, finding in found.items() if finding["state"] == "FAIL"]


def test_gpus_that_were_asked_for_and_a_setup_line_that_fails_are_shown_though_the_job_goes_on(
    user,
):
    profile = {"setup": ["hpcdist-no-such-command one", "true"]}
    code, found, said = examine(user, "--nodes", "1", profile=profile)
    assert code == 1
    assert sorted(failures(found)) == ["GPUs", "setup lines"]
    assert "NVML shows none on 127.0.1.1" in found["GPUs"]["detail"]
    assert "exit code 127: hpcdist-no-such-command one" in found["setup lines"]["detail"]
    assert found["collective"]["state"] == "pass"
    assert "the job's run is kept" in said


def test_a_controller_that_is_down_is_said_and_nothing_else_is_tried(user):
    with user.cluster.impatient_commands():
        user.cluster.stop_controller()
        code, found, _ = examine(user, *CPU)
        user.cluster.start_controller()
    assert code == 1
    assert failures(found) == ["controller"]
    assert "job" not in found
    assert os.listdir(user.folder / "runs") == []


def test_a_job_that_does_not_start_is_cancelled_with_the_reason_and_so_by_ctrl_c(user):
    slurm = user.cluster
    blocking = slurm.submit("sleep 600", "--nodes=4", "--exclusive")
    slurm.wait_for_state(blocking, "RUNNING")
    code, found, said = examine(user, *CPU, "--timeout", "0.1")
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


def test_a_folder_that_only_the_login_node_has_is_found(slurm_netns, tmp_path):
    hidden = tmp_path / "runs"
    hidden.mkdir()
    # Mounted after the nodes were made, it is on the login node alone.
    slurm_netns.run("mount", "-t", "tmpfs", "tmpfs", str(hidden))
    try:
        code, found, _ = examine(User(slurm_netns, tmp_path), *CPU)
    finally:
        slurm_netns.run("umount", str(hidden))
    assert code == 1
    assert failures(found) == ["shared folder"]
    assert "nothing that node 0, 1 wrote is here" in found["shared folder"]["detail"]
    assert found["collective"]["state"] == "skip"


def test_a_cluster_that_works_passes_and_nothing_is_left(slurm_netns, tmp_path):
    user = User(slurm_netns, tmp_path)
    code, found, said = examine(user, *CPU, "--gpus", "2", profile={"setup": ["true"]})
    assert code == 0, found
    assert not failures(found)
    passing = ("controller", "shared folder", "setup lines")
    for name in (*passing, "interpreter", "interface", "port", "collective"):
        assert found[name]["state"] == "pass", found[name]
    assert found["interface"]["detail"].startswith("eth0, ")
    assert "10.77.0.1:" in found["port"]["detail"]
    assert "reached from 1 node" in found["port"]["detail"]
    assert "4 ranks on 2 nodes" in found["collective"]["detail"]
    assert os.listdir(tmp_path / "runs") == [], said
