"""Lightning in ranks: users' scripts as they are, and the job, whatever the scheduler has set."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from harness import start_run

from hpcdist.job.load import load_job

SCRIPT = Path(__file__).with_name("lightning_script.py")
LIMIT_S = 110.0


@pytest.fixture
def zygote(lightning_zygote):
    return lightning_zygote


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


def test_a_users_trainer_trains_over_all_ranks_whatever_schedulers_have_set(launch):
    assert_trained_together(launch(SCRIPT, "{}", nodes=2, gpus=2), 4)


IMPORTS = """
import importlib, os
from hpcdist.job.spec import LightningJob
from hpcdist.workloads import load_workload

for name in load_workload(LightningJob(name="x")).preload():
    importlib.import_module(name)
import torch
assert len(os.listdir("/proc/self/task")) == 1
assert not torch.cuda.is_initialized()
"""


def test_the_import_leaves_no_thread_and_no_cuda_before_the_fork(
    torch_zygote, run_script, write_script
):
    # OpenBLAS starts a thread for each further CPU, and sees to it that forks are safe.
    run_script(torch_zygote, write_script(IMPORTS), environment={"OMP_NUM_THREADS": "1"})


RANKS = """
import json, logging, os, threading
from pytorch_lightning.utilities import rank_zero_only
import torchmetrics.utilities.prints as prints
message = logging.makeLogRecord({})
print(json.dumps({
    "lightning": rank_zero_only.rank,
    "torchmetrics": prints.rank_zero_only.rank,
    "main_thread_is_of_the_process": threading.main_thread().native_id == os.getpid(),
}))
"""


def test_libraries_know_the_rank_although_imported_before(launch, write_script):
    launched = launch(write_script(RANKS), nodes=2, gpus=2)
    assert launched.verdict().kind == "done", launched.everything_said()
    found = [json.loads(launched.log(rank).splitlines()[-1]) for rank in range(4)]
    assert [one["lightning"] for one in found] == [0, 1, 2, 3]
    assert [one["torchmetrics"] for one in found] == [0, 1, 0, 1]
    assert all(one["main_thread_is_of_the_process"] for one in found)


def test_the_job_runs_on_two_nodes_whatever_schedulers_have_set(zygote, running, tmp_path):
    loaded = load_job("lightning")
    job = loaded.job
    for name, section in {
        "train": {"epochs": 1, "max_steps": 4},
        "launch": {"device": "cpu"},
        "resources": {"nodes": 2, "gpus": 2},
    }.items():
        changed = msgspec.structs.replace(getattr(job, name), **section)
        job = msgspec.structs.replace(job, **{name: changed})
    loaded = msgspec.structs.replace(loaded, job=job)
    launched = running(*start_run(zygote, loaded, tmp_path / "runs"))
    assert launched.verdict(LIMIT_S).kind == "done", launched.everything_said()
    for rank in range(4):
        events = {event["event"] for event in launched.events(rank)}
        assert {"start", "setup", "steps", "evaluate", "epoch", "end"} <= events
        assert launched.events(rank)[-1]["step"] == 4
    assert re.match(r"step (\d+)/\1 in epoch 1  loss ", launched.log(0))
    assert launched.logs()[1:] == ["", "", ""]
