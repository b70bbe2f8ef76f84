"""AMD's GPUs, as the kernel's drivers show them: no command and no library of ROCm is needed.

KFD, the driver for computing, lists them in the order in which HIP numbers them (`topology/nodes`,
those with SIMD units), and leaves out those that a cgroup keeps from this process. Each has a
render node, whose amdgpu driver tells memory, use, power and temperature
(https://docs.kernel.org/gpu/amdgpu/driver-misc.html and thermal.html). ROCR_VISIBLE_DEVICES hides
GPUs from all of ROCm, HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES some of the rest from HIP
(https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from hpcdist.base.errors import SchedulerError
from hpcdist.machine.command import run_command

KFD = Path("/sys/class/kfd/kfd")
DRM = Path("/sys/class/drm")
DEVICE = Path("/dev/kfd")
_DRIVER_VERSION = Path("/sys/module/amdgpu/version")
_MOST_BYTES = 65_536
_COMMAND_LIMIT_S = 10.0
_UUID = re.compile(r"GPU-[0-9a-f]{16}|AMD-\d+")
"""UUIDs as ROCm has them, which NVIDIA's are longer than; or the place of a GPU without one."""


class AmdGpu(Struct, frozen=True, kw_only=True):
    """One GPU as KFD lists it."""

    index: int
    """Among all that this process may use, as HIP would number them without any variable."""
    uuid: str
    kfd_id: str
    """By which KFD names the memory of processes."""
    folder: Path
    """The device's, in sysfs."""

    @property
    def name(self) -> str:
        """The name that the board has in it, else that of rocm-smi, else the PCI id."""
        device = _text(self.folder / "device") or "?"
        return _text(self.folder / "product_name") or _names().get(self.index) or f"AMD {device}"

    @property
    def total_bytes(self) -> int:
        return int(_number(self.folder / "mem_info_vram_total") or 0)

    @property
    def used_bytes(self) -> int:
        return int(_number(self.folder / "mem_info_vram_used") or 0)

    @property
    def power_limit_w(self) -> float | None:
        return self._monitored("power1_cap", per=1e6)

    def holders(self) -> list[int]:
        """Return the processes that have memory of it."""
        with contextlib.suppress(OSError):
            return [
                int(name)
                for name in sorted(os.listdir(KFD / "proc"))
                if name.isdecimal() and _number(KFD / "proc" / name / f"vram_{self.kfd_id}")
            ]
        return []

    def sample(self, length_s: float) -> dict[str, float]:
        """Return what it tells; `energy_j` is its power over the time `length_s`."""
        busy = _number(self.folder / "gpu_busy_percent")
        power_w = self._monitored("power1_average", per=1e6)
        power_w = self._monitored("power1_input", per=1e6) if power_w is None else power_w
        found = {
            "utilization": None if busy is None else busy / 100,
            "memory_bytes": _number(self.folder / "mem_info_vram_used"),
            "power_w": power_w,
            "temperature_c": self._monitored("temp1_input", per=1e3),
            "energy_j": None if power_w is None else power_w * length_s,
        }
        return {name: value for name, value in found.items() if value is not None}

    def _monitored(self, name: str, *, per: float) -> float | None:
        for path in sorted(self.folder.glob(f"hwmon/hwmon*/{name}")):
            if (value := _number(path)) is not None:
                return value / per
        return None


