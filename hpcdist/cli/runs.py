"""`hpcdist runs`: what was submitted; and what --json prints of a run there and in `status`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import about_runs
from hpcdist.cli.printing import local_time, note, print_columns, print_json
from hpcdist.monitor.states import (
    OPEN_STATES,
    continuation,
    end_verdict,
    run_conditions,
)
from hpcdist.runs.remote import host_of_run
from hpcdist.runs.run import Run, all_runs
from hpcdist.schedulers.base import Condition

_PLACE_KEYS = ("id", "index", "num_points", "point", "repeat", "label", "comparison", "variant")
"""Where a run stands in its sweep, as --json prints it."""


@click.command(name="runs", cls=HostCommand)
@about_runs
def runs(*, runs: Path, as_json: bool) -> None:
    """List all runs, the oldest first, with their states; a sweep is one line."""
    listed = all_runs(runs)
    conditions = run_conditions(listed, warn=note)
    described = [describe_run(run, conditions[run.id]) for run in listed]
    if as_json:
        print_json(described)
        return
    if not listed:
        note(f"there are no runs in {runs}; submit one with: hpcdist submit ddp --local")
        return
    rows = []
    for part in by_sweep(described):
        first, count = part[0], len(part)
        sweep, job = first["sweep"], first["job"] or "-"
        sizes = dict.fromkeys(map(size, part))
        states = dict.fromkeys(run["state"] for run in part)
        places = {run["cluster"] or run["scheduler"] or "-": None for run in part}
        if count > 1:
            kind = "comparison" if sweep["comparison"] else "sweep"
            job = f"{sweep['comparison'] or job}, {kind} of {count} runs"
        else:
            job += f": {sweep['label']}" if sweep else ""
            job += f" ({first['damage']})" if first["damage"] else ""
        rows.append(
            (
                sweep["id"] if count > 1 else first["run"],
                *(states if len(states) == 1 else [states_in_words(run["state"] for run in part)]),
                ", ".join(places),
                *(sizes if len(sizes) == 1 else [f"{len(sizes)} sizes"]),
                local_time(first["created_s"]),
                job,
            )
        )
    print_columns(("RUN", "STATE", "CLUSTER", "NODES x GPUs", "SUBMITTED", "JOB"), rows)


def describe_run(run: Run, condition: Condition) -> dict[str, Any]:
    """Return a run's submission and state; a run directory that is damaged has nulls."""
    from hpcdist.monitor.follow import again_sentence, last_ended

    spec = run.spec
    job = spec.outline
    verdict = run.read_verdict()
    last_attempt = None
    if verdict is None and condition.state in OPEN_STATES:  # another attempt is to follow
        with suppress(OSError):  # the folder is damaged
            attempt = last_ended(run)
            most = job.launch.max_restarts
            last_attempt = attempt and again_sentence(attempt, most_restarts=most)
    elif verdict is None:  # its host is gone, say
        verdict = end_verdict(run, condition)
    return {
        "run": run.id,
        "job": job.name or None,
        "workload": job.workload or None,
        "scheduler": run.read_scheduler(),
        "cluster": spec.cluster.name or host_of_run(run),
        "job_id": run.read_job_id(),
        "state": condition.state,
        "nodes": job.resources.nodes if job.name else None,
        "gpus_per_node": job.resources.gpus if job.name else None,
        "created_s": spec.created_s,
        "path": str(run.path),
        "message": None if verdict is None else verdict.message,
        "last_attempt": last_attempt,
        "continue_with": None if verdict is None else continuation(run, verdict),
        "reason": condition.reason,
        "sweep": spec.sweep and {key: getattr(spec.sweep, key) for key in _PLACE_KEYS},
        "exit_code": None if verdict is None else verdict.exit_code_of_run,
        "damage": run.describe_damage(),
    }


def by_sweep(described: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Group the runs of a sweep, at the place of its first; other runs stand each by themselves."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for run in described:
        sweep = run["sweep"]
        parts.setdefault(f"sweep {sweep['id']}" if sweep else f"run {run['run']}", []).append(run)
    return list(parts.values())


def states_in_words(states: Iterable[str]) -> str:
    """5 running, 3 pending, 92 done: what goes on comes first."""
    counts = Counter(states)
    first = {"running": 0, "pending": 1, "done": 2}
    order = sorted(counts, key=lambda state: (first.get(state, 3), state))
    return ", ".join(f"{counts[state]} {state}" for state in order)


def size(described: Mapping[str, Any]) -> str:
    """Nodes x GPUs per node, in words."""
    nodes, gpus = described["nodes"], described["gpus_per_node"]
    return "-" if nodes is None or gpus is None else f"{nodes} x {gpus}"
