"""Nodes with networks of their own: names that mislead, two interfaces, and a cut."""

import json

import pytest
from cluster_user import CPU, User, events, printed
from counting import ELASTIC_COUNT, await_counting
from interruptions import hosts

ALL_REDUCE = """\
import json, os, socket
import torch
import torch.distributed as dist
dist.init_process_group()
total = torch.ones(1000)
dist.all_reduce(total)
port = int(os.environ["MASTER_PORT"])
entries = [line.split() for line in open("/proc/net/tcp").readlines()[1:]]
store = [
    socket.inet_ntoa(int(address, 16).to_bytes(4, "little"))
    for address, number in (entry[1].split(":") for entry in entries if entry[3] == "0A")
    if int(number, 16) == port
]
own = {"sum": total[0].item(), "store": store, "pid": os.getpid()}
print(json.dumps(dict(os.environ) | own), flush=True)
"""


@pytest.mark.timeout(300)
def test_nodes_are_reached_by_their_own_interfaces_and_go_on_without_one_that_is_cut_off(
    slurm_netns, tmp_path
):
    """Each node's own name is loopback to it, as in Debian, and docker0 has one address on all. The
    node that is cut off can still write the run's directory, and spoils nothing."""
    user = User(slurm_netns, tmp_path)
    script = user.write("count.py", ALL_REDUCE + ELASTIC_COUNT)
    keys = ("launch.min_nodes=1", "launch.agent_timeout_s=10", "launch.grace_s=1")
    sets = [word for key in keys for word in ("--set", key)]
    run = user.submit(script, *CPU, "--nodes", 3, "--gpus", 1, *sets)
    for rank in range(3):
        user.wait_for_line(run, '"store"', rank=rank)
    said = [printed(run, rank) for rank in range(3)]
    (address,) = {one["MASTER_ADDR"] for one in said}
    # Not on the other interfaces: the store asks for no password.
    assert [one["store"] for one in said] == [[address], [], []]
    assert [one["sum"] for one in said] == [3.0] * 3
    assert [one["NODE_RANK"] for one in said] == ["0", "1", "2"]
    names = [one["SLURMD_NODENAME"] for one in said]
    assert names == hosts(user, run)
    assert f"{address} {names[0]}" in slurm_netns.run("cat", "/etc/hosts").stdout
    assert {one[f"{kind}_SOCKET_IFNAME"] for one in said for kind in ("GLOO", "NCCL")} == {"eth0"}
    agents = [json.loads(run.agent_file(node).read_text()) for node in range(3)]
    assert [(one["host"], one["interface"]) for one in agents] == [(n, "eth0") for n in names]

    slurm_netns.order("cut_link", names[1])
    try:
        await_counting(user, run, 1)
        assert [events(run, "start", rank=rank)[1]["node"] for rank in range(2)] == [0, 2]
        user.write("gate", "")
        verdict = user.verdict(run)
        assert (verdict.state, verdict.attempt) == ("done", 1), verdict.message
        lost = run.read_attempt_verdict(0)
        assert (lost.kind, lost.node, lost.host) == ("agent_lost", 1, names[1])
        alive = ("kill", "-0", said[1]["pid"])
        user.cluster.wait_for(lambda: user.cluster.run(*alive, check=False).returncode)
    finally:
        slurm_netns.order("mend_link", names[1])
    assert (run.newest_attempt(), run.read_verdict()) == (1, verdict)
    slurm_netns.wait_until_idle(120)  # Slurm looks at a host that is gone only now and then
