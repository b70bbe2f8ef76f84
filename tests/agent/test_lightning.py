"""Lightning in ranks: users' scripts as they are, and the job, whatever the scheduler has set."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from submitting import submit_run

from hpcdist.job import load_job
from hpcdist.rank.lightning_defaults import added_arguments

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
    assert all(one["testing"] == [1, 8] for one in found)
    assert {one["fabric"] for one in found} == {world_size}
    assert {one["fabric_of_one"] for one in found} == {1}
    assert all(one["variables"] == [] for one in found)  # nothing that child processes would read


@pytest.mark.parametrize(
    ("options", "nodes", "gpus"),
    [
        pytest.param({}, 2, 2, id="nothing-said"),
        pytest.param({}, 1, 2, id="nothing-said-on-one-node"),
        pytest.param({"devices": 2, "num_nodes": 2}, 2, 2, id="devices-and-nodes"),
        pytest.param({"devices": 2}, 2, 2, id="devices-of-each-node"),
        pytest.param({"devices": "auto", "num_nodes": 1}, 2, 1, id="as-the-command-line-gives-it"),
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


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({}, {"devices": 2, "num_nodes": 3}),
        ({"devices": "auto"}, {"devices": 2, "num_nodes": 3}),
        ({"devices": -1, "num_nodes": 1}, {"devices": 2, "num_nodes": 3}),
        ({"num_nodes": 2}, {"devices": 2}),
        ({"devices": 2}, {"num_nodes": 3}),
        ({"devices": "2"}, {"num_nodes": 3}),
        ({"devices": [0, 1]}, {"num_nodes": 3}),
        ({"devices": "0, 1"}, {"num_nodes": 3}),
        ({"devices": 2, "num_nodes": 1}, {}),
        ({"devices": 1}, {}),
        ({"devices": [1]}, {}),
        ({"devices": "0,"}, {}),
        ({"devices": 4}, {}),
        ({"strategy": "ddp_find_unused_parameters_true"}, {"devices": 2, "num_nodes": 3}),
        ({"strategy": "ddp_spawn"}, {}),
        ({"strategy": "dp"}, {}),
    ],
    ids=str,
)
def test_only_what_a_caller_leaves_open_is_filled_in(given, added):
    assert added_arguments(given, local_world_size=2, num_nodes=3) == added


USERS_TRAINERS = """
import inspect, os, sys
import importlib
exec("")  # nothing is known of what follows, so that it is imported after the fork
assert "pytorch_lightning" not in sys.modules
lightning = importlib.import_module("pytorch_lightning")
fabric = importlib.import_module("lightning_fabric")
Trainer, Fabric = lightning.Trainer, fabric.Fabric
strategies = importlib.import_module("pytorch_lightning.strategies")
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}

class Own(Trainer):
    def __init__(self, *args, depth=1, **kwargs):
        super().__init__(*args, **kwargs, **QUIET)

def worlds(**variables):
    os.environ.update(variables)
    sizes = [Trainer(**QUIET).world_size, Fabric().world_size]
    for name in variables:
        del os.environ[name]
    return sizes

assert worlds() == [4, 4]
assert worlds(PL_TRAINER_DEVICES="1", LT_DEVICES="1") == [1, 1]
assert worlds(PL_TRAINER_NUM_NODES="2", LT_NUM_NODES="2") == [4, 4]
assert worlds(LT_DEVICES="2") == [4, 4]
assert Own(depth=2).world_size == 4
assert Own(devices=1).world_size == 1
assert Trainer("cpu", "auto", 1, **QUIET).world_size == 1
assert Trainer("cpu", **QUIET).world_size == 4
assert Trainer(strategy=strategies.DDPStrategy(), **QUIET).world_size == 4
assert Trainer(strategy=strategies.SingleDeviceStrategy(), **QUIET).world_size == 1
assert list(inspect.signature(Trainer).parameters)[:4] == [
    "accelerator", "strategy", "devices", "num_nodes"
]
assert inspect.getsource(Trainer.__init__).strip().startswith("@_defaults_from_env_vars")
spec = sys.modules[Trainer.__module__].__spec__
assert type(spec.loader).__name__ == "SourceFileLoader"
run_id = os.environ.pop("TORCHELASTIC_RUN_ID")  # to have a process by itself
os.environ.pop("WORLD_SIZE")
assert Trainer(**QUIET).world_size == 1
"""


def test_what_a_user_says_comes_first_however_a_trainer_is_made(submit, write_script):
    launched = submit(write_script(USERS_TRAINERS), nodes=2, gpus=2)
    assert launched.verdict(LIMIT_S).kind == "done", launched.everything_said()


def test_the_package_lightning_trains_over_all_ranks_too(submit, write_script):
    pytest.importorskip("lightning")
    text = SCRIPT.read_text()
    for name in ("lightning_fabric", "pytorch_lightning"):
        text = text.replace(f"from {name} import", "from lightning import")
    assert_trained_together(submit(write_script(text), "{}", nodes=2), 2)


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
        run = submit_run(msgspec.structs.replace(loaded, job=job), tmp_path / "runs")
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
        "from hpcdist.workloads import load_workload\n"
        "from hpcdist.job.spec import LightningJob\n"
        "names = load_workload(LightningJob(name='x')).preload().modules\n"
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
