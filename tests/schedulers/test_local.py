"""This machine as a cluster: how ranks are laid out, and what state runs are in."""

import json
import os
import subprocess
import time

import msgspec
import pytest

from hpcdist.base.errors import JobError, SchedulerError
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.machine.gpus import Gpu
from hpcdist.machine.process import identify
from hpcdist.runs.run import Run
from hpcdist.schedulers import local as layout_module
from hpcdist.schedulers.base import Target
from hpcdist.schedulers.local import scheduler


@pytest.fixture
def plan(script_job):
    """How a script with these options would run here."""

    def make(name="script.py", **options):
        return scheduler.plan(script_job(name, **options), ClusterProfile())

    return make


def test_nodes_are_loopback_addresses_that_share_the_cpus(plan):
    nodes = plan(nodes=2, gpus=2).launch.nodes
    assert [node.address for node in nodes] == ["127.0.0.1", "127.0.0.2"]
    assert all(len(node.rank_cpus) == 2 for node in nodes)
    used = {cpu for node in nodes for share in node.rank_cpus for cpu in share}
    assert used <= os.sched_getaffinity(0)


def test_more_ranks_than_the_memory_holds_are_refused(plan):
    with pytest.raises(JobError, match="200000 ranks on this machine need at least"):
        plan(nodes=2, gpus=100_000)


def test_cuda_without_gpus_is_refused(plan, monkeypatch):
    monkeypatch.setattr(layout_module, "list_gpus", list)
    with pytest.raises(JobError, match=r"launch\.device is cuda, but this machine shows no GPU"):
        plan(device="cuda")
    with pytest.raises(JobError, match=r"launch\.backend is nccl, which needs GPUs"):
        plan(device="auto", backend="nccl")
    assert plan(device="auto").notes[0].startswith("no GPU here: 1 rank on ")
    (note,) = plan(nodes=2, gpus=2, device="cpu").notes
    assert note.startswith("as launch.device says: 4 ranks on ")


def gpu(index, **fields):
    defaults = {"uuid": f"GPU-{index}", "name": "H1", "used_bytes": 0, "total_bytes": 80 * 10**9}
    return Gpu(index=index, **defaults | fields)


BUSY = gpu(1, holders=["python (pid 41, user ann)"], used_bytes=40 * 10**9)
HIDDEN = gpu(2, used_bytes=5 * 10**9)


def test_each_node_gets_idle_gpus_of_its_own_and_who_holds_the_others_is_told(plan, monkeypatch):
    gpus = [gpu(0), BUSY, HIDDEN, gpu(3), gpu(4), gpu(5)]
    monkeypatch.setattr(layout_module, "list_gpus", lambda: gpus)
    launch = plan(nodes=2, gpus=2, device="auto").launch
    assert [node.gpus for node in launch.nodes] == [["GPU-0", "GPU-3"], ["GPU-4", "GPU-5"]]
    assert (launch.device, launch.backend) == ("cuda", "nccl")
    del gpus[3:]
    with pytest.raises(JobError) as caught:
        plan(gpus=2, device="auto")
    assert caught.value.message == (
        "2 GPUs are asked for (nodes x gpus), 1 of 3 are idle; GPU 1 is in use by python (pid 41, "
        "user ann); GPU 2 is in use by a process of another user"
    )


ODD = 'it\'s a "job" $(touch pwned) `touch pwned` ${HOME}\n; touch pwned # {{ cwd }} {% raw %} 模型'


def test_the_script_is_safe_whatever_names_hold(script_job, tmp_path, monkeypatch, write_script):
    folder = tmp_path / f"-rf {ODD}"
    folder.mkdir()
    monkeypatch.chdir(folder)
    job = msgspec.structs.replace(script_job(folder / "x.py"), name=ODD)
    target = Target(name="RUN", folder=folder / "runs" / "RUN", cwd=str(folder))
    text = scheduler.render(job, target, scheduler.plan(job, ClusterProfile()))
    script = tmp_path / "script.sh"
    # Run it with another interpreter in the place of Python: what does it get?
    assert text.count("\nexec ") == 1
    script.write_text(text.replace("\nexec ", "\npwd\nprintf '%s\\0' "))
    done = subprocess.run(["bash", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{folder}\n")
    assert done.stdout.endswith(f"\nmain(is_local=True)\n\0{folder}/runs/RUN/submitit\0")
    assert not list(tmp_path.rglob("pwned"))


@pytest.fixture
def state():
    return lambda run: scheduler.conditions([run])[run.id].state


def identity(**changes):
    return msgspec.to_builtins(identify(os.getpid())) | changes


@pytest.fixture
def run_of(tmp_path):
    """A run whose submission and agents are the given processes."""

    def make(*, controller=None, agents=()):
        run = Run.create(tmp_path, "x")
        if controller is not None:
            run.submission_file.write_text(json.dumps({"process": controller}))
        for node, agent in enumerate(agents):
            run.agent_file(node).write_text(json.dumps({"node": node, "process": agent}))
        return run

    return make


def test_states_from_processes(run_of, state):
    mine, reused = identity(), identity(start_ticks=1)
    assert state(run_of(controller=mine)) == "pending"
    assert state(run_of(controller=mine, agents=[mine])) == "running"
    assert state(run_of(controller=reused, agents=[reused, mine])) == "running"
    assert state(run_of(controller=mine, agents=[reused])) == "lost"
    assert state(run_of(controller=identity(boot_id="before"), agents=[])) == "lost"
    run = run_of()
    assert state(run) == "pending"  # it is being submitted
    os.utime(run.path, (time.time() - 3600,) * 2)
    assert state(run) == "lost"


def test_a_run_on_another_host_is_not_lost_and_not_cancelled_from_here(run_of, state):
    elsewhere = identity(host="elsewhere")
    run = run_of(controller=elsewhere, agents=[elsewhere])
    assert state(run) == "running"
    assert state(run_of(controller=elsewhere)) == "pending"
    with pytest.raises(SchedulerError, match="the run is on host elsewhere"):
        scheduler.cancel([run])
    assert run.read_verdict() is None
