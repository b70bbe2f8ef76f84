"""The host as the kernel has it: the time of its CPUs, its memory, the energy of its processors.

/proc/stat is the whole machine's, in a container too, and counts CPUs by the numbers that a process
is bound by. Where a container has a view of its own (lxcfs), these numbers are not in it: then
nothing is told of them. The energy (RAPL) is that of whole sockets, whoever used them; most hosts
let only root read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_PROC_STAT = Path("/proc/stat")
_MEMINFO = Path("/proc/meminfo")
_POWERCAP = Path("/sys/class/powercap")
_BUSY = (0, 1, 2, 5, 6, 7)
"""Columns of /proc/stat: user, nice, system, irq, softirq, and steal, which another guest of the
hypervisor used. That of guests is in user and nice."""
_TICKS_PER_S = 100  # USER_HZ: the kernel's interface has no other
_MICRO = 1e-6
_KIB = 1024


class HostReader:
    """Reads all processes of a host, whoever's they are; begins at once."""

    def __init__(
        self,
        cpus: Sequence[int] | None,
        *,
        proc_stat: Path = _PROC_STAT,
        powercap: Path = _POWERCAP,
    ) -> None:
        """`cpus`: those that ranks are bound to; None where they are bound to none."""
        self._cpus = cpus
        self._proc_stat = proc_stat
        self._busy_s = self._read_cpus()
        self._zones = [_EnergyZone(folder) for folder in _zone_folders(powercap)]
        self._energies_j()

    @property
    def num_cpus(self) -> int:
        """The number of CPUs that are online; of a container's own view, those in it."""
        return len(self._busy_s)

    def sample(self, length_s: float) -> dict[str, float]:
        """Return `node_cpus_busy`, `bound_cpus_busy` and `cpu_energy_j` since the last sample,
        `length_s` ago, and `node_memory_bytes` now; what the host does not tell is left out."""
        before, self._busy_s = self._busy_s, self._read_cpus()
        used_s = {
            cpu: max(0.0, busy_s - before[cpu])
            for cpu, busy_s in self._busy_s.items()
            if cpu in before
        }
        found = {"node_memory_bytes": _used_bytes()}
        if length_s > 0 and used_s:
            found["node_cpus_busy"] = sum(used_s.values()) / length_s
            bound_to = used_s.keys() if self._cpus is None else self._cpus
            if all(cpu in used_s for cpu in bound_to):
                found["bound_cpus_busy"] = sum(used_s[cpu] for cpu in bound_to) / length_s
        energies_j = self._energies_j()
        if energies_j:
            found["cpu_energy_j"] = sum(energies_j)
        return found

    def _read_cpus(self) -> dict[int, float]:
        """Return the busy seconds of each CPU since the host was started."""
        busy_s = {}
        for line in self._proc_stat.read_text().splitlines():
            name, *columns = line.split()
            if name.startswith("cpu") and name != "cpu":
                ticks = sum(int(columns[column]) for column in _BUSY if column < len(columns))
                busy_s[int(name.removeprefix("cpu"))] = ticks / _TICKS_PER_S
        return busy_s

    def _energies_j(self) -> list[float]:
        energies_j = [zone.sample() for zone in self._zones]
        return [energy_j for energy_j in energies_j if energy_j is not None]


class _EnergyZone:
    """A meter of the processor, which begins anew at its largest value."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._range_uj = _read_number(folder / "max_energy_range_uj")
        self._before_uj: int | None = None

    def sample(self) -> float | None:
        """Return the energy since the last sample; None for the first, and where none is told."""
        if self._range_uj is None:
            return None
        before_uj, self._before_uj = self._before_uj, _read_number(self._folder / "energy_uj")
        if self._before_uj is None or before_uj is None:
            return None
        used_uj = self._before_uj - before_uj
        return (used_uj if used_uj >= 0 else used_uj + self._range_uj) * _MICRO


def _zone_folders(powercap: Path) -> list[Path]:
    """Return the zones that add up to the processors: packages, and the memory beside them.

    `psys` holds the packages once more, and cores and graphics are within a package.
    """
    zones = []
    for folder in sorted(powercap.glob("intel-rapl:*")):  # AMD's have this name, too
        try:
            name = (folder / "name").read_text().strip()
        except OSError:
            continue
        if name.startswith("package") or name == "dram":
            zones.append(folder)
    return zones


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _used_bytes() -> float:
    """Return the memory that is neither free nor could be."""
    lines = _MEMINFO.read_text().splitlines()
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return float((kib["MemTotal"] - kib["MemAvailable"]) * _KIB)
