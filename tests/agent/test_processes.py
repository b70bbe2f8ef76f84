"""Whatever is killed, whenever the run is cancelled: nothing survives, and the run says why."""

import os
import signal
from pathlib import Path

import pytest

from hpcdist.schedulers import load_scheduler

WAIT = "import time; print('up', flush=True); time.sleep(1000)"
# Leaves a child, a daemon that escaped its session, and shared memory.
PLAIN_LITTER = """
import os, subprocess, sys, time
from multiprocessing import shared_memory

memory = shared_memory.SharedMemory(create=True, size=4096)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(100)
    os._exit(0)
print("up", flush=True)
"""
# And shared memory of torch.
LITTER = f"""
import torch, torch.multiprocessing as multiprocessing

multiprocessing.set_sharing_strategy("file_system")
kept = torch.ones(8).share_memory_()
{PLAIN_LITTER}
"""


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_killed_agent_that_was_alone_leaves_nothing_but_a_lost_run(launch, write_script, up):
    def state():
        return load_scheduler("local").conditions([launched.run])[launched.run.id].state

    launched = up(launch(write_script(PLAIN_LITTER + "time.sleep(100)"), gpus=2), 2)
    assert state() == "running"
    os.kill(launched.agent_pid(0), signal.SIGKILL)
    launched.wait(lambda: state() == "lost")
    assert launched.run.read_verdict() is None


@pytest.mark.parametrize("killed", ["forkserver", "store"])
def test_a_killed_helper_ends_the_run_with_a_verdict(launch, write_script, up, killed):
    launched = up(launch(write_script(WAIT), nodes=2, max_restarts=1), 2)
    node = int(killed == "forkserver")  # that of node 1
    (pid,) = children(launched.agent_pid(node))
    said = f"node {node} (host "
    lost = "the process that forks the ranks was lost: killed by SIGKILL"
    if killed == "store":
        (pid,) = set(children(pid)) - {launched.pid(0)}
        lost = "the store where the ranks meet was lost"
    os.kill(pid, signal.SIGKILL)
    verdict = launched.verdict()
    assert verdict.kind == "agent_lost"
    assert verdict.message.startswith(said)
    assert lost in verdict.message
    assert [launched.events(rank)[-1]["event"] for rank in (0, 1)] == ["end", "end"]


def test_what_ranks_started_ends_with_the_run(launch, write_script):
    text = "sys.exit(int(os.environ['TORCHELASTIC_RESTART_COUNT']) < int(os.environ['RANK']))"
    launched = launch(write_script(LITTER + text), gpus=2, max_restarts=1)
    verdict = launched.verdict()
    assert (verdict.kind, verdict.restarts) == ("done", 1)


def test_cancel_kills_a_run_whose_agent_hangs(submit, write_script, up):
    launched = up(submit(write_script(PLAIN_LITTER + "time.sleep(100)")), 1)
    os.kill(launched.agent_pid(0), signal.SIGSTOP)
    load_scheduler("local").cancel([launched.run])
    assert launched.run.read_verdict().kind == "cancelled"
