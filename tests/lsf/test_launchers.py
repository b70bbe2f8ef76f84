"""How the other hosts' agents are started: by blaunch or ssh; and what is said where they cannot
be."""

from cluster_user import CPU, TWO, User, job_id, log
from counting import await_counting, count
from lsf_cluster import STRICT

PLACE = """\
import os, socket
print(os.environ["LSB_SITE_HOST"], os.environ["RANK"], os.environ["WORLD_SIZE"], flush=True)
"""
BY_SSH = (
    "clusters: {lab: {scheduler: lsf, lsf: {launcher: 'ssh -o BatchMode=yes {host} {command}'}}}"
)
MISSING = "clusters: {lab: {scheduler: lsf, lsf: {launcher: 'no-such-launcher {host} {command}'}}}"


def test_ssh_starts_the_agents_and_a_job_goes_on_and_ends_with_all_of_them(lsf_like, tmp_path):
    """A fresh login and past LSF: neither environment nor directory come along, nor an end."""
    user = User(lsf_like(ssh=True, kill_interval_s=60.0, limit_grace_s=60.0), tmp_path)
    user.write("hpcdist.yaml", BY_SSH)
    run = count(user)
    user.cluster.reach_limit(job_id(run))
    await_counting(user, run, 1)
    assert run.read_attempt_verdict(0).kind == "time_limit"
    assert user("cancel", run.id).returncode == 0
    assert user.cluster.job_state(job_id(run)) == "EXIT"
    assert run.read_verdict().state == "cancelled"


def test_on_a_strict_engine_the_environment_is_brought_along(lsf_like, tmp_path):
    user = User(lsf_like(engine=STRICT), tmp_path)
    environment = user.cluster.environment | {"WORD": "two words; and 'quotes'"}
    text = PLACE + 'print(os.environ["WORD"], os.getcwd())\n'
    script = user.write("place.py", text)
    user.write("hpcdist.yaml", "clusters: {lab: {scheduler: lsf, gpu_request: none}}")
    done = user("submit", script, *TWO, *CPU, env=environment)
    assert done.returncode == 0, done.stderr
    (run,) = user.runs()
    user.done(run)
    assert log(run, 1).splitlines()[1] == f"two words; and 'quotes' {tmp_path}"


def test_a_host_on_which_nothing_starts_is_told_at_once_with_what_was_said(user):
    """Long before the agents give up waiting for each other."""
    with user.cluster.refusing("blaunch", "blaunch: hostB: Cannot connect to its daemon"):
        run = user.submit(user.write("place.py", PLACE), *TWO, *CPU, "--no-requeue")
        verdict = user.verdict(run)
    assert (verdict.kind, verdict.node) == ("launch", 1)
    assert "node 1 (host hostB): no agent could be started there" in verdict.message
    assert user.cluster.wait_for_end(job_id(run)) == "EXIT"
    assert "blaunch: hostB: Cannot connect to its daemon" in verdict.message


def test_a_launcher_that_is_not_there_is_told_at_once(user):
    user.write("hpcdist.yaml", MISSING)
    run = user.submit(user.write("place.py", PLACE), *TWO, *CPU, "--no-requeue")
    assert user.cluster.wait_for_end(job_id(run)) == "EXIT"
    found = user.status(run)
    assert found["state"] == "failed"
    assert "no-such-launcher" in str(found) + "".join(path.read_text() for path in run.job_logs())
