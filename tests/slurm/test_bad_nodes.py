"""Nodes that are slow, or whose GPUs are gone: found, written down, and left out."""

import _ctypes
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_user import CPU, TWO, User
from interruptions import hosts

from hpcdist.runs import nodes

GROUPS = Path("/sys/fs/cgroup/cpu")


@pytest.fixture
def user(slurm, tmp_path):
    return User(slurm, tmp_path)


@contextmanager
def slow(slurm, node, missing):
    """While open, what the node starts gets a fraction of a CPU, once the function is called that
    this yields."""
    group = GROUPS / f"hpcdist-test-{slurm.spec.path.name}"
    pid = int((slurm.spec.path / "run" / f"slurmd.{node}.pid").read_text())
    try:
        group.mkdir()
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        missing(f"no group of CPU time can be made here: {error}")
    yield lambda: (group / "cpu.cfs_quota_us").write_text("6000")
    for one in (group / "cgroup.procs").read_text().split():
        (GROUPS / "cgroup.procs").write_text(one)
    group.rmdir()


PRINT = 'print("worked", flush=True)\n'
NVML = """\
import os
nvmlMemory_v2 = 2
class NVMLError(Exception):
    value = 999
def nvmlInit():
    if os.environ["SLURMD_NODENAME"] == {bad!r}:
        raise NVMLError("Driver/library version mismatch")
def __getattr__(name):
    if not name.startswith("nvmlDeviceGet"):
        raise AttributeError(name)
    return getattr(Fake, name, lambda *_, **__: 0)
class Fake:
    nvmlDeviceGetCount = lambda: 2
    nvmlDeviceGetUUID = nvmlDeviceGetName = lambda gpu: f"GPU-fake-{{gpu}}"
    nvmlDeviceGetHandleByIndex = lambda index: index
    nvmlDeviceGetMemoryInfo = lambda *_, **__: type("", (), dict(used=0, total=8))
    nvmlDeviceGetComputeRunningProcesses = lambda _: []
nvmlShutdown = lambda: None
"""
"""The module with which Python asks for GPUs: there are two on each node, and on one none."""


def test_a_slow_node_fails_the_preflight_and_the_job_goes_on_without_it(user, missing):
    bad = user.cluster.nodes[1]
    wanted = ("--set", "launch.preflight=true", "--nodes", 3, "--gpus", 1)
    with slow(user.cluster, bad, missing) as begin:
        run = user.submit(user.write("work.py", PRINT), *CPU, *wanted)
        user.cluster.wait_for(run.agent_file(1).exists)
        begin()
        verdict = user.cluster.wait_for(lambda: run.read_attempt_verdict(0), 150)
    assert verdict.host == bad
    assert f"node 1 (host {bad}) failed the preflight: a" in verdict.message
    without = f"the job starts again without {bad}"
    user.cluster.wait_for(lambda: without in run.read_attempt_verdict(0).message)
    assert user.done(run, 150).newest_attempt() == 1
    assert bad not in hosts(user, run)
    (event,) = nodes.read([nodes.ledger_file()])
    assert (event.host, event.kind, event.run) == (bad, "preflight", run.id)
    assert "times as long as on the typical node" in user("cluster", "nodes").stdout


def test_a_node_whose_nvml_fails_in_two_runs_is_left_out(user, tmp_path):
    bad = user.cluster.nodes[1]
    library = tmp_path / "nvml"
    library.mkdir()
    (library / "pynvml.py").write_text(NVML.format(bad=bad))
    (library / "libnvidia-ml.so.1").symlink_to(_ctypes.__file__)  # any that loads
    here = f"export LD_LIBRARY_PATH={library} PYTHONPATH={library}:$PYTHONPATH"
    user.write("hpcdist.yaml", f"clusters: {{lab: {{setup: ['{here}']}}}}\n")
    user.write("work.py", PRINT)
    wanted = ("work.py", "--set", "launch.device=cuda", "--set", "launch.backend=gloo", *TWO)
    for _ in range(2):
        assert "left out" not in user("render", *wanted).stderr
        verdict = user.verdict(user.submit(*wanted))
        assert (verdict.kind, verdict.host) == ("launch", bad), verdict.message
        assert "0 GPUs for 1 ranks" in verdict.message
    assert f"{bad} is left out: it had a fault of a GPU" in " ".join(
        user("render", *wanted).stderr.split()
    )
    run = user.done(user.submit(*wanted))
    assert bad not in hosts(user, run)
