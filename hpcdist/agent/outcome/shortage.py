"""A lack of memory: from what an exception says to a sentence with figures.

Messages of torch and numpy are those of torch 2.6 to 2.15:

CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which
1.03 GiB is free. [...] Of the allocated memory 75.20 GiB is allocated by PyTorch, and [...]

DefaultCPUAllocator: can't allocate memory: you tried to allocate 400000000000 bytes. Error code 12
"""

from __future__ import annotations

import re
from signal import SIGBUS, SIGKILL, strsignal

import msgspec

from hpcdist.agent.outcome.disk import why_no_shared_memory
from hpcdist.base import files
from hpcdist.machine.memory import KernelKills, kernel_kills

_UNITS = {
    unit: 1024**power
    for power, unit in enumerate(("bytes", "kib", "mib", "gib", "tib", "pib", "eib"))
}
_SIZE = rf"([\d.]+) ((?i:{'|'.join(_UNITS)}))"
_SIZES = {
    "asked_bytes": re.compile(rf"(?:tried|unable) to allocate {_SIZE}", re.IGNORECASE),
    "total_bytes": re.compile(rf"total capacity of {_SIZE}"),
    "free_bytes": re.compile(rf"of which {_SIZE} is free"),
    "allowed_bytes": re.compile(rf"(?<!\d){_SIZE} allowed"),
    "used_bytes": re.compile(rf"{_SIZE} is allocated by PyTorch"),
    "reserved_bytes": re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"),
}
"""Field of Shortage -> where it stands."""
_GPU = re.compile(r"GPU (\d+) has a total capacity")
_TELLS = re.compile(
    r"can't allocate memory|cannot allocate memory|out of memory|std::bad_alloc", re.IGNORECASE
)


_KILLED_WORKER = re.compile(r"DataLoader worker \(pid (\d+)\) is killed by signal: ([\w /]+)")
_LESS_MEMORY = "ask for more memory (resources.mem_gb), or use fewer workers or smaller batches"


class LostWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a DataLoader that a signal killed."""

    sentence: str
    out_of_memory: bool = False
    """The kernel killed it for lack of memory."""


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """A request for memory that failed, in bytes; None: not said."""

    asked_bytes: int
    gpu: int | None = None
    """Index, as the process counts its GPUs; None: memory of the host."""
    total_bytes: int | None = None
    free_bytes: int | None = None
    allowed_bytes: int | None = None
    """Limit of a process that is allowed a part of the GPU only."""
    used_bytes: int | None = None
    """Held by tensors of this process."""
    reserved_bytes: int | None = None
    """Held for later tensors, in pieces too small for this one."""


def tells_of_shortage(exception: str, message: str) -> bool:
    """Return True where an exception of this type, with its module, is about a lack of memory."""
    name = exception.rpartition(".")[2]
    if name in {"MemoryError", "_ArrayMemoryError", "OutOfMemoryError"}:
        return True
    # What CUDA itself says, such as when it starts, is an AcceleratorError from torch 2.8 on.
    # NCCL says it in its own error.
    said_by = {"RuntimeError", "OSError", "AcceleratorError", "DistBackendError"}
    return name in said_by and bool(_TELLS.search(message))


def find_lost_worker(error: BaseException, before: KernelKills) -> LostWorker | None:
    """Return the process of a DataLoader that a signal killed, where an exception came of that:
    torch's last words are only that it `exited unexpectedly`. `before` was counted when the rank
    began."""
    try:
        text = "\n".join(map(str, files.causes(error)))
    except Exception:  # noqa: BLE001 - __str__ is the user's code
        return None
    found = _KILLED_WORKER.search(text)
    return None if found is None else judge_lost_worker(found[1], found[2], before, kernel_kills())


def judge_lost_worker(
    pid: str, signal_words: str, before: KernelKills, now: KernelKills
) -> LostWorker:
    """Return why a process of a DataLoader was killed: by what the kernel has counted, if that says
    so, else by what it may have been."""
    who = f"its DataLoader worker (pid {pid})"
    if signal_words == strsignal(SIGBUS):
        return LostWorker(sentence=f"{who} was killed by SIGBUS: {why_no_shared_memory()}")
    if signal_words != strsignal(SIGKILL):
        return LostWorker(sentence=f"{who} was killed by a signal: {signal_words}")
    if killer := before.tell_more(now):
        return LostWorker(
            sentence=f"{who} was killed by {killer}; {_LESS_MEMORY}", out_of_memory=True
        )
    if now.is_of_group:
        why = "by hand or by another program: the kernel counts no kill for lack of memory"
    else:
        why = f"by hand, or for lack of memory, which is not counted here: {_LESS_MEMORY}"
    return LostWorker(sentence=f"{who} was killed by SIGKILL, not by hpcdist ({why})")


def parse_shortage(message: str) -> Shortage | None:
    """Return the figures in an exception's message; None where it holds none."""
    found = {
        field: int(float(match[1]) * _UNITS[match[2].lower()])
        for field, pattern in _SIZES.items()
        if (match := pattern.search(message))
    }
    if "asked_bytes" not in found:
        return None
    gpu = _GPU.search(message)
    return Shortage(gpu=int(gpu[1]) if gpu else None, **found)


def shortage_sentence(shortage: Shortage) -> str:
    """Return a sentence: `2.15 GB were asked for, 1.11 GB of GPU 0's 84.99 GB were free`."""
    parts = [f"{_gb(shortage.asked_bytes)} were asked for"]
    if shortage.free_bytes is not None and shortage.total_bytes is not None:
        whose = "" if shortage.gpu is None else f"GPU {shortage.gpu}'s "
        free, total = _gb(shortage.free_bytes), _gb(shortage.total_bytes)
        parts.append(f"{free} of {whose}{total} were free")
    elif shortage.free_bytes is not None:
        parts.append(f"{_gb(shortage.free_bytes)} were left to the rank on its host")
    if shortage.allowed_bytes is not None:
        parts.append(f"this process is allowed {_gb(shortage.allowed_bytes)}")
    if shortage.used_bytes is not None:
        parts.append(f"its tensors held {_gb(shortage.used_bytes)}")
    if shortage.reserved_bytes is not None and shortage.reserved_bytes >= shortage.asked_bytes:
        parts.append(
            f"{_gb(shortage.reserved_bytes)} were held in pieces (as a variable in the cluster "
            "profile, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True can avoid that)"
        )
    return ", ".join(parts)


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.2f} GB"