def list_amd_gpus(environment: Mapping[str, str]) -> list[AmdGpu]:
    """Return the GPUs that HIP would show torch with these variables, in its order."""
    gpus = [] if why_not_used() else _all_gpus()
    for names in (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")):
        variable = next((environment[name] for name in names if name in environment), None)
        if variable is not None:
            gpus = _shown(gpus, variable)
    return gpus


def why_not_used() -> str | None:
    """Return why torch cannot use AMD GPUs that are here; None where it can, or there is none.

    KFD lists the graphics of processors, too, which another torch than one for ROCm cannot use.
    """
    if not DEVICE.exists() or not _all_gpus():
        return None
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return f"an AMD GPU is here, but {DEVICE} is closed to you: join its group, often render"
    if not torch_has_rocm():
        return "an AMD GPU is here, but torch is built without ROCm"
    return None


def torch_has_rocm() -> bool:
    """Return whether the torch of this interpreter is one for ROCm; it is not imported."""
    spec = find_spec("torch")
    return (
        spec is not None
        and spec.origin is not None
        and Path(spec.origin).with_name("lib").joinpath("libtorch_hip.so").exists()
    )


def find_amd_gpus(uuids: Sequence[str]) -> list[AmdGpu]:
    """Return the GPUs of these UUIDs, whatever variables hide."""
    by_uuid = {gpu.uuid: gpu for gpu in _all_gpus()}
    return [by_uuid[uuid] for uuid in uuids if uuid in by_uuid]


def amd_variables(uuids: Sequence[str]) -> dict[str, str] | None:
    """Return the variables that show a process these GPUs alone; None for others than AMD's."""
    if not uuids or not all(map(_UUID.fullmatch, uuids)):
        return None
    numbers = ",".join(str(number) for number in range(len(uuids)))
    return {
        "ROCR_VISIBLE_DEVICES": ",".join(uuid.removeprefix("AMD-") for uuid in uuids),
        "HIP_VISIBLE_DEVICES": numbers,
        "CUDA_VISIBLE_DEVICES": numbers,
    }


def driver_version() -> str | None:
    """Return the version of the kernel's driver, where it has one of its own."""
    return _text(_DRIVER_VERSION)


def _all_gpus() -> list[AmdGpu]:
    try:
        nodes = sorted(os.listdir(KFD / "topology" / "nodes"), key=int)
    except (OSError, ValueError):
        return []
    gpus: list[AmdGpu] = []
    for node in nodes:
        folder = KFD / "topology" / "nodes" / node
        facts = dict(
            line.split(maxsplit=1)
            for line in (_text(folder / "properties") or "").splitlines()
            if " " in line
        )
        if facts.get("simd_count", "0") == "0":
            continue  # CPUs, or a GPU that is closed to this process
        unique_id = int(facts.get("unique_id", "0"))
        gpus.append(
            AmdGpu(
                index=len(gpus),
                uuid=f"GPU-{unique_id:016x}" if unique_id else f"AMD-{len(gpus)}",
                kfd_id=_text(folder / "gpu_id") or "",
                folder=DRM / f"renderD{facts.get('drm_render_minor', '')}" / "device",
            )
        )
    return gpus


def _shown(gpus: Sequence[AmdGpu], variable: str) -> list[AmdGpu]:
    """Return what a variable leaves: places among these, or UUIDs, to the first unknown."""
    found: list[AmdGpu] = []
    for word in variable.split(","):
        name = word.strip().lower()
        matches = [
            gpu for place, gpu in enumerate(gpus) if name == str(place) or name == gpu.uuid.lower()
        ]
        if len(matches) != 1:
            break
        found.append(matches[0])
    return found


def _names() -> dict[int, str]:
    """Return the names that rocm-smi has for boards that do not tell theirs, by their places."""
    command = shutil.which("rocm-smi") or shutil.which("/opt/rocm/bin/rocm-smi")
    return {} if command is None else _names_by(command)


@functools.cache
def _names_by(command: str) -> dict[int, str]:
    try:
        argv = [command, "--showproductname", "--json"]
        cards = json.loads(run_command(argv, timeout_s=_COMMAND_LIMIT_S).stdout)
    except (SchedulerError, ValueError):
        return {}
    if not isinstance(cards, dict):
        return {}
    own = [card for card in cards.values() if isinstance(card, dict)]
    # Older versions write `Card series`.
    texts = [card.get("Card Series", card.get("Card series")) for card in own]
    return {place: str(text) for place, text in enumerate(texts) if text}


def _text(path: Path) -> str | None:
    """Return the content of a small file of the kernel's; None where it is not there or empty."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace").strip() or None
    except OSError:
        return None


def _number(path: Path) -> float | None:
    text = _text(path)
    return float(text) if text is not None and text.isdecimal() else None
