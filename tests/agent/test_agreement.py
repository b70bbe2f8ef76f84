"""What nodes and ranks must agree on before they meet, the addresses by which they may, and the
environment of a rank; torchrun's variables are in tests/conformance and tests/foreign."""

import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from rank_places import environment_of, place

from hpcdist.agent.node import (
    CannotLaunchError,
    NodeFacts,
    OwnNode,
    RankMeeting,
    agree,
    rank_orders,
)
from hpcdist.job.spec import Launch
from hpcdist.machine.network import NoSuchInterfaceError, offered_addresses
from hpcdist.runs.run import Run
from hpcdist.runs.spec import LaunchPlan, NodePlan
from hpcdist.schedulers.base import JobPlace


def facts(node, **changes):
    values = {"host": f"n{node}", "num_nodes": 2, "device": "cuda", "master_addr": "10.0.0.1"}
    return NodeFacts(node=node, gpus=[f"GPU-{node}a", f"GPU-{node}b"], **values | changes)


@pytest.mark.parametrize(
    ("reached", "device", "expected"),
    [
        (["127.0.0.1"], "cpu", ("127.0.0.1", "127.0.0.1", "gloo")),  # alone
        (["127.0.1.1", "10.0.0.1", "10.0.0.1"], "cuda", ("10.0.0.1", "10.0.0.1", "nccl")),
        (["127.0.1.1", "10.0.0.1", "10.1.0.1"], "cpu", ("10.0.0.1", "", "gloo")),
    ],
    ids=["alone", "by one address", "by several, on all"],
)
def test_nodes_that_are_alike_agree(reached, device, expected):
    nodes = {node: facts(node, master_addr=address) for node, address in enumerate(reached)}
    nodes = {node: replace(one, num_nodes=len(nodes), device=device) for node, one in nodes.items()}
    found = agree(nodes, "auto")
    assert (found.master_addr, found.bind_to, found.backend) == expected


@pytest.mark.parametrize(
    ("first", "changes", "words"),
    [
        (
            {},
            {"device": "cpu"},
            "node 1 (host n1) has device cpu, node 0 (host n0) has device cuda",
        ),
        ({}, {"num_nodes": 3}, "node 1 (host n1) belongs to a job of 3 nodes, and 2 agents"),
        ({"num_nodes": 5}, {"num_nodes": 5}, "a job of 5 nodes, and 2 agents have joined"),
        ({"device": "cpu"}, {"device": "cpu"}, "launch.backend is nccl, but the nodes show no GPU"),
    ],
)
def test_a_node_that_differs_is_named_with_what_differs(first, changes, words):
    with pytest.raises(CannotLaunchError) as caught:
        agree({0: facts(0, **first), 1: facts(1, **changes)}, "nccl")
    assert words in str(caught.value)


def own_node(ranks=1, *, device="cpu", num_nodes=1, gpus=None, cpus_of_job=None, **plan):
    job = SimpleNamespace(
        ranks_per_node=ranks,
        cpus_per_rank=None,
        launch=Launch(),
        resources=SimpleNamespace(gpus=gpus or ranks),
    )
    plan = LaunchPlan(nodes=[NodePlan()] * num_nodes, device=device, backend="auto", **plan)
    return OwnNode(job, plan, JobPlace(node_rank=0, host="h", cpus=cpus_of_job))


def test_ranks_of_a_node_that_is_alone_listen_on_loopback_whatever_the_profile_says():
    assert own_node(interface="ib0").interface_of("127.0.0.1") == "lo"
    assert own_node(num_nodes=2, interface="ib0").interface_of("127.0.0.1") == "ib0"
    assert own_node(num_nodes=2).interface_of("127.0.1.9") == "lo"


@pytest.mark.parametrize(
    ("device", "ranks", "gpus", "expected"),
    [
        ("auto", 2, None, ("cuda", ["MIG-a", "MIG-b"])),
        ("cpu", 3, None, ("cpu", [])),
        # A rank that drives several gets those asked for.
        ("auto", 1, 2, ("cuda", ["MIG-a", "MIG-b"])),
    ],
)
def test_parts_of_gpus_count_as_gpus(monkeypatch, device, ranks, gpus, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b,MIG-c")
    assert own_node(ranks, gpus=gpus, device=device).find_device() == expected
    with pytest.raises(CannotLaunchError, match="3 GPUs for 4 ranks"):
        own_node(4, device="auto").find_device()


def orders_of(node, **options):
    meeting = RankMeeting(device=node.plan.device, backend="auto", nodes=(0,))
    return rank_orders(Run(Path("x")), node, interface=None, meeting=meeting, **options)


def test_each_rank_is_told_its_gpus():
    cases = {2: [("cuda:0", "a", 1), ("cuda:1", "b", 1)], 1: [("cuda:0", "a", 2)]}
    for ranks, expected in cases.items():
        orders = orders_of(own_node(ranks, device="cuda"), gpus=["a", "b"])
        assert [(order.device, order.gpu, order.num_gpus) for order in orders] == expected


def test_ranks_of_a_job_that_is_bound_to_no_cpus_are_bound_to_none(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    orders = orders_of(own_node(2, cpus_of_job=6))
    assert [(order.cpus, order.num_cpus) for order in orders] == [((), 6)] * 2


def test_node_0_offers_its_own_name_first_and_loopback_last_or_one_interface_alone():
    offered = offered_addresses(socket.gethostname(), None)
    assert offered[-1] in {"127.0.0.1", "::1"}
    assert offered_addresses("127.0.1.7", None)[0] == "127.0.1.7"
    assert offered_addresses("no-such-host.invalid", None)
    assert "127.0.0.1" in offered_addresses("whatever", "lo")
    with pytest.raises(NoSuchInterfaceError, match=r"no interface ib9.*lo"):
        offered_addresses("whatever", "ib9")


OWN = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCH_FR_BUFFER_SIZE")


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ({}, ["lo", "lo", "2000"]),
        ({"NCCL_SOCKET_IFNAME": "ib0"}, ["lo", "ib0", "2000"]),
        ({"TORCH_FR_BUFFER_SIZE": "0"}, ["lo", "lo", None]),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, ["lo", "lo", None]),  # of torch 2.7
    ],
)
def test_what_the_user_has_set_stays(monkeypatch, before, expected):
    for name in OWN:
        monkeypatch.delenv(name, raising=False)
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    variables = environment_of(place())
    assert [variables.get(name) for name in OWN] == expected
