"""The environment of a rank; torchrun's variables are in tests/conformance and tests/foreign."""

import os

import pytest
from rank_places import environment_of, place

from hpcdist.agent.node import OwnNode
from hpcdist.job.spec import TrainJob
from hpcdist.runs.spec import LaunchPlan, NodePlan
from hpcdist.schedulers.base import JobPlace

TELL = """
import json, os
print(json.dumps({"env": dict(os.environ), "cpus": sorted(os.sched_getaffinity(0))}))
"""


def test_cpus_are_shared_out_and_threads_fit_them(launch, write_script):
    usable = os.sched_getaffinity(0)
    launched = launch(write_script(TELL), gpus=2)
    assert launched.verdict().kind == "done"
    first, second = (launched.said(rank)[0] for rank in (0, 1))
    assert set(first["cpus"]) | set(second["cpus"]) <= usable
    if len(usable) >= 2:
        assert not set(first["cpus"]) & set(second["cpus"])
        assert first["env"]["OMP_NUM_THREADS"] == str(len(usable) // 2)


def interfaces():
    variables = environment_of(place())
    return [variables[f"{library}_SOCKET_IFNAME"] for library in ("GLOO", "NCCL")]


def test_a_network_interface_that_the_user_has_set_stays(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    assert interfaces() == ["lo", "lo"]
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    assert interfaces() == ["lo", "ib0"]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth1")
    assert interfaces() == ["eth1", "ib0"]


@pytest.mark.parametrize(
    ("device", "before", "expected"),
    [
        ("cuda", {}, "1"),
        ("cuda", {"PYTORCH_NVML_BASED_CUDA_CHECK": "0"}, None),
        ("cpu", {}, None),
    ],
)
def test_asking_for_cuda_starts_no_cuda_before_the_fork(device, before, expected):
    plan = LaunchPlan(nodes=[NodePlan()], device=device, backend="gloo")
    node = OwnNode(TrainJob(name="job"), plan, JobPlace(node_rank=0, host="h"))
    variables = node.environment(before)
    assert variables.get("PYTORCH_NVML_BASED_CUDA_CHECK") == expected
