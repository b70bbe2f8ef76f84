"""What `runs` and `status` say about a run: plain values, null where something is not known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcdist.run import Run
from hpcdist.submitted import job_section, scheduler_of, section
from hpcdist.verdict import State


def describe_run(run: Run, state: State) -> dict[str, Any]:
    """A run's submission and state; a run directory that is damaged has nulls."""
    spec = run.read_spec() or {}
    job = section(spec, "job")
    resources = section(job, "resources")
    verdict = run.read_verdict()
    return {
        "run": run.id,
        "job": job.get("name"),
        "workload": job.get("workload"),
        "scheduler": scheduler_of(run),
        "state": state,
        "nodes": resources.get("nodes"),
        "gpus_per_node": resources.get("gpus"),
        "created_s": _number(spec.get("created_s")),
        "path": str(run.path),
        "message": None if verdict is None else verdict.message,
        "last_attempt": _last_attempt(run),
        "exit_code": None if verdict is None else verdict.exit_code_of_run,
    }


def _last_attempt(run: Run) -> str | None:
    """How the newest attempt ended, where another is to follow."""
    from hpcdist.follow.run import again_sentence

    try:
        verdict = run.read_attempt_verdict(run.newest_attempt())
    except OSError:  # the folder is damaged
        return None
    if verdict is None or run.verdict_file.exists():
        return None
    most = job_section(run, "launch").get("max_restarts", 0)
    return again_sentence(verdict, most_restarts=most)


def size(described: Mapping[str, Any]) -> str:
    """Nodes x GPUs per node, in words."""
    nodes, gpus = described["nodes"], described["gpus_per_node"]
    return "-" if nodes is None or gpus is None else f"{nodes} x {gpus}"


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
