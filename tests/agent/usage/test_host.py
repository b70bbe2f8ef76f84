"""What a host tells of its CPUs."""

import pytest

from hpcdist.agent.sampler import CpuReader


@pytest.fixture
def write_stat(tmp_path):
    """A /proc/stat with the busy seconds of CPUs, by their numbers."""
    path = tmp_path / "stat"

    def write(busy_s):
        rows = [
            f"cpu{cpu} {int(time_s * 50)} 0 {int(time_s * 30)} 9999 7 0 0 {int(time_s * 20)} 0 0"
            for cpu, time_s in busy_s.items()
        ]
        path.write_text("\n".join(["cpu  1 2 3 4 5 6 7 8 0 0", *rows, "intr 12 3", ""]))
        return path

    return write


def test_time_counts_on_the_cpus_that_ranks_are_bound_to_and_on_all(write_stat):
    path = write_stat({0: 10.0, 1: 20.0, 3: 5.0})  # one is offline
    reader = CpuReader([1, 3], proc_stat=path)
    assert reader.num_cpus == 3
    write_stat({0: 12.0, 1: 23.0, 3: 6.0})
    found = reader.sample([], 4.0)
    assert found["bound_cpus_busy"] == pytest.approx(4 / 4)


def test_a_view_without_the_cpus_that_ranks_are_bound_to_tells_nothing_of_them(write_stat):
    reader = CpuReader([7], proc_stat=write_stat({0: 1.0}))
    write_stat({0: 2.0})
    assert reader.sample([], 1.0) == {}
