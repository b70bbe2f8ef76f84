"""Flux as a scheduler of hpcdist: the example of docs/adding-a-scheduler.md, which is not shipped;
test_flux.py tries it on commands that behave as flux-batch(1), flux-jobs(1) and flux-cancel(1) say.
"""

from __future__ import annotations

# ruff: noqa: ARG002 - the protocol has the arguments
import os
import re
import shlex
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.machine.command import run_command
from hpcdist.runs.verdict import State
from hpcdist.schedulers.base import Directive, JobPlace, Plan, Target
from hpcdist.schedulers.batch import Batch, Job
from hpcdist.schedulers.request import cpus_per_node, time_limit_min

_STATES: dict[str, State] = {
    **dict.fromkeys(("D", "S", "PD"), "pending"),
    **dict.fromkeys(("R", "C"), "running"),
    "CD": "done",
    "F": "failed",
    "CA": "cancelled",
    "TO": "failed",
}


class Flux(Batch):
    name = "flux"
    title = "Flux"
    version_command = ("flux", "version")
    template = "flux.sh"
    warnings = ("SIGTERM",)
    can_requeue = False

    def directives(self, job: JobSpec, cluster: ClusterProfile, target: Target) -> list[Directive]:
        found = [
            Directive("--job-name=", shlex.quote(target.name), "The run's id."),
            Directive("--nodes=", str(job.resources.nodes), keys=("resources.nodes",)),
            Directive("--nslots=", str(job.resources.nodes), "One agent per node."),
            Directive("--cores-per-slot=", str(cpus_per_node(job, cluster)), "CPUs of its ranks."),
        ]
        if (limit_min := time_limit_min(job, cluster)) is not None:
            key = "resources.time_limit_min|time_limit_min"
            found.append(Directive("--time-limit=", f"{limit_min:g}m", keys=(key,)))
        output = shlex.quote(f"{target.submitit_folder}/{{{{id}}}}_0_log.out")
        dependencies = [
            f"{one.kind}:{job_id}" for one in target.dependencies for job_id in one.job_ids
        ]
        waits = [Directive("--dependency=", one, "--after") for one in dependencies]
        return [*found, *waits, Directive("--output=", output, "The job's own output.")]

    def script_values(self, job: JobSpec, target: Target, plan: Plan) -> dict[str, Any]:
        return {"output": f"{target.submitit_folder}/node-{{{{taskid}}}}_log.out"}

    def submit_command(self, target: Target, script: str) -> list[str]:
        return ["flux", "batch"]

    def parse_submitted(self, text: str) -> str | None:
        return text if re.fullmatch(r"f[1-9A-HJ-NP-Za-km-z]+", text) else None

    def environment(self, before: Mapping[str, str], target: Target, script: str) -> dict[str, str]:
        own = {name: value for name, value in before.items() if not name.startswith("FLUX_JOB")}
        return own | {"FLUX_F58_FORCE_ASCII": "1"}

    def list_jobs(self, ids: Collection[str]) -> list[Job]:
        form = "--format={id.f58plain}|{status_abbrev}|{returncode}|{nodelist}|{name}"
        done = run_command(["flux", "jobs", "-a", "--no-header", form, *ids], timeout_s=30)
        rows = [line.split("|", 4) for line in done.stdout.splitlines()]
        return [
            Job(
                id=job_id,
                name=name,
                state=_STATES[word],
                word=word,
                reason="it waits for nodes" if word == "S" else f"Flux says {word}",
                exit_code=int(code) if code.isdecimal() else None,
                nodes=nodes.split(",") if nodes else [],
            )
            for job_id, word, code, nodes, name in rows
        ]

    def kill(self, ids: Collection[str]) -> None:
        if ids:
            run_command(["flux", "cancel", *ids], timeout_s=30)

    def own_job_id(self) -> str:
        return os.environ["FLUX_ENCLOSING_ID"]

    def place(self) -> JobPlace:
        node_rank = int(os.environ.get("FLUX_TASK_RANK") or 0)
        return msgspec.structs.replace(super().place(), node_rank=node_rank)


scheduler = Flux()
