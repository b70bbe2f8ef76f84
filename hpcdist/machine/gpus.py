"""The GPUs of this machine and who uses them, through NVML, or as the kernel shows AMD's: CUDA
itself is never touched.

Even asking torch whether CUDA is available can spoil it for processes forked later. AMD's take no
command and no library of ROCm: KFD, the driver for computing, lists them in the order in which HIP
numbers them (`topology/nodes`, those with SIMD units), and amdgpu tells the memory of each
(https://docs.kernel.org/gpu/amdgpu/driver-misc.html). ROCR_VISIBLE_DEVICES hides GPUs from all of
ROCm, HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES some of the rest from HIP
(https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import JobError
from hpcdist.machine.process import kernel_text

LIBRARY = "libnvidia-ml.so.1"
KFD = Path("/sys/class/kfd/kfd")
DRM = Path("/sys/class/drm")
DEVICE = Path("/dev/kfd")
_OF_AMD = re.compile(r"GPU-[0-9a-f]{16}|AMD-\d+")
"""UUIDs as ROCm has them, which NVIDIA's are longer than; or the place of a GPU without one."""
_WHOLE_FILE = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
"""The lock by which a run holds a GPU, as fcntl(2) takes it."""

_IDLE_MEMORY_BYTES = 512 * 2**20
"""A GPU on which no process is seen, but with more memory in use, belongs to somebody in another
container, whose processes NVML does not show."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as NVML or the kernel sees it."""

    index: int
    uuid: str
    name: str
    used_bytes: int
    total_bytes: int
    holders: list[str] = []
    """Its processes, such as `python (pid 41, user ann)`; empty where none is seen."""

    @property
    def is_idle(self) -> bool:
        return not self.holders and self.used_bytes < _IDLE_MEMORY_BYTES


@contextlib.contextmanager
def nvml() -> Iterator[Any]:
    """Give the module of NVML, with its library open; None without a driver."""
    try:
        ctypes.CDLL(LIBRARY)  # importing pynvml takes as long as twenty other modules
    except OSError:
        yield None
        return
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def list_gpus() -> list[Gpu]:
    """Return all GPUs that this process may use, by CUDA_VISIBLE_DEVICES, or by ROCm's variables
    where there are AMD's alone; none without a driver."""
    with nvml() as library:
        if library is None:
            return list_amd_gpus(os.environ)
        found = [_nvidia_gpu(library, index) for index in range(library.nvmlDeviceGetCount())]
    gpus = [gpu for gpu in found if gpu is not None]
    return visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(gpus: Sequence[Gpu], variable: str | None) -> list[Gpu]:
    """Return what CUDA_VISIBLE_DEVICES leaves: indices or UUID prefixes, to the first unknown.
    JobError for a part of a GPU (MIG), which would otherwise count as unknown."""
    if variable is None:
        return list(gpus)
    found: list[Gpu] = []
    for word in variable.split(","):
        name = word.strip()
        if name.startswith("MIG-"):
            raise JobError(
                f"CUDA_VISIBLE_DEVICES has {name}: on this machine MIG devices are not supported",
                hint="run on the CPUs: --set launch.device=cpu, or name whole GPUs there",
            )
        is_uuid = name.startswith("GPU-")
        matches = [
            gpu for gpu in gpus if name == str(gpu.index) or (is_uuid and gpu.uuid.startswith(name))
        ]
        if len(matches) != 1:
            break
        found.append(matches[0])
    return found


def claim(uuids: Sequence[str]) -> list[BinaryIO]:
    """Hold GPUs for as long as the returned files are open, also against runs of this user that
    have not touched CUDA yet: a lock on a file per GPU, which the kernel frees with the process.

    The files are the user's own, since what all users can take, any of them can keep. Of the runs
    of others NVML tells as soon as they touch CUDA. Raises BlockingIOError where another run holds
    one of the GPUs, and OSError or RuntimeError where there is no place for such files.
    """
    with contextlib.ExitStack() as stack:
        held = []
        for uuid in uuids:
            path = _claim_file(uuid)
            path.parent.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
            held.append(stack.enter_context(files.open_private(path, create=True)))
            fcntl.fcntl(held[-1], fcntl.F_OFD_SETLK, _WHOLE_FILE)
        stack.pop_all()
    return held


def is_claimed(uuid: str) -> bool:
    """Return whether another run of this user holds a GPU."""
    try:
        with files.open_private(_claim_file(uuid)) as file:
            # To claim it for a moment could make another run believe it taken.
            found: bytes = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _WHOLE_FILE)
    except (OSError, RuntimeError):
        return False
    return bool(struct.unpack_from("h", found)[0] != fcntl.F_UNLCK)


