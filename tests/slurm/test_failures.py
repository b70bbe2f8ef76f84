"""What fails on a cluster, and what the verdict says of it."""

import json
import os
import signal
from pathlib import Path

import pytest
from cluster_user import User, agent_pid, job_id
from counting import await_counting, count
from interruptions import hosts, kill_script, kill_srun, terminate_all, warn

WORK = """\
import os, time
print(f"working {os.getpid()}", flush=True)
time.sleep(600)
"""
FOUR = ("--nodes", 2, "--gpus", 2)


@pytest.fixture
def working(user):
    """A run whose four ranks are at work."""
    run = user.submit(user.write("work.py", WORK), *FOUR, "--no-requeue")
    for rank in range(4):
        user.wait_for_line(run, "working", rank=rank)
    return run


def test_a_job_that_ends_before_its_ranks_shows_its_own_log(user):
    user.write("hpcdist.yaml", "clusters: {c: {python: /no/such/python}}")
    run = user.submit("check", "--set", "launch.device=cpu")
    followed = user("logs", "-f", run.id)
    said = followed.stdout + followed.stderr
    assert "/no/such/python: No such file or directory" in said
    assert "failed: the job ended before hpcdist started in it" in said
    shown = user("status", run.id).stdout
    assert f"slurm job {job_id(run)}" in shown
    assert f"submitit/{job_id(run)}_0_log.out" in shown


@pytest.mark.timeout(240)
def test_a_run_whose_script_or_srun_is_killed_goes_on_and_says_why(user):
    run = count(user)
    killed = {
        kill_script: ("preempted", "the job's script was killed: "),
        kill_srun: ("agent_lost", "srun, which had started the agents, or its tasks were killed"),
        terminate_all: ("agent_lost", "srun, which had started the agents, "),
    }
    for attempt, (kill, (kind, words)) in enumerate(killed.items()):
        kill(user, run)
        await_counting(user, run, attempt + 1)
        verdict = run.read_attempt_verdict(attempt)
        assert (verdict.kind, verdict.message[: len(words)]) == (kind, words)
    user.write("gate", "")
    user.done(run)


def test_a_job_that_slurm_started_on_a_lost_node_first_is_started_again_where_it_has_its_gpus(user):
    """Slurm 22.05 has forgotten its GPUs then, and creates no step of it before a requeue."""
    with user.cluster.impatient_commands():
        (node, *_) = user.cluster.nodes
        user.cluster.kill_node(node)
        run = user.submit(user.write("short.py", "print('short')\n"))
        user.cluster.wait_for(lambda: "Restarts=1" in shown(user, run))
        user.cluster.give_up_node(node)
        user.done(run)
    assert hosts(user, run) != [node]
    (unstarted,) = [run.read_attempt_verdict(attempt) for attempt in run.attempts()[:-1]]
    assert unstarted.message.startswith("no agent was started: srun ended with exit code 1, and ")
    assert "Invalid generic resource (gres) specification" in unstarted.message
    (row,) = json.loads(user("summary", run.id, "--json").stdout)
    assert (row["state"], len(row["attempts"])) == ("done", 2)


def test_a_node_whose_slurmstepd_was_killed_is_named_by_what_srun_said(user, working):
    """srun then kills the healthy tasks, so that the other node's agent is the first to be gone."""
    os.kill(parent(agent_pid(working, 0)), signal.SIGKILL)
    verdict = user.verdict(working)
    assert (verdict.kind, verdict.node) == ("agent_lost", 0), verdict.message
    assert "srun said: " in verdict.message
    assert "node 1" not in verdict.message
    user.cluster.wait_for_end(job_id(working))


@pytest.fixture
def unwritable(slurm_netns, tmp_path):
    """Call it with a node, which then cannot write the runs folder; returns the cluster's user."""
    nodes, runs = [], tmp_path / "runs"
    runs.mkdir()

    def mount(node):
        slurm_netns.run("mount", "--bind", "--options=ro", runs, runs, node=node)
        nodes.append(node)
        return User(slurm_netns, tmp_path)

    yield mount
    for node in nodes:
        slurm_netns.run("umount", runs, node=node)


def test_a_node_that_cannot_write_the_runs_folder_ends_the_run_at_srun_s_words(unwritable):
    """srun itself goes on waiting for the others, and they for that node."""
    user = unwritable("n2")
    run = user.submit(user.write("work.py", WORK), *FOUR)
    verdict = user.verdict(run)
    assert user.cluster.wait_for_end(job_id(run)) == "FAILED"
    assert (verdict.kind, verdict.node, verdict.host) == ("launch", 1, "n2"), verdict.message
    assert "Slurmd could not connect IO" in verdict.message
    assert str(run.path) in verdict.message


def test_a_first_node_that_cannot_write_the_runs_folder_is_told_by_slurm_s_reason(unwritable):
    user = unwritable("n1")
    run = user.submit(user.write("work.py", WORK), *FOUR)
    assert user.cluster.wait_for_end(job_id(run)) == "FAILED"
    status = user.status(run)
    assert status["state"] == "failed"
    assert "its first node could not start its script" in status["reason"]


def parent(pid):
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def shown(user, run):
    return user.cluster.run("scontrol", "--oneliner", "show", "job", job_id(run)).stdout


SETUP = """clusters:
  c:
    setup:
      - 'ml() { [ "${SLURM_RESTART_COUNT:-0}" = 0 ] || return 7; }'
      - ml cuda/99
      - '[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 3'
"""


def test_a_later_start_that_ends_before_an_agent_does_not_show_the_verdict_of_the_one_before(user):
    user.write("hpcdist.yaml", SETUP)
    run = count(user)
    warn(user, run)
    user.cluster.wait_for(lambda: "Restarts=1" in shown(user, run))
    assert user.cluster.wait_for_end(job_id(run)) == "FAILED"
    os.utime(run.attempts_folder / "00000" / "verdict.json", (0, 0))  # else it may start again
    status = user.status(run)
    assert status["state"] == "failed"
    assert status["exit_code"] == 1
    assert status["message"].startswith("the job ended before hpcdist started in it")
    assert "after attempt 0" in status["message"]
    assert "a line of the profile's setup failed (exit code 7: ml cuda/99)" in status["message"]
