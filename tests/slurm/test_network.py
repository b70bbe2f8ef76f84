"""Names that mislead, and hosts with several interfaces: the ranks find each other all the same."""

import json

from cluster_user import User, job_id, printed

ALL_REDUCE = """\
import json, os
import torch
import torch.distributed as dist
dist.init_process_group()
total = torch.ones(1000)
dist.all_reduce(total)
names = ("MASTER_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NODE_RANK")
print(json.dumps({name: os.environ[name] for name in names} | {"sum": total[0].item()}))
dist.destroy_process_group()
"""


def all_reduce(user, *, nodes=2):
    script = user.write("sum.py", ALL_REDUCE)
    run = user.done(user.submit(script, "--nodes", nodes, "--gpus", 2))
    shown = [printed(run, rank) for rank in range(2 * nodes)]
    assert [one["sum"] for one in shown] == [2.0 * nodes] * len(shown)
    assert [one["NODE_RANK"] for one in shown] == [str(rank // 2) for rank in range(2 * nodes)]
    return run, shown


def test_node_names_that_nothing_resolves_do_no_harm(slurm_names, tmp_path):
    all_reduce(User(slurm_names, tmp_path))


def test_every_node_is_reached_by_its_own_interface(slurm_netns, tmp_path):
    run, shown = all_reduce(User(slurm_netns, tmp_path), nodes=3)
    hosts = slurm_netns.run("cat", "/etc/hosts").stdout
    (address,) = {one["MASTER_ADDR"] for one in shown}
    assert f"{address} n1" in " ".join(hosts.split())
    assert {one["GLOO_SOCKET_IFNAME"] for one in shown} == {"eth0"}
    assert {one["NCCL_SOCKET_IFNAME"] for one in shown} == {"eth0"}
    for node in range(3):
        said = json.loads(run.agent_file(node).read_text())
        assert (said["host"], said["interface"]) == (f"n{node + 1}", "eth0")


def test_own_names_that_resolve_to_loopback_do_no_harm(slurm_netns, tmp_path):
    with slurm_netns.own_names_are_loopback():
        _, shown = all_reduce(User(slurm_netns, tmp_path))
    (address,) = {one["MASTER_ADDR"] for one in shown}
    assert not address.startswith("127.")


def test_an_interface_that_is_not_there_ends_the_run_with_those_that_are(slurm_netns, tmp_path):
    user = User(slurm_netns, tmp_path)
    user.write("hpcdist.yaml", "clusters: {lab: {interface: ib7}}\n")
    run = user.submit(user.write("sum.py", ALL_REDUCE), "--nodes", 2, "--gpus", 1)
    verdict = user.verdict(run)
    assert verdict.kind == "launch"
    assert "ib7" in verdict.message
    assert "eth0" in verdict.message
    slurm_netns.wait_for_end(job_id(run))
