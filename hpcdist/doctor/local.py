"""What the doctor asks of this machine, where it is the cluster."""

from __future__ import annotations

from collections.abc import Iterator

from hpcdist.machine.cpus import usable_cpus
from hpcdist.machine.gpus import list_gpus
from hpcdist.machine.memory import free_bytes
from hpcdist.runs.run import Run
from hpcdist.schedulers.finding import Finding, passed, skipped


def examine() -> Iterator[Finding]:
    """What there is to run on."""
    gpus = list_gpus()
    shown = f"{len(gpus)} GPUs, {sum(gpu.is_idle for gpu in gpus)} idle" if gpus else "no GPU"
    free = free_bytes() / 1e9
    yield passed("machine", f"{len(usable_cpus())} CPUs, {shown}, {free:.1f} GB of memory free")


def try_script(script: str) -> Finding:  # noqa: ARG001 - all schedulers are asked so
    """There is nobody who could refuse it."""
    return skipped("directives", "a run on this machine has none")


def explain_end(run: Run) -> str:  # noqa: ARG001 - all schedulers are asked so
    """Nobody else knows."""
    return ""
