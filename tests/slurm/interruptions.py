"""What interrupts a run on Slurm, and where it runs."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
from cluster_user import agent_pid, job_id


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
    (pid,) = _of_job(user, run, "slurm_script")
    os.kill(pid, signal.SIGKILL)


def kill_srun(user, run):
    """What starts the agents, which live on."""
    for pid in _of_job(user, run, "srun"):
        with suppress(ProcessLookupError):  # it is two processes
            os.kill(pid, signal.SIGKILL)


def terminate_all(user, run):
    """Batch shell, srun and tasks at once: srun then has the tasks killed."""
    user.cluster.run("scancel", "--full", "--signal=TERM", job_id(run))


def _of_job(user, run, program):
    """Pids of the job's processes that execute this program or script."""
    conf = str(user.cluster.spec.slurm_conf)
    return [
        one.pid
        for one in psutil.process_iter(["environ", "cmdline"])
        if (environment := one.info["environ"] or {}).get("SLURM_CONF") == conf
        and environment.get("SLURM_JOB_ID") == job_id(run)
        and any(Path(word).name == program for word in one.info["cmdline"][:2])
    ]


def hosts(user, run):
    shown = user.cluster.run("scontrol", "--oneliner", "show", "job", job_id(run)).stdout
    (nodes,) = [word.partition("=")[2] for word in shown.split() if word.startswith("NodeList=")]
    return user.cluster.run("scontrol", "show", "hostnames", nodes).stdout.split()


def lose_node(user, run, node):
    """As by a power cut of which the administrators know soon; returns the node's name."""
    name = hosts(user, run)[node]
    attempt = run.newest_attempt()
    user.cluster.order("kill_node", name)
    user.cluster.wait_for(lambda: run.read_attempt_verdict(attempt))
    user.cluster.give_up_node(name)
    return name


def lose_first_node(user, run):
    return lose_node(user, run, 0)


def lose_second_node(user, run):
    return lose_node(user, run, 1)
