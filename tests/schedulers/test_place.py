"""The place of an agent in its job, as each scheduler tells it."""

import socket

import pytest

from hpcdist.schedulers import load_scheduler

SLURM = {
    "SUBMITIT_EXECUTOR": "slurm",
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURMD_NODENAME": "n7",
    "SLURM_CPUS_PER_TASK": "6",
}


@pytest.fixture
def environment(monkeypatch):
    def make(values):
        for name in SLURM:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return make


def test_srun_tells_a_task_its_node(environment):
    environment(SLURM)
    place = load_scheduler("slurm").place()
    assert (place.node_rank, place.num_nodes, place.host, place.cpus) == (3, 4, "n7", 6)


def test_what_srun_does_not_tell_is_not_known(environment):
    environment({name: SLURM[name] for name in ("SUBMITIT_EXECUTOR", "SLURM_JOB_ID")})
    place = load_scheduler("slurm").place()
    assert (place.node_rank, place.num_nodes, place.cpus) == (0, None, None)
    assert place.host == socket.gethostname()