def _claim_file(uuid: str) -> Path:
    return files.user_cache() / "gpus" / uuid


def _nvidia_gpu(library: Any, index: int) -> Gpu | None:
    """Return None for a GPU that does not answer: it is lost, or closed to this user."""
    import psutil

    try:
        handle = library.nvmlDeviceGetHandleByIndex(index)
        memory = memory_of(library, handle)
        uuid = library.nvmlDeviceGetUUID(handle)
        name = library.nvmlDeviceGetName(handle)
    except library.NVMLError:
        return None
    processes = []
    with contextlib.suppress(library.NVMLError):  # not permitted in some containers
        processes = library.nvmlDeviceGetComputeRunningProcesses(handle)
    holders = ["another hpcdist run"] if is_claimed(uuid) else []
    for pid in (process.pid for process in processes):
        holders.append(f"pid {pid}")
        with contextlib.suppress(psutil.Error, KeyError):
            process = psutil.Process(pid)
            holders[-1] = f"{process.name()} (pid {pid}, user {process.username()})"
    used, total = int(memory.used), int(memory.total)
    return Gpu(
        index=index, uuid=uuid, name=name, used_bytes=used, total_bytes=total, holders=holders
    )


def memory_of(library: Any, handle: Any) -> Any:
    """Return what NVML tells of a GPU's memory. In version 1 of the answer `used` holds what the
    driver reserves for itself, too, which on recent GPUs is more than some processes use."""
    return library.nvmlDeviceGetMemoryInfo(handle, version=library.nvmlMemory_v2)


def visible_uuids() -> list[str]:
    """Return the UUIDs of the GPUs, or parts of GPUs (MIG), that CUDA would show, in its order."""
    words = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if all(word.startswith("MIG-") for word in words):
        return words
    return [gpu.uuid for gpu in list_gpus()]


def show_only(uuids: Sequence[str]) -> dict[str, str]:
    """Return the variables that show a process these GPUs and no others."""
    if not uuids or not all(map(_OF_AMD.fullmatch, uuids)):
        return {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}
    numbers = ",".join(str(number) for number in range(len(uuids)))
    return {
        "ROCR_VISIBLE_DEVICES": ",".join(uuid.removeprefix("AMD-") for uuid in uuids),
        "HIP_VISIBLE_DEVICES": numbers,
        "CUDA_VISIBLE_DEVICES": numbers,
    }


# AMD's.


def list_amd_gpus(environment: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs that HIP would show torch with these variables, in its order."""
    gpus = [] if why_not_used() else _all_amd_gpus()
    for names in (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")):
        variable = next((environment[name] for name in names if name in environment), None)
        shown = visible(gpus, variable)
        gpus = [msgspec.structs.replace(gpu, index=place) for place, gpu in enumerate(shown)]
    return gpus


def why_not_used() -> str | None:
    """Return why torch cannot use AMD GPUs that are here; None where it can, or there is none.

    KFD lists the graphics of processors, too, which another torch than one for ROCm cannot use.
    """
    if not DEVICE.exists() or not _all_amd_gpus():
        return None
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return f"an AMD GPU is here, but {DEVICE} is closed to you: join its group, often render"
    return None if torch_has_rocm() else "an AMD GPU is here, but torch is built without ROCm"


def torch_has_rocm() -> bool:
    """Return whether the torch of this interpreter, which is not imported, is one for ROCm. Where
    there is none, it is in an image, and taken for one."""
    place = (spec := find_spec("torch")) and spec.origin
    return not place or Path(place).with_name("lib").joinpath("libtorch_hip.so").exists()


def _all_amd_gpus() -> list[Gpu]:
    gpus: list[Gpu] = []
    for node in sorted(KFD.glob("topology/nodes/*"), key=lambda node: int(node.name)):
        lines = (line.split(maxsplit=1) for line in kernel_text(node / "properties").splitlines())
        facts = {words[0]: words[-1] for words in lines if words}
        if facts.get("simd_count", "0") == "0":
            continue  # CPUs, or a GPU that is closed to this process
        unique_id = int(facts.get("unique_id", "0"))
        uuid = f"GPU-{unique_id:016x}" if unique_id else f"AMD-{len(gpus)}"
        device = DRM / f"renderD{facts.get('drm_render_minor', '')}" / "device"
        gpu = Gpu(
            index=len(gpus),
            uuid=uuid,
            name=kernel_text(device / "product_name") or f"AMD {kernel_text(device / 'device')}",
            used_bytes=int(kernel_text(device / "mem_info_vram_used") or 0),
            total_bytes=int(kernel_text(device / "mem_info_vram_total") or 0),
            holders=["another hpcdist run"] if is_claimed(uuid) else [],
        )
        gpus.append(gpu)
    return gpus
