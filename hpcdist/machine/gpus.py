"""The GPUs of this machine and who uses them, through NVML, or as the kernel shows AMD's: CUDA
itself is never touched.

Even asking torch whether CUDA is available can spoil it for processes forked later.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import JobError
from hpcdist.machine.amd import AmdGpu, amd_variables, list_amd_gpus

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


def list_gpus() -> list[Gpu]:
    """Return all GPUs that this process may use, by CUDA_VISIBLE_DEVICES, or by ROCm's variables
    where there are AMD's alone; none without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return list(map(_amd_gpu, list_amd_gpus(os.environ)))
    try:
        found = [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()
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
                f"CUDA_VISIBLE_DEVICES names {name}: the local scheduler does not support MIG "
                "devices",
                hint="run on the CPUs: --set launch.device=cpu, or name whole GPUs in "
                "CUDA_VISIBLE_DEVICES",
            )
        matches = [
            gpu
            for gpu in gpus
            if name == str(gpu.index) or (name.startswith("GPU-") and gpu.uuid.startswith(name))
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


def _gpu(nvml: Any, index: int) -> Gpu | None:
    """Return None for a GPU that does not answer: it is lost, or closed to this user."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        try:
            # In version 1 `used` holds what the driver reserves for itself too, which on recent
            # GPUs is more than some processes use.
            memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        except nvml.NVMLError:  # a driver before 510
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        name = _text(nvml.nvmlDeviceGetName(handle))
    except nvml.NVMLError:
        return None
    try:
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:  # not permitted in some containers
        processes = []
    holders = [_describe(process.pid) for process in processes]
    if is_claimed(uuid):
        holders.append("another hpcdist run")
    return Gpu(
        index=index,
        uuid=uuid,
        name=name,
        used_bytes=int(memory.used),
        total_bytes=int(memory.total),
        holders=holders,
    )


def _amd_gpu(gpu: AmdGpu) -> Gpu:
    return Gpu(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        used_bytes=gpu.used_bytes,
        total_bytes=gpu.total_bytes,
        holders=["another hpcdist run"] if is_claimed(gpu.uuid) else [],
    )


def show_only(uuids: Sequence[str]) -> dict[str, str]:
    """Return the variables that show a process these GPUs and no others."""
    return amd_variables(uuids) or {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}


def _describe(pid: int) -> str:
    import psutil

    try:
        process = psutil.Process(pid)
        return f"{process.name()} (pid {pid}, user {process.username()})"
    except (psutil.Error, KeyError):
        return f"pid {pid}"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def driver_cuda_version() -> str | None:
    """Return the newest CUDA that this host's driver knows, such as 12.4; None without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            version = int(pynvml.nvmlSystemGetCudaDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None
    return f"{version // 1000}.{version % 1000 // 10}"


def visible_uuids() -> list[str]:
    """Return the UUIDs of the GPUs, or parts of GPUs (MIG), that CUDA would show, in its order."""
    words = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if all(word.startswith("MIG-") for word in words):
        return words
    return [gpu.uuid for gpu in list_gpus()]
