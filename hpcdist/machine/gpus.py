"""The GPUs of this machine and who uses them, through NVML: CUDA itself is never touched.

Even asking torch whether CUDA is available can spoil it for processes forked later.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

import msgspec

from hpcdist.base.errors import JobError

_IDLE_MEMORY_BYTES = 512 * 2**20
"""A GPU on which no process is seen, but with more memory in use, belongs to somebody in another
container, whose processes NVML does not show."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as NVML sees it."""

    index: int
    uuid: str
    name: str
    used_bytes: int
    total_bytes: int
    holders: list[str] = []
    """Its processes, such as `python (pid 41, user ann)`; empty where none is seen."""

    @property
    def is_idle(self) -> bool:
        """Nobody uses it."""
        return not self.holders and self.used_bytes < _IDLE_MEMORY_BYTES


def list_gpus() -> list[Gpu]:
    """All GPUs that this process may use, CUDA_VISIBLE_DEVICES honoured; empty without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        found = [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()
    gpus = [gpu for gpu in found if gpu is not None]
    return visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(gpus: Sequence[Gpu], variable: str | None) -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves: indices or UUID prefixes, to the first unknown.

    Raises JobError for a part of a GPU (MIG), which would otherwise count as unknown.
    """
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


def claim(uuids: Sequence[str]) -> list[socket.socket]:
    """Hold GPUs for as long as the returned sockets live, also against processes that have not
    touched CUDA yet: an abstract socket name per GPU, which the kernel frees with the process.

    Raises OSError where another run holds one of them.
    """
    held: list[socket.socket] = []
    try:
        for uuid in uuids:
            held.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            held[-1].bind(_claim_name(uuid))
    except OSError:
        for claimed in held:
            claimed.close()
        raise
    return held


def _is_claimed(uuid: str) -> bool:
    """Asked by connecting: to claim it for a moment could make another run believe it taken."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_claim_name(uuid))
        except OSError:
            return False
    return True


def _claim_name(uuid: str) -> str:
    return f"\0hpcdist-{uuid}"


def _gpu(nvml: Any, index: int) -> Gpu | None:
    """None for a GPU that does not answer: it fell off the bus, or is closed to this user."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = _memory(nvml, handle)
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        name = _text(nvml.nvmlDeviceGetName(handle))
    except nvml.NVMLError:
        return None
    holders = [_describe(process.pid) for process in _processes(nvml, handle)]
    if _is_claimed(uuid):
        holders.append("another hpcdist run")
    return Gpu(
        index=index,
        uuid=uuid,
        name=name,
        used_bytes=int(memory.used),
        total_bytes=int(memory.total),
        holders=holders,
    )


def _memory(nvml: Any, handle: Any) -> Any:
    """In version 1 of the answer `used` holds what the driver reserves for itself too, which on
    recent GPUs is more than some processes use."""
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError:  # a driver before 510
        return nvml.nvmlDeviceGetMemoryInfo(handle)


def _processes(nvml: Any, handle: Any) -> list[Any]:
    try:
        return list(nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    except nvml.NVMLError:  # not permitted in some containers
        return []


def _describe(pid: int) -> str:
    import psutil

    try:
        process = psutil.Process(pid)
        return f"{process.name()} (pid {pid}, user {process.username()})"
    except (psutil.Error, KeyError):
        return f"pid {pid}"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def visible_uuids() -> list[str]:
    """UUIDs of the GPUs, or parts of GPUs (MIG), that CUDA would show, in its order."""
    words = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if all(word.startswith("MIG-") for word in words):
        return words
    return [gpu.uuid for gpu in list_gpus()]
