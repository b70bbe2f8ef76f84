"""Nodes that are slow, or whose GPUs are gone: found, written down, and left out."""

from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_user import CPU, TWO, User, job_id
from interruptions import hosts
from slurm_cluster import processes

from hpcdist.runs import nodes

GROUPS = Path("/sys/fs/cgroup/cpu")


@pytest.fixture
def user(slurm, tmp_path):
    return User(slurm, tmp_path)


@contextmanager
def slow(slurm, node, missing):
    """While open, what the node starts gets a tenth of a CPU."""
    group = GROUPS / f"hpcdist-test-{slurm.spec.path.name}"
    pid = int((slurm.spec.path / "run" / f"slurmd.{node}.pid").read_text())
    try:
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text("10000")
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        missing(f"no group of CPU time can be made here: {error}")
    yield
    for one in (group / "cgroup.procs").read_text().split():
        (GROUPS / "cgroup.procs").write_text(one)
    group.rmdir()


PRINT = 'print("worked", flush=True)\n'


def test_a_slow_node_fails_the_preflight_and_the_job_goes_on_without_it(user, missing):
    bad = user.cluster.nodes[1]
    wanted = ("--set", "launch.preflight=true", "--nodes", 3, "--gpus", 1)
    with slow(user.cluster, bad, missing):
        run = user.submit(user.write("work.py", PRINT), *CPU, *wanted)
        verdict = user.cluster.wait_for(lambda: run.read_attempt_verdict(0), 120)
    assert verdict.host == bad
    assert "failed the preflight: a matrix product took" in verdict.message
    assert user.done(run, 150).newest_attempt() == 1
    assert bad not in hosts(user, run)
    (event,) = nodes.read([nodes.ledger_file()])
    assert (event.host, event.kind, event.run) == (bad, "preflight", run.id)
    assert "times as long as on the typical node" in user("cluster", "nodes").stdout
