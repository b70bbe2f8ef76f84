"""Whatever is killed, whenever the run is cancelled: nothing survives, and the run says why."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdist.schedulers import load_scheduler

WAIT = "import time; print('up', flush=True); time.sleep(1000)"
GOES = """
import os, sys, time
print("up", flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
sys.exit(int(sys.argv[2]))
"""
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
from torch.utils.data import DataLoader, TensorDataset

multiprocessing.set_sharing_strategy("file_system")
loader = iter(DataLoader(TensorDataset(torch.ones(64, 8)), batch_size=2, num_workers=1,
                         persistent_workers=True))
kept = next(loader)
{PLAIN_LITTER}
"""


@pytest.fixture
def state():
    scheduler = load_scheduler("local")
    return lambda launched: scheduler.conditions([launched.run])[launched.run.id].state


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_killed_agent_that_was_alone_leaves_nothing_but_a_lost_run(
    launch, write_script, up, state
):
    launched = up(launch(write_script(PLAIN_LITTER + "time.sleep(100)"), gpus=2), 2)
    assert state(launched) == "running"
    os.kill(launched.agent_pid(0), signal.SIGKILL)
    launched.wait(lambda: state(launched) == "lost")
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


def test_a_stopped_forkserver_is_told_from_ranks_that_hang(launch, write_script, up, tmp_path):
    go = tmp_path / "go"
    launched = up(launch(write_script(GOES), go, 3, gpus=2, hang_timeout_s=1, grace_s=0.5), 2)
    (forkserver,) = children(launched.agent_pid(0))
    os.kill(forkserver, signal.SIGSTOP)
    go.touch()
    verdict = launched.verdict()
    assert verdict.kind == "hang"
    assert "the process that forks the ranks, which would say how, is silent" in verdict.message


def test_an_agent_that_cannot_read_its_plan_says_so_and_the_others_do_not_wait(
    launch, write_script
):
    launched = launch(write_script(WAIT), nodes=2, agents=[0])
    launched.agent_pid(0)
    launched.run.spec_file.write_text('{"job": ')
    launched.start_agent(1)
    verdict = launched.verdict()
    assert verdict.kind == "launch"
    assert "spec.json cannot be read" in verdict.message


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


def test_the_run_goes_on_without_submitits_controller(submit, write_script, up, tmp_path):
    go = tmp_path / "go"
    launched = up(submit(write_script(GOES), go, 0), 1)
    os.kill(int(launched.run.read_job_id()), signal.SIGKILL)
    go.touch()
    assert launched.verdict().kind == "done"


def test_cancel_leaves_processes_alone_that_only_have_the_pid_of_the_run(
    submit, write_script, state
):
    launched = submit(write_script("pass"))
    assert launched.verdict().kind == "done"
    bystander = subprocess.Popen([sys.executable, "-c", WAIT], start_new_session=True)
    try:
        for file in (launched.run.submission_file, launched.run.agent_file(0)):
            value = json.loads(file.read_text())
            value["process"]["pid"] = bystander.pid
            file.write_text(json.dumps(value))
        launched.run.verdict_file.unlink()
        assert state(launched) == "lost"
        load_scheduler("local").cancel([launched.run])
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
