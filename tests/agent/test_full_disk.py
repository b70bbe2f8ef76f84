"""Runs whose disk is full: why they ended is known all the same, and which disk it was."""

import errno

import pytest
from full_disks import fill

from hpcdist.agent.outcome.shortage import full_disk

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
            "left with exit code 1: given up",
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


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        pytest.param(OSError(errno.EDQUOT, "x", "/tmp"), "your quota on the disk ", id="a quota"),
        pytest.param(OSError(errno.ENOSPC, "x", "/proc/x"), "the disk /proc ", id="a named file"),
        pytest.param(OSError(errno.ENOSPC, "x"), None, id="an unknown file, and there is room"),
        pytest.param(OSError(errno.EACCES, "x", "/tmp"), None, id="another error"),
        pytest.param(ValueError("full"), None, id="no error of a disk"),
    ],
)
def test_the_disk_is_that_of_the_file_that_an_error_names(tmp_path, error, sentence):
    found = full_disk(error, [tmp_path])
    assert found is None if sentence is None else found.startswith(sentence)


def test_the_fullest_disk_is_named_where_an_error_names_none(tmp_path, small_disk):
    disk = small_disk(40)
    fill(disk)
    text = RuntimeError("in worker 0: [Errno 28] No space left on device")
    assert full_disk(text, [tmp_path, disk / "x"]).startswith(
        f"the disk {disk} is full: 0 bytes of"
    )


def test_a_disk_whose_inodes_are_used_up_is_named(small_disk):
    disk = small_disk(400, inodes=2)
    (disk / "file").touch()
    with pytest.raises(OSError, match="No space left") as caught:
        (disk / "other").touch()
    assert full_disk(caught.value, []) == (
        f"the disk {disk} can take no more files: its inodes are used up"
    )


def test_a_disk_whose_room_is_there_again_is_named_with_its_file(small_disk):
    disk = small_disk(400)
    error = OSError(errno.ENOSPC, "No space left on device", str(disk / "gone" / "x"))
    assert full_disk(error, []) == f"no room was left on the disk {disk}"
