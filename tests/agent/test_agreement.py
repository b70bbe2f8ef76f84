"""What nodes and ranks must agree on before they meet, and the addresses by which they may."""

import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from hpcdist.agent.meeting import MeetingPlace, usable_addresses
from hpcdist.agent.node import (
    CannotLaunchError,
    NodeFacts,
    OwnNode,
    RankMeeting,
    agree,
    find_device,
    rank_orders,
)
from hpcdist.job.spec import Launch
from hpcdist.machine.network import (
    NoSuchInterfaceError,
    interface_of,
    network_key,
    offered_addresses,
)
from hpcdist.runs.run import Run
from hpcdist.runs.spec import LaunchPlan, NodePlan
from hpcdist.schedulers.base import JobPlace


def facts(node, **changes):
    values = {"host": f"n{node}", "num_nodes": 2, "device": "cuda"}
    uuids = [f"GPU-{node}a", f"GPU-{node}b"]
    return NodeFacts(**{"node": node, "gpus": uuids, "master_addr": "10.0.0.1"} | values | changes)


def agreement(*nodes, backend="auto"):
    return agree({one.node: one for one in nodes}, backend)


def test_nodes_that_are_alike_agree():
    found = agreement(facts(0, master_addr="127.0.1.1"), facts(1))
    assert (found.master_addr, found.device, found.backend) == ("10.0.0.1", "cuda", "nccl")
    alone = agreement(facts(0, num_nodes=1, device="cpu", gpus=[], master_addr="127.0.0.1"))
    assert (alone.master_addr, alone.device, alone.backend) == ("127.0.0.1", "cpu", "gloo")


@pytest.mark.parametrize(
    ("reached", "expected"),
    [
        (["127.0.0.1"], "127.0.0.1"),  # alone
        (["127.0.1.1", "10.0.0.1", "10.0.0.1"], "10.0.0.1"),
        (["127.0.1.1", "10.0.0.1", "10.1.0.1"], ""),  # by several interfaces: on all
    ],
)
def test_the_store_listens_on_one_address_where_one_does(reached, expected):
    nodes = {node: facts(node, master_addr=address) for node, address in enumerate(reached)}
    nodes = {node: replace(one, num_nodes=len(nodes), device="cpu") for node, one in nodes.items()}
    assert agree(nodes, "auto").bind_to == expected


def test_ranks_of_a_node_that_is_alone_listen_on_loopback_whatever_the_profile_says():
    def interface(num_nodes, named, address):
        plan = LaunchPlan(
            nodes=[NodePlan()] * num_nodes, device="cpu", backend="gloo", interface=named
        )
        return OwnNode(None, plan, JobPlace(node_rank=0, host="h")).interface_of(address)

    assert interface(1, "ib0", "127.0.0.1") == "lo"
    assert interface(2, "ib0", "127.0.0.1") == "ib0"
    assert interface(2, None, "127.0.0.1") == "lo"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": "cpu", "gpus": []}, ["node 1 (host n1) has device cpu", "device cuda"]),
        ({"num_nodes": 3}, ["node 1 (host n1) belongs to a job of 3 nodes", "2 agents"]),
        ({"gpus": ["GPU-x", "GPU-0b"]}, ["node 0 (host n0) and node 1 (host n1)", "GPU-0b"]),
    ],
)
def test_a_node_that_differs_is_named_with_what_differs(changes, words):
    with pytest.raises(CannotLaunchError) as caught:
        agreement(facts(0), facts(1, **changes))
    assert all(word in str(caught.value) for word in words)


def test_a_job_with_more_nodes_than_agents_is_refused():
    with pytest.raises(CannotLaunchError, match="a job of 5 nodes, and 2 agents have joined"):
        agreement(facts(0, num_nodes=5), facts(1, num_nodes=5))


def test_nccl_without_gpus_is_refused():
    nodes = [facts(node, device="cpu", gpus=[]) for node in (0, 1)]
    with pytest.raises(CannotLaunchError, match="nccl"):
        agreement(*nodes, backend="nccl")


