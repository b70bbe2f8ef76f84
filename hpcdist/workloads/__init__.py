"""The workloads that a job can name, and where they are found."""

from __future__ import annotations

import importlib
from typing import Any

from hpcdist.job.spec import JobSpec
from hpcdist.rank.context import Workload

WORKLOADS = {
    "train": "hpcdist.workloads.train:TrainWorkload",
    "lightning": "hpcdist.workloads.train:LightningWorkload",
    "script": "hpcdist.workloads.own_code:ScriptWorkload",
    "module": "hpcdist.workloads.own_code:ModuleWorkload",
    "program": "hpcdist.workloads.own_code:ProgramWorkload",
    "function": "hpcdist.workloads.own_code:FunctionWorkload",
    "check": "hpcdist.workloads.cluster_check:CheckWorkload",
    "allreduce": "hpcdist.bench.allreduce.workload:AllreduceWorkload",
    "inference": "hpcdist.bench.inference.workload:InferenceWorkload",
    "dataload": "hpcdist.bench.dataload.workload:DataloadWorkload",
}
"""The key `workload` of a job -> module and class; a module is imported when a job names it."""


def load_workload(job: JobSpec) -> Workload[Any]:
    module, _, name = WORKLOADS[job.workload].partition(":")
    kind: type[Workload[Any]] = getattr(importlib.import_module(module), name)
    return kind(job)
