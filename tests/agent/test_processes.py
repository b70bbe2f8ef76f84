"""Whatever is killed, whenever the run is cancelled: nothing survives, and the run says why."""

import os
import signal
import subprocess
import sys
import time
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


def wait_until_up(launched, ranks):
    for rank in range(ranks):
        launched.wait(lambda rank=rank: "up" in launched.log(rank))


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_killed_agent_that_was_alone_leaves_nothing_but_a_lost_run(launch, write_script, state):
    launched = launch(write_script(LITTER + "time.sleep(100)"), gpus=2)
    wait_until_up(launched, 2)
    assert state(launched) == "running"
    os.kill(launched.agent_pid(0), signal.SIGKILL)
    launched.wait(lambda: state(launched) == "lost")
    assert launched.run.read_verdict() is None


@pytest.mark.parametrize("node", [0, 1])
def test_a_killed_forkserver_ends_the_run_with_a_verdict(launch, write_script, node):
    launched = launch(write_script(WAIT), nodes=2, gpus=1, max_restarts=1)
    wait_until_up(launched, 2)
    (forkserver,) = children(launched.agent_pid(node))
    os.kill(forkserver, signal.SIGKILL)
    verdict = launched.verdict()
    assert verdict.kind == "agent_lost"
    assert verdict.message.startswith(f"node {node} (host ")
    assert "forks the ranks was lost: killed by SIGKILL" in verdict.message
    assert [launched.events(rank)[-1]["event"] for rank in (0, 1)] == ["end", "end"]


def test_a_stopped_forkserver_is_told_from_ranks_that_hang(launch, write_script, tmp_path):
    go = tmp_path / "go"
    ends = f"import os, sys, time\nprint('up', flush=True)\nwhile not os.path.exists({str(go)!r}):"
    script = write_script(f"{ends}\n    time.sleep(0.05)\nsys.exit(3)")
    launched = launch(script, gpus=2, hang_timeout_s=1, grace_s=0.5)
    wait_until_up(launched, 2)
    (forkserver,) = children(launched.agent_pid(0))
    os.kill(forkserver, signal.SIGSTOP)
    go.touch()
    verdict = launched.verdict()
    assert verdict.kind == "hang"
    assert "the process that forks the ranks, which would say how, is silent" in verdict.message


def test_a_killed_store_ends_the_run_with_a_verdict(launch, write_script):
    launched = launch(write_script(WAIT), gpus=2)
    wait_until_up(launched, 2)
    (forkserver,) = children(launched.agent_pid(0))
    ranks = {launched.pid(0), launched.pid(1)}
    (store,) = set(children(forkserver)) - ranks
    os.kill(store, signal.SIGKILL)
    verdict = launched.verdict()
    assert verdict.kind == "agent_lost"
    assert "the store where the ranks meet was lost" in verdict.message


def test_a_signal_to_all_processes_of_the_run_cancels_it(launch, write_script):
    launched = launch(write_script(WAIT), gpus=3, max_restarts=2)
    wait_until_up(launched, 3)
    agent = launched.agent_pid(0)
    for pid in [*(launched.pid(rank) for rank in range(3)), *children(agent), agent]:
        os.kill(pid, signal.SIGTERM)
    assert launched.verdict().state == "cancelled"


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
    launched = launch(write_script(LITTER + "sys.exit(int(os.environ['RANK']))"), gpus=2)
    assert launched.verdict().first.exit_code == 1
    launched = launch(write_script(LITTER))
    assert launched.verdict().kind == "done"


def test_cancel_ends_ranks_that_ignore_signals(submit, write_script, state):
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    launched = submit(write_script(ignore + WAIT), nodes=2, gpus=2)
    assert state(launched) in {"pending", "running"}
    wait_until_up(launched, 4)
    assert state(launched) == "running"
    begin_s = time.monotonic()
    load_scheduler("local").cancel([launched.run])
    print(f"cancelled in {time.monotonic() - begin_s:.2f} s")
    assert launched.run.read_verdict().state == "cancelled"
    load_scheduler("local").cancel([launched.run])  # once more does no harm
    assert launched.run.read_verdict().signal == "SIGTERM"


def test_cancel_kills_a_run_whose_agent_hangs(submit, write_script):
    launched = submit(write_script(PLAIN_LITTER + "time.sleep(100)"))
    wait_until_up(launched, 1)
    os.kill(launched.agent_pid(0), signal.SIGSTOP)
    load_scheduler("local").cancel([launched.run])
    assert launched.run.read_verdict().kind == "cancelled"


def test_the_run_goes_on_without_submitits_controller(submit, write_script, tmp_path):
    go = tmp_path / "go"
    script = write_script(
        "import os, sys, time\nprint('up', flush=True)\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.01)"
    )
    launched = submit(script, go)
    wait_until_up(launched, 1)
    os.kill(int(launched.run.read_job_id()), signal.SIGKILL)
    go.touch()
    assert launched.verdict().kind == "done"


def test_cancel_leaves_processes_alone_that_only_have_the_pid_of_the_run(
    submit, write_script, state
):
    import json

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
