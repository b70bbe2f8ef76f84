"""What every rank runs: one module per workload, and the table of them.

A workload's module offers `run(context)`, called in every rank; `check(job)` and `prepare(job)`,
called once where the job is submitted (they import no torch); and `preload(job)`, the modules that
an agent's forkserver imports once for all ranks of its node.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from hpcdist.job.preload import Preload
from hpcdist.job.spec import JobSpec
from hpcdist.rank.context import RankContext
from hpcdist.workloads.main_module import set_main

WORKLOADS = {
    "train": "hpcdist.workloads.train",
    "lightning": "hpcdist.workloads.lightning",
    "script": "hpcdist.workloads.script",
    "module": "hpcdist.workloads.module",
    "program": "hpcdist.workloads.program",
    "function": "hpcdist.workloads.function",
    "check": "hpcdist.workloads.cluster_check",
    "allreduce": "hpcdist.bench.allreduce.workload",
    "inference": "hpcdist.bench.inference.workload",
    "dataload": "hpcdist.bench.dataload.workload",
}
"""Workload -> its module; none is called as a function here is, which would hide the function."""


def run(context: RankContext) -> None:
    """Run the job's workload in this rank, which has nothing of its agent's main program."""
    set_main()
    _module(context.job).run(context)


def check(job: JobSpec) -> None:
    """Raise JobError for what the workload can know to be wrong where the job is submitted."""
    _module(job).check(job)


def check_device(job: JobSpec, device: str) -> None:
    """Raise JobError for what the workload can know to be wrong of the ranks' device, cpu or cuda,
    once that is known: a module offers it where it can."""
    checking = getattr(_module(job), "check_device", None)
    if checking is not None:
        checking(job, device)


def check_host(job: JobSpec, device: str) -> None:
    """Raise JobError for what this host lacks, where ranks are about to start on it: a module
    offers it where it can."""
    checking = getattr(_module(job), "check_host", None)
    if checking is not None:
        checking(job, device)


def notes(job: JobSpec) -> list[str]:
    """What the user should know before the job is submitted; it has been checked. A module offers
    it where it can."""
    noting = getattr(_module(job), "notes", None)
    return noting(job) if noting is not None else []


def prepare(job: JobSpec) -> None:
    """Do what must be done once, before any rank starts: downloads, for example."""
    _module(job).prepare(job)


def preload(job: JobSpec) -> Preload:
    """What to import once per node, before the ranks are forked; it starts no threads. A module of
    this package may give the names of modules alone."""
    found: Preload | list[str] = _module(job).preload(job)
    return found if isinstance(found, Preload) else Preload(steps=[*found])


def _module(job: JobSpec) -> ModuleType:
    return importlib.import_module(WORKLOADS[job.workload])
