"""Memory of ranks against the job's limit."""

import os
import subprocess
import sys

from hpcdist.machine import memory


def test_memory_of_a_rank_counts_what_it_started():
    child = subprocess.Popen(
        [sys.executable, "-c", "kept = b'x' * 60_000_000; print(); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        child.stdout.readline()
        assert memory.proportional_bytes(child.pid) > 60e6
        local_rank, sentence = memory.over_limit({3: os.getpid()}, 60e6)
        assert local_rank == 3
        assert "resources.mem_gb allows 0.06 GB" in sentence
        assert memory.over_limit({3: os.getpid()}, 1e12) is None
        child.stdin.close()
    assert memory.proportional_bytes(child.pid) == 0
    assert memory.over_limit({}, 1.0) is None
