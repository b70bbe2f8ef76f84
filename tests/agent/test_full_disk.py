"""Runs whose disk is full: why they ended is known all the same, and which disk it was."""

import errno

import numpy as np
import pytest
from full_disks import fill

from hpcdist.agent.outcome.disk import full_disk, why_bus_error

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


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        pytest.param("fill()", NO_ROOM, id="the full disk itself"),
        pytest.param(
            "try: fill()\nexcept OSError: raise ValueError('a loss' * 9999)",
            "ValueError: a loss",
            id="a long exception because of it",
        ),
        pytest.param(
            "try: fill()\nexcept OSError: pass\nraise ValueError('unrelated')",
            "ValueError: unrelated",
            id="another exception beside it",
        ),
        pytest.param(
            "import sys\ntry: fill()\nexcept OSError: pass\nsys.exit('given up')",
            "exited with code 1: given up",
            id="sys.exit with a text",
        ),
    ],
)
def test_the_verdict_on_a_run_that_filled_its_disk_has_the_cause_and_the_disk(
    launch, write_script, disk, end, cause
):
    launched = launch(write_script(f"{FILL}\n{end}\n"), gpus=2)
    verdict = launched.verdict()
    assert f"failed first: {cause}" in verdict.message
    assert f"; the disk {disk} is full: " in verdict.message
    if verdict.exception:
        assert "Traceback" in verdict.traceback


def test_a_run_that_ends_well_on_a_full_disk_has_that_as_a_remark(launch, write_script, disk):
    verdict = launch(write_script(f"{FILL}\ntry: fill()\nexcept OSError: pass\n")).verdict()
    assert verdict.state == "done"
    assert f"what rank 0 recorded may be cut: the disk {disk} is full: " in verdict.remark


def test_a_run_that_is_to_restart_on_its_full_disk_has_the_cause(launch, write_script, disk):
    launched = launch(write_script(f"{FILL}\nfill()\n"), max_restarts=1)
    verdict = launched.verdict()
    assert f"failed first: {NO_ROOM}; the disk {disk} is full: " in verdict.message
    assert f"; it is not started again: the disk {disk} is full: " in verdict.message
    assert verdict.restarts == 0


def test_a_run_whose_disk_is_full_before_it_begins_gets_a_verdict(launch, write_script, disk):
    launched = launch(write_script("print(1)"), agents=[])
    fill(disk)
    launched.start_agent(0)
    verdict = launched.verdict()
    assert f"the agent of node 0 (host {verdict.host}) failed: the disk {disk} is full: " in (
        verdict.message
    )


OWN_SHARED_MEMORY = """
import ctypes, subprocess, torch
CLONE_NEWNS = 0x20000
assert ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"], check=True)
class Large(torch.utils.data.Dataset):
    def __len__(self): return 2
    def __getitem__(self, index): return torch.zeros(1_000_000)
for _ in torch.utils.data.DataLoader(Large(), num_workers=1): pass
"""


@pytest.mark.parametrize(
    ("code", "sentences"),
    [
        pytest.param(
            "import torch; torch.save(torch.zeros(1_000_000), DISK + '/weights.pt')",
            ("unexpected pos", "; the disk {disk} is full: 0 bytes of 1.5 MB are free (delete "),
            id="torch.save",
        ),
        pytest.param(
            "import sys\ntry: open(DISK + '/x', 'wb').write(bytes(9_999_999))\n"
            "except OSError: sys.exit(4)",
            ("exited with code 4; the disk {disk} is full: ",),
            id="an exit code alone",
        ),
        pytest.param(
            "import os\ntry: open(DISK + '/x', 'wb').write(bytes(9_999_999))\n"
            "except OSError as error: print(DISK + '/x:', error, flush=True); os._exit(5)",
            ("exited with code 5; the disk {disk} is full: ",),
            id="a log alone",
        ),
        pytest.param(
            OWN_SHARED_MEMORY,
            ("; the shared memory /dev/shm, 1 MB in all, may be too small (use fewer workers",),
            id="shared memory",
        ),
    ],
)
def test_a_disk_that_is_not_that_of_the_run_is_named_too(
    launch, write_script, small_disk, code, sentences
):
    disk = small_disk(1500)
    launched = launch(write_script(f"DISK = {str(disk)!r}\n{code}\n"))
    verdict = launched.verdict()
    for sentence in sentences:
        assert sentence.format(disk=disk) in verdict.message


def write_without_room(disk):
    with open(disk / "x", "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def write_array_without_room(disk):
    np.save(disk / "x", np.zeros(1_000_000))


@pytest.mark.parametrize("write", [write_without_room, write_array_without_room])
def test_the_disk_of_a_file_that_the_failed_function_had_open_is_named(small_disk, write):
    disk = small_disk(400)
    with pytest.raises(OSError) as caught:  # noqa: PT011 - of numpy it has no number
        write(disk)
    assert full_disk(caught.value, []).startswith(f"the disk {disk} is full: ")


def test_a_bus_error_is_about_a_disk_that_is_full_or_about_shared_memory(small_disk, tmp_path):
    assert "the shared memory /dev/shm, " in why_bus_error([tmp_path])
    disk = small_disk(40)
    fill(disk)
    assert why_bus_error([disk]).startswith(f"the disk {disk} is full: ")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        pytest.param(OSError(errno.EDQUOT, "x", "/tmp"), "your quota on the disk ", id="a quota"),
        pytest.param(OSError(errno.ENOSPC, "x", "/proc/x"), "the disk /proc ", id="a named file"),
        pytest.param(OSError(errno.EACCES, "x", "/tmp"), None, id="another error"),
        pytest.param(ValueError("full"), None, id="no error of a disk"),
    ],
)
def test_the_disk_is_that_of_the_file_that_an_error_names(tmp_path, error, sentence):
    found = full_disk(error, [tmp_path])
    assert found is None if sentence is None else found.startswith(sentence)


def test_a_disk_whose_inodes_are_used_up_is_named(small_disk):
    disk = small_disk(400, inodes=2)
    (disk / "file").touch()
    with pytest.raises(OSError, match="No space left") as caught:
        (disk / "other").touch()
    assert full_disk(caught.value, []).startswith(
        f"the disk {disk} can take no more files: its inodes are used up"
    )


def test_a_disk_whose_room_is_there_again_is_named_with_its_file(small_disk):
    disk = small_disk(400)
    error = OSError(errno.ENOSPC, "No space left on device", str(disk / "gone" / "x"))
    assert full_disk(error, []) == f"no space was left on the disk {disk}"
