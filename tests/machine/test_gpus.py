"""GPUs as this machine shows them."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pynvml
import pytest
from another_user import as_nobody, needs_root

from hpcdist.base.errors import JobError
from hpcdist.base.files import user_cache
from hpcdist.machine.gpus import Gpu, claim, is_claimed, list_gpus, visible

GPUS = [
    Gpu(index=index, uuid=uuid, name="H", used_bytes=0, total_bytes=1)
    for index, uuid in enumerate(["GPU-aa1", "GPU-ab2", "GPU-b3"])
]


@pytest.mark.parametrize(
    ("variable", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        ("GPU-b", [2]),
        ("GPU-a", []),  # more than one begins so
        ("0,9,1", [0]),
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices_is_honoured_as_cuda_does(variable, indices):
    assert [gpu.index for gpu in visible(GPUS, variable)] == indices


def test_a_mig_device_is_an_error_and_no_silent_run_on_the_cpus():
    with pytest.raises(JobError, match=r"MIG-.*MIG devices are not supported") as caught:
        visible(GPUS, "0, MIG-GPU-aa1/1/0")
    assert caught.value.exit_code == 2
    assert "--set launch.device=cpu" in caught.value.hint


def test_a_claim_holds_against_other_processes_until_the_holder_ends():
    names = [f"GPU-test-{os.getpid()}-{index}" for index in range(2)]
    code = (
        f"from hpcdist.machine.gpus import claim; kept = claim({names!r})\n"
        "print(flush=True); input()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        holder.stdout.readline()
        assert is_claimed(names[1])
        with pytest.raises(BlockingIOError):
            claim([f"GPU-free-{os.getpid()}", names[1]])
        assert not is_claimed(f"GPU-free-{os.getpid()}")
        holder.kill()
    for one in claim(names):
        one.close()
    assert not is_claimed(names[0])


@needs_root
def test_another_user_can_neither_hold_a_gpu_nor_take_it_from_its_run(reachable, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(reachable))
    uuid = f"GPU-test-{os.getpid()}"
    path = user_cache() / "gpus" / uuid

    def take():
        """All that another user can do to have a run's GPU."""
        for attack in (path.unlink, path.open, (path.parent / "x").touch):
            with pytest.raises(PermissionError):
                attack()

    (held,) = claim([uuid])
    with held:
        as_nobody(take)
        assert is_claimed(uuid)


@pytest.fixture
def driver(monkeypatch):
    """A driver with three GPUs, of which the second has fallen off the bus."""

    def handle(index):
        if index == 1:
            raise pynvml.NVMLError_GpuIsLost
        return index

    def memory(index, version=None):
        # The driver's own share counts in version 1 alone; the last has memory of nobody's.
        used = 2**30 * (index == 2) if version else 700 * 2**20
        return SimpleNamespace(used=used, total=80 * 10**9)

    own = [SimpleNamespace(pid=os.getpid())]
    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 3,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetUUID": lambda index: f"GPU-test-{os.getpid()}-{index}",
        "nvmlDeviceGetName": lambda _: "H200",
        "nvmlDeviceGetComputeRunningProcesses": lambda index: own[: index // 2],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    monkeypatch.setattr("hpcdist.machine.gpus.LIBRARY", None)  # this program is always there
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_gpus_are_listed_with_who_holds_them_but_for_those_that_are_lost(driver):
    first, last = list_gpus()
    assert (first.index, first.name, first.is_idle) == (0, "H200", True)
    assert (last.index, last.is_idle) == (2, False)
    assert f"(pid {os.getpid()}, user " in last.holders[0]
    held = claim([first.uuid])
    assert list_gpus()[0].holders == ["another hpcdist run"]
    for one in held:
        one.close()
