"""What is special to jobs on LSF: hosts that are lost, a launcher that reaches no host, LSF's own
requeue and one that it refuses, and what LSF cannot do."""

import sys
import urllib.request

import pytest
from cluster_user import CPU, TWO, User, job_id, log
from counting import COUNT, ELASTIC_COUNT, await_counting, count


@pytest.fixture
def user(lsf_like, tmp_path):
    return User(lsf_like(), tmp_path)


def test_a_run_that_loses_a_host_and_then_its_first_goes_on_elsewhere(user):
    """LSF gives it the lost host once more, which it still calls ok; then that is waited for. The
    first host's loss is LSF's to answer (-r)."""
    site, run = user.cluster, count(user)
    job = job_id(run)
    assert site.job(job).hosts == ["hostA", "hostB"]
    site.lose_host("hostB")
    await_counting(user, run, 1)
    assert site.job(job).hosts == ["hostA", "hostC"]
    site.lose_host("hostA")
    await_counting(user, run, 2)
    assert site.job(job).hosts == ["hostC", "hostD"]
    user.write("gate", "")
    user.done(run)
    assert job_id(run) == job
    lost = [run.read_attempt_verdict(attempt) for attempt in range(run.newest_attempt())]
    assert (lost[0].kind, lost[1].kind, lost[-1].kind) == ("agent_lost", "launch", "agent_lost")
    assert "hostB" in lost[1].message


def test_a_run_goes_on_without_a_host_in_the_same_life_of_its_job(user):
    """The launcher's tasks on other hosts live on; with the first host, the job is LSF's."""
    script = user.write("count.py", ELASTIC_COUNT)
    run = user.submit(script, *CPU, "--nodes", 3, "--gpus", 1, "--set", "launch.min_nodes=1")
    await_counting(user, run, num_ranks=3)
    user.cluster.lose_host("hostB")
    await_counting(user, run, 1)
    user.write("gate", "")
    user.done(run)
    assert "it went on with 2 of 3 nodes since " in run.read_verdict().message
    assert {begun.life for begun in run.read_beginnings().values()} == {0}


def test_a_host_on_which_nothing_starts_is_told_at_once_with_what_was_said(user):
    """Long before the agents give up waiting for each other."""
    with user.cluster.refusing("blaunch", "blaunch: hostB: Cannot connect to its daemon"):
        run = user.submit(user.write("count.py", COUNT), *TWO, *CPU, "--no-requeue")
        verdict = user.verdict(run)
    assert (verdict.kind, verdict.node) == ("launch", 1)
    assert "node 1 (host hostB): no agent could be started there" in verdict.message
    assert user.cluster.wait_for_end(job_id(run)) == "EXIT"
    assert "blaunch: hostB: Cannot connect to its daemon" in verdict.message


def test_a_job_that_lsf_requeues_goes_on_and_one_whose_brequeue_is_refused_ends_with_75(user):
    """LSF's own requeue sends SIGINT, as a preemption does."""
    run = count(user)
    user.cluster.requeue(job_id(run))
    await_counting(user, run, 1)
    assert run.read_attempt_verdict(0).kind == "preempted"
    with user.cluster.refusing("brequeue", "Job <7>: User permission denied"):
        user.cluster.reach_limit(job_id(run))
        verdict = user.verdict(run)
    assert (verdict.kind, verdict.state) == ("time_limit", "preempted")
    assert verdict.exit_code_of_run == 75
    assert "User permission denied" in verdict.message
    assert user.cluster.wait_for_end(job_id(run)) == "EXIT"


def test_without_battach_attach_and_drill_say_so_and_cancel_needs_no_bjobs(user):
    run = count(user)
    drill = user("drill", "count.py", *CPU)
    assert drill.returncode == 2, drill.stderr
    assert "a drill disturbs its job from within; LSF cannot do that" in drill.stderr
    refused = user("attach", run.id, "--", "ps", "-x")
    assert refused.returncode == 3, refused.stderr
    assert "ssh hostA -t" in refused.stderr
    with user.cluster.refusing("bjobs", "System call failed: Network is unreachable"):
        assert "FAIL  controller" in user("doctor", "--no-job").stdout
        cancelled = user("cancel", run.id)
        assert cancelled.returncode == 3, cancelled.stderr
        assert "Network is unreachable" in cancelled.stderr
        assert user.cluster.wait_for_end(job_id(run)) == "EXIT"
    assert f"{run.id}: cancelled" in user("status", run.id).stdout


SERVE = """
import http.server
with http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
    print("listens", server.server_port, flush=True)
    server.serve_forever()
"""


def test_a_port_of_a_host_is_reached_by_ssh(user):
    """All hosts of the double are this machine, and so is what its ssh leads to."""
    ssh = user.folder / "ssh"
    ssh.write_text('#!/bin/sh\n[ "$1 $2 $3" = "-T -- hostB" ] && exec sh -c "$4"\n')
    ssh.chmod(0o700)
    run = user.submit(user.write("serve.py", SERVE), *TWO, *CPU)
    user.wait_for_line(run, "listens", rank=1)
    command = ("forward", run.id, log(run, 1).split()[1], "--rank", "1", "--port", "0")
    path = f"PATH={user.folder}:{user.cluster.environment['PATH']}"
    started = user.cluster.start_command(
        *("env", path, sys.executable, "-m", "hpcdist", *command), cwd=user.folder, stderr=-1
    )
    with started as process:
        url = process.stderr.readline().split()[0]
        with urllib.request.urlopen(url, timeout=60) as page:
            assert b"serve.py" in page.read()
        assert user("cancel", run.id).returncode == 0
        assert f"{run.id} has ended" in process.communicate(timeout=60)[1]
    assert process.returncode == 0
