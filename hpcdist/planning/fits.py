"""The memory of a job, and whether it fits into that of its ranks.

Torch's trackers know tensors alone: not the workspaces of cuDNN and NCCL, nor what the allocator
loses. So what they say is corrected by what earlier runs on such devices took of it. The memory of
scripts is known from their earlier runs alone.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from msgspec.structs import replace

from hpcdist.base.text import number_of
from hpcdist.job.spec import TrainingJob, job_to_dict
from hpcdist.machine.command import python_command
from hpcdist.machine.memory import free_bytes
from hpcdist.planning.earlier import device_of
from hpcdist.planning.how_long import is_like
from hpcdist.planning.memory import Memory, Question
from hpcdist.runs.events import NodeBegin
from hpcdist.runs.run import Run
from hpcdist.schedulers.request import mem_gb_per_node
from hpcdist.submission.plan import PlannedRun
from hpcdist.summary.compare.planned import peak_bytes
from hpcdist.summary.figures.run import MeasuredRun
from hpcdist.summary.read.event_file import read_events

_LIMIT_S = 300.0
_NOT_TRACKED = 1.2
"""On GPUs without earlier runs, so many times as much must fit."""


def find_memory(
    planned: PlannedRun, runs: Sequence[MeasuredRun], asked: Mapping[str, Any]
) -> Memory:
    """Return the memory of a job, by runs at its place; it takes some seconds, in which torch is
    imported beside."""
    job, device = planned.loaded.job, device_of(planned)
    on_gpus = device == "cuda"
    room_bytes = _room(planned, runs, device)
    if not isinstance(job, TrainingJob):
        peaks = [peak for run in runs if is_like(run, asked) and (peak := peak_bytes(run.figures))]
        source = f"the most of {number_of(len(peaks), 'earlier run')}"
        source = source if peaks else "not known before its first run: it is not a trainer"
        most = max(peaks, default=None)
        return Memory(device=device, peak_bytes=most, room_bytes=room_bytes, source=source)
    ratios = [
        (run.figures.job == job.name, peak / estimate)
        for run in runs
        if (plan := run.figures.planned)
        and (estimate := plan.estimate_bytes)
        and (peak := peak_bytes(run.figures))
    ]
    counted = [one for is_own, one in ratios if is_own] or [one for _, one in ratios]
    factor = median(counted) if counted else 1.0
    spare = 1.0 if counted or not on_gpus else _NOT_TRACKED
    found = _ask((job_to_dict(job), device, room_bytes and room_bytes / (factor * spare)))
    if found.estimate_bytes is None:
        return replace(found, room_bytes=room_bytes)
    source = f", x {factor:.2f} as in {number_of(len(counted), 'earlier run')}" if counted else ""
    if on_gpus and not counted:
        source = "; without cuDNN's and NCCL's workspaces and fragmentation: 10 to 20 % more"
    return replace(
        found,
        peak_bytes=found.estimate_bytes * factor,
        room_bytes=room_bytes,
        source=f"by torch's tracker{source}",
    )


def _room(planned: PlannedRun, runs: Sequence[MeasuredRun], device: str) -> float | None:
    """Return the memory that a rank has; on GPUs as the newest run there saw it."""
    job = planned.loaded.job
    if device == "cuda":
        files = [one for run in runs for one in Run(Path(str(run.figures.path))).usage_files()]
        for number, attempt, path in reversed(files):
            begin = read_events(path, number=number, attempt=attempt).last(NodeBegin)
            sizes = [gpu.memory_bytes for gpu in (begin.gpus if begin else ())]
            if known := [size for size in sizes if size]:
                return float(min(known))
        return None
    if (mem_gb := mem_gb_per_node(job, planned.plan.cluster)) is not None:
        return mem_gb * 1e9 / job.ranks_per_node
    return free_bytes() / job.num_ranks if planned.scheduler.runs_here else None


def _ask(question: Question) -> Memory:
    command = python_command("from hpcdist.planning.memory import answer; answer()")
    asked = msgspec.json.encode(question)
    try:
        done = subprocess.run(
            command, input=asked, capture_output=True, timeout=_LIMIT_S, check=False
        )
        return msgspec.json.decode(done.stdout, type=Memory)
    except (subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        return Memory(device=question[1], source=f"not known: torch's tracker failed: {error}")