def test_parts_of_gpus_count_as_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b")
    assert find_device("auto", 2) == ("cuda", ["MIG-a", "MIG-b"])
    with pytest.raises(CannotLaunchError, match="2 GPUs for 3 ranks"):
        find_device("auto", 3)
    assert find_device("cpu", 3) == ("cpu", [])


def test_a_rank_that_drives_several_gpus_gets_those_asked_for_or_what_there_is(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b,MIG-c")
    assert find_device("auto", 1, 2) == ("cuda", ["MIG-a", "MIG-b"])
    assert find_device("auto", 1, 4) == ("cuda", ["MIG-a", "MIG-b", "MIG-c"])


def orders_of(ranks, device, *, cpus=None, cpus_of_job=None, **options):
    return rank_orders(
        Run(Path("x")),
        OwnNode(
            SimpleNamespace(ranks_per_node=ranks, cpus_per_rank=None, launch=Launch()),
            LaunchPlan(nodes=[NodePlan(rank_cpus=cpus)], device=device, backend="auto"),
            JobPlace(node_rank=0, host="h", cpus=cpus_of_job),
        ),
        interface=None,
        meeting=RankMeeting(
            attempt=0,
            restart_count=0,
            master_addr="127.0.0.1",
            master_port=20000,
            device=device,
            backend="auto",
        ),
        **options,
    )


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [([[0, 1], [2, 3]], 4), ([[0], [0]], 1), ([[0, 1], [0, 1]], 2)],
    ids=["own", "in turns", "shared"],
)
def test_each_rank_is_told_how_many_cpus_its_node_has_for_all(cpus, expected):
    orders = orders_of(2, "cpu", cpus=cpus)
    assert [list(order.cpus) for order in orders] == cpus
    assert [order.num_cpus for order in orders] == [expected] * 2


def test_ranks_of_a_job_that_is_not_bound_to_its_cpus_know_their_number(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    orders = orders_of(2, "cpu", cpus_of_job=6)
    assert [(order.cpus, order.num_cpus) for order in orders] == [((), 6)] * 2


@pytest.mark.parametrize(
    ("ranks", "gpus", "expected"),
    [
        (2, ["a", "b"], [("cuda:0", "a", 1), ("cuda:1", "b", 1)]),
        (1, ["a", "b"], [("cuda:0", "a", 2)]),
        (1, ["a"], [("cuda:0", "a", 1)]),
    ],
    ids=["one each", "two for one rank", "one for one rank"],
)
def test_each_rank_is_told_its_gpus(ranks, gpus, expected):
    orders = orders_of(ranks, "cuda", gpus=gpus)
    assert [(order.device, order.gpu, order.num_gpus) for order in orders] == expected


def test_node_0_offers_its_own_name_first_and_loopback_last():
    offered = offered_addresses(socket.gethostname(), None)
    assert offered[-1] in {"127.0.0.1", "::1"}
    assert offered_addresses("127.0.1.7", None)[0] == "127.0.1.7"
    assert offered_addresses("no-such-host.invalid", None)


def test_an_interface_by_name_is_the_only_one():
    assert "127.0.0.1" in offered_addresses("whatever", "lo")
    with pytest.raises(NoSuchInterfaceError, match=r"no interface ib9.*lo"):
        offered_addresses("whatever", "ib9")
    assert interface_of("127.0.1.9") == "lo"


def test_loopback_is_of_use_only_on_the_host_itself():
    def usable(network, *addresses):
        place = MeetingPlace(addresses=list(addresses), network=network, port=1, secret="")
        return usable_addresses(place)

    assert usable(network_key(), "127.0.1.1", "10.0.0.1") == ["127.0.1.1", "10.0.0.1"]
    assert usable("other", "127.0.1.1", "10.0.0.1") == ["10.0.0.1"]
    with pytest.raises(CannotLaunchError, match=r"127\.0\.1\.1"):
        usable("other", "127.0.1.1")
