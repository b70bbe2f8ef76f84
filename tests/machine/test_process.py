"""Telling processes apart, and from those that have ended."""

import os
import subprocess
import sys
from pathlib import Path

from waiting import wait_for

from hpcdist.machine import process


def test_a_process_is_told_from_a_later_one_with_its_pid():
    me = process.identify(os.getpid())
    assert process.is_alive(me)
    replace = type(me)
    other = {"host": me.host, "boot_id": me.boot_id, "pid": me.pid, "start_ticks": me.start_ticks}
    assert process.is_alive(replace(**other | {"start_ticks": me.start_ticks - 1})) is False
    assert process.is_alive(replace(**other | {"boot_id": "another"})) is False
    assert process.is_alive(replace(**other | {"host": "another"})) is None


def test_a_zombie_counts_as_ended():
    child = subprocess.Popen(["true"])
    wait_for(lambda: process.process_use(child.pid).state == "Z")
    assert process.identify(child.pid) is None
    child.wait()
    assert process.process_use(child.pid) is None


CUT_OFF = """
import os, signal
from hpcdist.machine.process import kill_descendants
reader, writer = os.pipe()
if (pid := os.fork()) == 0:
    open(f"/dev/shm/torch_{os.getpid()}_1_0", "w").close()
    os.write(writer, b"made")
    signal.pause()
os.read(reader, 4)
open(f"/dev/shm/torch_{os.getpid()}_1_0", "w").close()
kill_descendants()
print(pid, os.getpid())
"""


def test_the_shared_memory_of_a_killed_process_is_freed_and_that_of_others_is_not():
    done = subprocess.run(
        [sys.executable, "-c", CUT_OFF], capture_output=True, text=True, check=True, timeout=60
    )
    killed, other = (Path(f"/dev/shm/torch_{pid}_1_0") for pid in done.stdout.split())
    assert other.exists()
    other.unlink()
    assert not killed.exists()
