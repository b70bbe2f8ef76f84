"""What a rank finds: torchrun's variables, its CPUs, a port of its own."""

import os
from pathlib import Path

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


def ephemeral_range():
    low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return range(int(low), int(high) + 1)


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 1), (1, 4), (2, 2), (4, 1)])
def test_every_rank_sees_its_place_by_the_names_that_torchrun_uses(
    launch, write_script, nodes, gpus
):
    launched = launch(write_script(TELL), nodes=nodes, gpus=gpus, max_restarts=3)
    assert launched.verdict().kind == "done", launched.everything_said()
    world_size = nodes * gpus
    ports = set()
    for rank in range(world_size):
        env = launched.said(rank)[0]["env"]
        expected = {
            "RANK": rank,
            "WORLD_SIZE": world_size,
            "LOCAL_RANK": rank % gpus,
            "LOCAL_WORLD_SIZE": gpus,
            "GROUP_RANK": rank // gpus,
            "GROUP_WORLD_SIZE": nodes,
            "NODE_RANK": rank // gpus,
            "ROLE_NAME": "default",
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": world_size,
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RUN_ID": launched.run.id,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 3,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_ERROR_FILE": launched.run.error_file(rank),
        }
        assert {name: env[name] for name in expected} == {k: str(v) for k, v in expected.items()}
        ports.add(int(env["MASTER_PORT"]))
    assert len(ports) == 1
    assert ports.isdisjoint(ephemeral_range())


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
