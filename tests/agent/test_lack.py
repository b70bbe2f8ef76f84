"""A lack of room or of memory: the verdict says which."""

import errno
import os
import re
import socket
from pathlib import Path

import pytest
from full_disks import fill

from hpcdist.rank.exit import full_disk

FILL = """
import os

def fill():
    name = os.path.join(os.environ["HPCDIST_RUN_DIR"], "of-" + os.environ["RANK"])
    with open(name, "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
"""
NO_ROOM = "OSError: [Errno 28] No space left on device"


@pytest.fixture
def disk(small_disk, tmp_path):
    """A small file system that holds the runs."""
    folder = small_disk(1500)
    (tmp_path / "runs").symlink_to(folder)
    return folder


def test_the_verdict_on_a_run_that_filled_its_disk_has_the_cause_and_the_disk(
    launch, write_script, disk
):
    verdict = launch(write_script(f"{FILL}\nfill()\n"), gpus=2, max_restarts=1).verdict()
    assert f"failed first: {NO_ROOM}" in verdict.message
    assert f"; the disk is full: {disk}" in verdict.message
    assert "; it is not started again: the disk is full: " in verdict.message
    assert "Traceback" in verdict.first.report.traceback


def test_a_run_that_ends_well_on_a_full_disk_has_that_as_a_remark(launch, write_script, disk):
    verdict = launch(write_script(f"{FILL}\ntry: fill()\nexcept OSError: pass\n")).verdict()
    assert verdict.state == "done"
    assert f"what rank 0 recorded may be cut: the disk is full: {disk}" in verdict.remark


def test_a_run_whose_disk_is_full_before_it_begins_gets_a_verdict(launch, write_script, disk):
    launched = launch(write_script("print(1)"), agents=[])
    fill(disk)
    launched.start_agent(0)
    verdict = launched.verdict()
    said = f"the agent of node 0 (host {socket.gethostname()}) failed: the disk is full: "
    assert said in verdict.message


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.EDQUOT, "x", "/a/x"), "your quota is used up: /a/x"),
        (OSError(errno.ENOSPC, "x", "/a/x"), "the disk is full: /a/x"),
        (OSError(errno.ENOSPC, "x"), "the disk is full"),
        (OSError(errno.EACCES, "x", "/tmp"), None),
        (ValueError("full"), None),
    ],
)
def test_the_disk_is_that_of_the_file_that_an_error_names(tmp_path, error, sentence):
    assert full_disk(error, [tmp_path]) == sentence


HUNGRY_WORKER = """
import torch
class Hungry(torch.utils.data.Dataset):
    def __len__(self): return 2
    def __getitem__(self, index): return torch.ones(200_000_000).sum()
for _ in torch.utils.data.DataLoader(Hungry(), num_workers=1): pass
"""


@pytest.fixture
def small_memory():
    """A memory cgroup in which a rank has room, but none for 0.8 GB, as a job's."""
    folder = Path(f"/sys/fs/cgroup/memory/hpcdist-test-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("a limit on memory takes a superuser and a memory cgroup of version 1")
    (folder / "memory.limit_in_bytes").write_text(str(500 << 20))
    yield folder
    folder.rmdir()


def test_a_worker_that_the_kernel_kills_for_its_memory_is_told_with_its_rank(
    launch, write_script, small_memory
):
    into_group = f"open('{small_memory}/cgroup.procs', 'w').write('0')"
    verdict = launch(write_script(f"{into_group}\n{HUNGRY_WORKER}")).verdict()
    assert verdict.kind == "out_of_memory"
    assert re.search(
        r"^rank 0 \(node 0, host .*\) failed first: out of memory: its DataLoader worker "
        r"was killed by the kernel, for lack of memory: its cgroup counts that",
        verdict.message,
    )
