"""What interrupts a run on Slurm, and where it runs."""

import os
import signal

from cluster_user import agent_pid, expand, job_id


def requeue(user, run):
    user.cluster.run("scontrol", "requeue", job_id(run))


def preempt(user, _run):
    """By a job that takes all nodes; the run must be in partition low."""
    urgent = user.cluster.submit("sleep 2", "--partition=high", "--nodes=4", "--exclusive")
    user.cluster.wait_for_state(urgent, "RUNNING", "COMPLETED", limit_s=90)


def warn(user, run):
    user.cluster.run("scancel", "--signal=USR2", job_id(run))


def kill_agent(_user, run):
    os.kill(agent_pid(run, 1), signal.SIGKILL)


def hosts(user, run):
    shown = user.cluster.run("scontrol", "--oneliner", "show", "job", job_id(run)).stdout
    (nodes,) = [word.partition("=")[2] for word in shown.split() if word.startswith("NodeList=")]
    return expand(nodes)


def lose_node(user, run, node):
    """As by a power cut of which the administrators know soon; returns the node's name."""
    name = hosts(user, run)[node]
    attempt = run.newest_attempt()
    user.cluster.kill_node(name)
    user.cluster.wait_for(lambda: run.read_attempt_verdict(attempt))
    user.cluster.give_up_node(name)
    return name
