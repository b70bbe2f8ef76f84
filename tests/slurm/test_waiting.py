"""What is said of runs that wait, or end before they begin."""

import json
import signal

import pytest


@pytest.fixture
def blocked(slurm):
    """A cluster on which nothing starts for ten minutes."""
    job_id = slurm.submit("sleep 600", "--nodes=4", "--exclusive", "--time=10")
    slurm.wait_for_state(job_id, "RUNNING")
    yield slurm
    slurm.run("scancel", job_id)


def test_a_run_that_waits_says_why_and_outlives_the_command_that_follows_it(blocked, tmp_path):
    command = ("hpcdist", "submit", "check", "--nodes", "2", "--set", "launch.device=cpu", "--wait")
    with blocked.start_command(*command, cwd=tmp_path, stdout=-1, stderr=-1) as waiting:
        first = waiting.stderr.readline()
        run_id = first.split()[1]
        assert waiting.stderr.readline().startswith("pending: ")
        waiting.send_signal(signal.SIGINT)
        _, last = waiting.communicate(timeout=150)
    assert waiting.returncode == 130
    assert f"run {run_id} continues; end it with: hpcdist cancel {run_id}" in last

    shown = blocked.run("hpcdist", "status", cwd=tmp_path).stdout
    assert f"{run_id}: pending" in shown
    assert "it waits for nodes to become free (Resources)" in shown
    watched = blocked.run("hpcdist", "watch", "--once", cwd=tmp_path).stdout
    assert watched.startswith("1 pending")
    assert f"{run_id} pending it waits for nodes to become free (Resources)" in watched
    (status,) = json.loads(blocked.run("hpcdist", "status", "--json", cwd=tmp_path).stdout)
    assert status["hosts"] == []
    assert len(blocked.queue()) == 2
    blocked.run("hpcdist", "cancel", run_id, cwd=tmp_path)


def test_a_job_that_ends_before_its_ranks_shows_its_own_log(slurm, tmp_path):
    profile = "clusters: {c: {python: /no/such/python}}"
    (tmp_path / "hpcdist.yaml").write_text(profile)
    done = slurm.run("hpcdist", "submit", "check", "--set", "launch.device=cpu", cwd=tmp_path)
    run_id = done.stdout.strip()
    (status,) = json.loads(slurm.run("hpcdist", "status", "--json", cwd=tmp_path).stdout)
    assert f"submitted to slurm as job {status['job_id']};" in done.stderr

    followed = slurm.run("hpcdist", "logs", "-f", run_id, cwd=tmp_path, timeout=150)
    said = followed.stdout + followed.stderr
    assert "/no/such/python: No such file or directory" in said
    assert "failed: the job ended before hpcdist started in it" in said
    shown = slurm.run("hpcdist", "status", run_id, cwd=tmp_path).stdout
    assert f"slurm job {status['job_id']}" in shown
    assert f"submitit/{status['job_id']}_0_log.out" in shown
