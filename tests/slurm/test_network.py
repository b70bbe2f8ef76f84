"""Names that mislead, hosts with several interfaces, and nodes that are cut off."""

import json

import pytest
from cluster_user import CPU, User, events, job_id, log, printed
from counting import ELASTIC_COUNT, await_counting, count
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
print(json.dumps(dict(os.environ) | {"sum": total[0].item(), "store": store}))
dist.destroy_process_group()
"""


def all_reduce(user):
    script = user.write("sum.py", ALL_REDUCE)
    run = user.done(user.submit(script, "--nodes", 2, "--gpus", 1))
    shown = [printed(run, rank) for rank in range(2)]
    assert [one["sum"] for one in shown] == [2.0] * 2
    assert [one["NODE_RANK"] for one in shown] == ["0", "1"]
    assert [one["SLURMD_NODENAME"] for one in shown] == ["n1", "n2"]
    return run, shown


def test_every_node_is_reached_by_its_own_interface_also_where_its_name_is_loopback(
    slurm_netns, tmp_path
):
    with slurm_netns.own_names_are_loopback():
        run, shown = all_reduce(User(slurm_netns, tmp_path))
    hosts = slurm_netns.run("cat", "/etc/hosts").stdout
    (address,) = {one["MASTER_ADDR"] for one in shown}
    # Not on the other interfaces: the store asks for no password.
    assert [one["store"] for one in shown] == [[address], []]
    assert f"{address} n1" in " ".join(hosts.split())
    assert {one["GLOO_SOCKET_IFNAME"] for one in shown} == {"eth0"}
    assert {one["NCCL_SOCKET_IFNAME"] for one in shown} == {"eth0"}
    for node in range(2):
        said = json.loads(run.agent_file(node).read_text())
        assert (said["host"], said["interface"]) == (f"n{node + 1}", "eth0")


def test_an_interface_that_is_not_there_ends_the_run_with_those_that_are(slurm_netns, tmp_path):
    user = User(slurm_netns, tmp_path)
    user.write("hpcdist.yaml", "clusters: {lab: {interface: ib7}}\n")
    run = user.submit(user.write("nothing.py", ""), "--nodes", 2, "--gpus", 1)
    verdict = user.verdict(run)
    assert verdict.kind == "launch"
    assert "ib7" in verdict.message
    assert "eth0" in verdict.message
    slurm_netns.wait_for_end(job_id(run))


@pytest.mark.timeout(300)
def test_a_node_that_is_only_cut_off_can_spoil_nothing(slurm_netns, tmp_path):
    """Its rank may come to its end meanwhile; what training would save is refused to it.

    Node 0's agent notices before Slurm, which sites let wait for minutes."""
    user = User(slurm_netns, tmp_path)
    with slurm_netns.settings(SlurmdTimeout=120):
        run = count(user, "--set", "launch.agent_timeout_s=20")
        name = hosts(user, run)[1]
        slurm_netns.cut_link(name)
        try:
            lost = user.cluster.wait_for(lambda: run.read_attempt_verdict(0))
            user.cluster.give_up_node(name)
            user.cluster.wait_for(lambda: run.newest_attempt() == 1, 120)
            await_counting(user, run, 1)
            assert name not in hosts(user, run)
            user.write("gate", "")
            user.done(run)
        finally:
            slurm_netns.mend_link(name)
    assert (run.newest_attempt(), lost.kind, lost.node, lost.host) == (1, "agent_lost", 1, name)
    (row,) = json.loads(user("summary", run.id, "--json").stdout)
    assert (row["state"], row["world_size"], len(row["attempts"])) == ("done", 2, 2)
    assert all("counted from 0\n" in log(run, rank) for rank in range(2))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("cut", [0, 1], ids=["the leader", "another"])
def test_of_a_run_whose_network_is_cut_one_part_goes_on(slurm_netns, tmp_path, cut):
    """Both can still write the run's directory; the scheduler is with the larger one."""
    user = User(slurm_netns, tmp_path)
    script = user.write("count.py", ELASTIC_COUNT)
    keys = ("launch.min_nodes=1", "launch.agent_timeout_s=20", "launch.grace_s=1")
    sets = [word for key in keys for word in ("--set", key)]
    run = user.submit(script, *CPU, "--nodes", 3, "--gpus", 1, *sets)
    await_counting(user, run, num_ranks=3)
    name = hosts(user, run)[cut]
    slurm_netns.cut_link(name)
    try:
        user.cluster.wait_for(lambda: run.newest_attempt() == 1, 150)
        await_counting(user, run, 1)
        left = [one for one in range(3) if one != cut]
        started = [events(run, "start", rank=rank)[1]["node"] for rank in range(2)]
        assert started == left
        assert run.read_beginning(1).leader in left
        user.write("gate", "")
        verdict = user.verdict(run)
        assert (verdict.state, verdict.attempt) == ("done", 1), verdict.message
        assert "went on with 2 of 3 nodes since" in verdict.message
        slurm_netns.wait_for_end(job_id(run))
    finally:
        slurm_netns.mend_link(name)
    assert run.newest_attempt() == 1
    slurm_netns.wait_until_idle(120)  # Slurm looks at a host that is gone only now and then
