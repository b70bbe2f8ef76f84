"""What interrupts a run on Slurm, and where it runs."""

import os
import signal
from contextlib import suppress

from cluster_user import agent_pid, job_id
from slurm_cluster import processes


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


def kill_script(user, run):
    """The job's batch shell."""
    (pid,) = _of_job(user, run, b"slurm_script")
    os.kill(pid, signal.SIGKILL)


def kill_srun(user, run):
    """What starts the agents, which live on."""
    for pid in _of_job(user, run, b"srun"):
        with suppress(ProcessLookupError):  # it is two processes
            os.kill(pid, signal.SIGKILL)


def terminate_all(user, run):
    """Batch shell, srun and tasks at once: srun then has the tasks killed."""
    user.cluster.run("scancel", "--full", "--signal=TERM", job_id(run))


def _of_job(user, run, program):
    """Pids of the job's processes that execute this program or script."""
    return [
        pid
        for pid in processes.all_pids()
        if processes.variable(pid, "SLURM_CONF") == str(user.cluster.spec.slurm_conf)
        and processes.variable(pid, "SLURM_JOB_ID") == job_id(run)
        and any(
            word.rpartition(b"/")[2] == program
            for word in (processes.command_line(pid) or b"").split(b"\0")[:2]
        )
    ]


def hosts(user, run):
    shown = user.cluster.run("scontrol", "--oneliner", "show", "job", job_id(run)).stdout
    (nodes,) = [word.partition("=")[2] for word in shown.split() if word.startswith("NodeList=")]
    return user.cluster.run("scontrol", "show", "hostnames", nodes).stdout.split()


def lose_node(user, run, node):
    """As by a power cut of which the administrators know soon; returns the node's name."""
    name = hosts(user, run)[node]
    attempt = run.newest_attempt()
    user.cluster.kill_node(name)
    user.cluster.wait_for(lambda: run.read_attempt_verdict(attempt))
    user.cluster.give_up_node(name)
    return name


def lose_first_node(user, run):
    return lose_node(user, run, 0)


def lose_second_node(user, run):
    return lose_node(user, run, 1)
