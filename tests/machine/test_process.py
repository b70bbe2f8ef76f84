"""Telling processes apart, and from those that have ended."""

import os
import subprocess
import time

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
    deadline = time.monotonic() + 60
    while process.state_letter(child.pid) != "Z" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.identify(child.pid) is None
    child.wait()
    assert process.state_letter(child.pid) == "?"
