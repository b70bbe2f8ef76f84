"""Lightning in ranks: users' scripts as they are, and the job, whatever the scheduler has set."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from hpcdist import submission
from hpcdist.job import load_job
from hpcdist.launch.node import Meeting, rank_environment

SCRIPT = Path(__file__).with_name("lightning_script.py")
LIMIT_S = 110.0

OF_SCHEDULERS = {
    # sbatch --ntasks 2, seen from a step of one task per node
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NAME": "train",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    # jsrun, with a world of its own
    "LSB_JOBID": "5",
    "LSB_DJOB_RANKFILE": "/nonexistent",
    "JSM_NAMESPACE_RANK": "3",
    "JSM_NAMESPACE_LOCAL_RANK": "3",
    "JSM_NAMESPACE_SIZE": "9",
}


@pytest.fixture
def launch(zygote_with_lightning, launch_from):
    """Start a script in ranks that have Lightning already: each takes seconds to import it."""
    return launch_from(zygote_with_lightning)


def told(launched, rank):
    lines = launched.log(rank).splitlines()
    return json.loads(next(line for line in lines if line.startswith("told:")).partition(" ")[2])


def assert_trained_together(launched, world_size):
    assert launched.verdict(LIMIT_S).kind == "done", launched.everything_said()
    found = [told(launched, rank) for rank in range(world_size)]
    assert [one["rank"] for one in found] == list(range(world_size))
    assert {one["world_size"] for one in found} == {world_size}
    assert {one["steps"] for one in found} == {8 // world_size}
    assert all(one["weights"] == found[0]["weights"] for one in found)


@pytest.mark.parametrize(
    ("options", "nodes", "gpus"),
    [
        pytest.param({}, 2, 2, id="nothing-said"),
        pytest.param({}, 1, 2, id="nothing-said-on-one-node"),
        pytest.param({"devices": 2, "num_nodes": 2}, 2, 2, id="devices-and-nodes"),
        pytest.param({"devices": "auto"}, 2, 1, id="devices-auto"),
        pytest.param({"strategy": "ddp"}, 1, 2, id="strategy-ddp"),
    ],
)
def test_a_users_trainer_trains_over_all_ranks(launch, options, nodes, gpus):
    launched = launch(SCRIPT, json.dumps(options), nodes=nodes, gpus=gpus)
    assert_trained_together(launched, nodes * gpus)


def test_variables_of_schedulers_confuse_no_users_trainer(submit, monkeypatch):
    """Here Lightning is imported with these variables set, as on a cluster."""
    for name, value in OF_SCHEDULERS.items():
        monkeypatch.setenv(name, value)
    assert_trained_together(submit(SCRIPT, "{}", gpus=2), 2)


def test_devices_that_differ_from_the_run_end_it_with_both_numbers(launch):
    launched = launch(SCRIPT, json.dumps({"devices": 2, "num_nodes": 1}), nodes=2, gpus=2)
    verdict = launched.verdict(LIMIT_S)
    assert verdict.exception == "ValueError"
    assert "(2 * 1) does not match the world size (4)" in verdict.message


def test_what_a_user_has_set_for_trainers_stays(monkeypatch):
    monkeypatch.setenv("PL_TRAINER_DEVICES", "1")
    meeting = Meeting(
        attempt=0,
        restart_count=0,
        master_addr="127.0.0.1",
        master_port=20000,
        device="cpu",
        backend="gloo",
    )
    variables = rank_environment(
        node_rank=0,
        num_nodes=3,
        local_rank=0,
        ranks_per_node=2,
        meeting=meeting,
        run_id="run",
        max_restarts=0,
        interface=None,
    )
    assert variables["PL_TRAINER_DEVICES"] == "1"
    assert variables["PL_TRAINER_NUM_NODES"] == "3"


@pytest.fixture
def submit_job(tmp_path, launched_run):
    """Submit the shipped job, made short."""
    started = []

    def start(**sections):
        loaded = load_job("lightning")
        job = loaded.job
        values = {"train": {"epochs": 1, "max_steps": 4}, "launch": {"device": "cpu"}, **sections}
        for name, section in values.items():
            changed = msgspec.structs.replace(getattr(job, name), **section)
            job = msgspec.structs.replace(job, **{name: changed})
        plan = submission.plan_submission(
            msgspec.structs.replace(loaded, job=job), scheduler="local"
        )
        run = submission.submit(plan, runs=tmp_path / "runs", command=["hpcdist"]).run
        started.append(launched_run(run))
        return started[-1]

    yield start
    for launched in started:
        launched.kill_agents()


def test_the_job_runs_on_two_nodes_whatever_schedulers_have_set(submit_job, monkeypatch):
    for name, value in OF_SCHEDULERS.items():
        monkeypatch.setenv(name, value)
    launched = submit_job(resources={"nodes": 2, "gpus": 2})
    assert launched.verdict(LIMIT_S).kind == "done", launched.everything_said()
    for rank in range(4):
        events = {event["event"] for event in launched.events(rank)}
        assert {"start", "setup", "steps", "evaluate", "epoch", "end"} <= events
        assert launched.events(rank)[-1]["step"] == 4
    assert [path.name for path in launched.run.checkpoints_folder.iterdir()] == [
        "step-00000004.ckpt"
    ]
    assert launched.log(0).startswith("epoch 0/1 and 512 samples  loss ")
    assert launched.logs()[1:] == ["", "", ""]


def test_the_import_of_lightning_leaves_no_thread_and_no_cuda_before_the_fork():
    """In a process like the forkserver; the ranks are forked from it."""
    code = (
        "import importlib, os, sys\n"
        "from hpcdist import workloads\n"
        "from hpcdist.spec import LightningJob\n"
        "names = workloads.preload(LightningJob(name='x')).modules\n"
        "for name in names: importlib.import_module(name)\n"
        "import torch\n"
        "print(len(os.listdir('/proc/self/task')), torch.cuda.is_initialized())\n"
        "print('pytorch_lightning' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        # OpenBLAS starts a thread for each further CPU, and sees to it that forks are safe.
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split() == ["1", "False", "True"], done.stdout
