"""Memory: what cgroups leave, from trees of files as the kernel shows them, and what ranks use
against the job's limit."""

import os
import subprocess
import sys

from hpcdist.machine import memory
from hpcdist.machine.memory import KernelKills, kernel_kills, memory_left


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(f"{text}\n")


def test_the_group_above_that_leaves_least_counts_and_read_files_count_as_free(tmp_path):
    write(tmp_path, max="max", current=10**12)
    write(tmp_path / "job", max=8000, current=5000, stat="anon 3500\ninactive_file 1500")
    write(tmp_path / "job" / "step", max="max", current=4000)
    assert memory_left("0::/job/step\n", tmp_path) == 4500
    write(tmp_path / "job", max="max", current=8500)
    assert memory_left("0::/job/step\n", tmp_path) is None


def test_version_1_is_read_where_the_controller_is(tmp_path):
    folder = tmp_path / "memory" / "slurm" / "job_7"
    stat = "inactive_file 1\ntotal_inactive_file 100"
    write(folder, limit_in_bytes=2000, usage_in_bytes=900, stat=stat)
    assert memory_left("4:memory:/slurm/job_7\n0::/\n", tmp_path) == 1200


def test_kills_are_counted_in_the_process_s_own_group_of_both_versions(tmp_path):
    write(tmp_path, events="oom_kill 9")
    write(tmp_path / "job", events="oom 3\noom_kill 2")
    assert kernel_kills("0::/job\n", tmp_path) == KernelKills(2, is_of_group=True)
    write(tmp_path / "memory" / "job", oom_control="oom_kill_disable 0\noom_kill 1")
    assert kernel_kills("4:memory:/job\n", tmp_path) == KernelKills(1, is_of_group=True)


def test_kills_of_the_machine_count_where_the_group_tells_nothing(tmp_path):
    of_machine = tmp_path / "vmstat"
    of_machine.write_text("nr_free_pages 7\noom_kill 3\n")
    assert kernel_kills("0::/job\n", tmp_path, of_machine=of_machine) == KernelKills(3)


def test_only_a_count_that_has_grown_tells_of_the_kernel():
    of_group = KernelKills(1, is_of_group=True)
    assert of_group.tell_more(of_group) is None
    assert "its cgroup counts that" in of_group.tell_more(KernelKills(2, is_of_group=True))
    more = KernelKills(2).tell_more(KernelKills(5))
    assert more == "the kernel, it seems: 3 of its host's processes ended for lack of memory"
    assert of_group.tell_more(KernelKills(9)) is None  # moved elsewhere meanwhile


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
