"""What a host tells of its CPUs and of the energy of its processors."""

import pytest

from hpcdist.agent.host import HostReader


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


def test_time_counts_on_the_cpus_that_ranks_are_bound_to_and_on_all(write_stat, tmp_path):
    path = write_stat({0: 10.0, 1: 20.0, 3: 5.0})  # one is offline
    reader = HostReader([1, 3], proc_stat=path, powercap=tmp_path)
    assert reader.num_cpus == 3
    write_stat({0: 12.0, 1: 23.0, 3: 6.0})
    found = reader.sample(4.0)
    assert found["node_cpus_busy"] == pytest.approx(6 / 4)
    assert found["bound_cpus_busy"] == pytest.approx(4 / 4)
    assert "cpu_energy_j" not in found


def test_a_view_without_the_cpus_that_ranks_are_bound_to_tells_nothing_of_them(
    write_stat, tmp_path
):
    reader = HostReader([7], proc_stat=write_stat({0: 1.0}), powercap=tmp_path)
    write_stat({0: 2.0})
    found = reader.sample(1.0)
    assert found["node_cpus_busy"] == pytest.approx(1.0)
    assert "bound_cpus_busy" not in found


def zone(folder, name, energy_uj, *, largest_uj=1000_000_000):
    folder.mkdir(exist_ok=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    (folder / "max_energy_range_uj").write_text(f"{largest_uj}\n")


def test_energy_is_that_of_packages_and_memory_and_counts_on_over_the_end_of_a_meter(tmp_path):
    zone(tmp_path / "intel-rapl:0", "package-0", 999_000_000)
    zone(tmp_path / "intel-rapl:0:0", "core", 5)
    zone(tmp_path / "intel-rapl:0:2", "dram", 1_000_000)
    zone(tmp_path / "intel-rapl:1", "psys", 77)
    reader = HostReader(None, powercap=tmp_path)
    zone(tmp_path / "intel-rapl:0", "package-0", 2_000_000)
    zone(tmp_path / "intel-rapl:0:0", "core", 9_000_000)
    zone(tmp_path / "intel-rapl:0:2", "dram", 1_500_000)
    zone(tmp_path / "intel-rapl:1", "psys", 99_000_000)
    assert reader.sample(1.0)["cpu_energy_j"] == pytest.approx(3.0 + 0.5)


def test_a_meter_that_may_not_be_read_tells_nothing(tmp_path):
    zone(tmp_path / "intel-rapl:0", "package-0", 1)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    reader = HostReader(None, powercap=tmp_path)
    assert "cpu_energy_j" not in reader.sample(1.0)
