"""AMD's GPUs, as the kernel's drivers show them: no command and no library of ROCm is needed.

KFD, the driver for computing, lists them in the order in which HIP numbers them (`topology/nodes`,
those with SIMD units), and leaves out those that a cgroup keeps from this process. The driver
amdgpu tells the memory of each (https://docs.kernel.org/gpu/amdgpu/driver-misc.html).
ROCR_VISIBLE_DEVICES hides GPUs from all of ROCm, HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES some
of the rest from HIP (https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

KFD = Path("/sys/class/kfd/kfd")
DRM = Path("/sys/class/drm")
DEVICE = Path("/dev/kfd")
_MOST_BYTES = 65_536
_UUID = re.compile(r"GPU-[0-9a-f]{16}|AMD-\d+")
"""UUIDs as ROCm has them, which NVIDIA's are longer than; or the place of a GPU without one."""


class AmdGpu(Struct, frozen=True, kw_only=True):
    """One GPU as KFD lists it."""

    index: int
    """Among all that this process may use, as HIP would number them without any variable."""
    uuid: str
    name: str
    used_bytes: int
    total_bytes: int


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
        device = DRM / f"renderD{facts.get('drm_render_minor', '')}" / "device"
        gpus.append(
            AmdGpu(
                index=len(gpus),
                uuid=f"GPU-{unique_id:016x}" if unique_id else f"AMD-{len(gpus)}",
                name=_text(device / "product_name") or f"AMD {_text(device / 'device') or '?'}",
                used_bytes=_number(device / "mem_info_vram_used"),
                total_bytes=_number(device / "mem_info_vram_total"),
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


def _text(path: Path) -> str | None:
    """Return the content of a small file of the kernel's; None where it is not there or empty."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace").strip() or None
    except OSError:
        return None


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text is not None and text.isdecimal() else 0
