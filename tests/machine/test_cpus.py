"""How CPUs and threads are shared among ranks, and what cgroups allow of their time, from trees of
files as the kernel shows them."""

import pytest

from hpcdist.machine import cpus
from hpcdist.machine.cpus import cpu_quota


@pytest.mark.parametrize(
    ("available", "shares", "per_share", "expected"),
    [
        ([0, 1, 2, 3], 2, None, [[0, 1], [2, 3]]),
        ([0, 1, 2, 3, 4], 2, None, [[0, 1], [2, 3]]),
        ([0, 1, 2, 3], 2, 1, [[0], [1]]),
        ([0, 1], 4, None, [[0], [0], [1], [1]]),
        ([5, 7], 3, None, [[5, 7], [5, 7], [5, 7]]),
    ],
)
def test_cpus_are_shared_evenly_or_by_all(available, shares, per_share, expected):
    assert cpus.share_cpus(available, shares, per_share=per_share) == expected


def test_threads_per_rank_are_at_least_one_and_never_more_than_asked():
    assert cpus.threads_per_rank(8, 2) == 4
    assert cpus.threads_per_rank(2, 8) == 1
    assert cpus.threads_per_rank(8, 2, cpus_per_rank=3) == 3
    assert cpus.threads_per_rank(8, 4, cpus_per_rank=3) == 2


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_smallest_quota_above_counts(tmp_path):
    write(tmp_path / "cpu.max", "max 100000\n")
    write(tmp_path / "job" / "cpu.max", "150000 100000\n")
    write(tmp_path / "job" / "step" / "cpu.max", "400000 100000\n")
    assert cpu_quota("0::/job/step\n", tmp_path) == 1.5
