"""What `runs` and `status` say about a run: plain values, null where something is not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpcdist.monitor.states import OPEN_STATES, end_verdict
from hpcdist.runs.run import Run
from hpcdist.runs.spec import RunSpec, SweepPlace
from hpcdist.runs.verdict import State, Verdict
from hpcdist.schedulers.base import Condition


def describe_run(run: Run, state: State, reason: str | None = None) -> dict[str, Any]:
    """A run's submission and state; a run directory that is damaged has nulls.

    `reason` is the scheduler's, of a run without verdict.
    """
    spec = run.read_spec() or RunSpec()
    job = spec.outline
    is_open = state in OPEN_STATES
    verdict = run.read_verdict() or (None if is_open else _last_word(run, state))
    return {
        "run": run.id,
        "job": job.name,
        "workload": job.workload,
        "scheduler": run.read_scheduler(),
        "job_id": run.read_job_id(),
        "state": state,
        "nodes": job.resources.nodes,
        "gpus_per_node": job.resources.gpus,
        "created_s": spec.created_s,
        "path": str(run.path),
        "message": None if verdict is None else verdict.message,
        "last_attempt": _last_attempt(run) if is_open else None,
        "reason": reason,
        "sweep": None if spec.sweep is None else _describe_place(spec.sweep),
        "exit_code": None if verdict is None else verdict.exit_code_of_run,
    }


def _last_word(run: Run, state: State) -> Verdict | None:
    """The verdict on the newest attempt, of a run that has ended with it."""
    verdict = _attempt_verdict(run)
    return None if verdict is None else end_verdict(run, Condition(state=state))


def _attempt_verdict(run: Run) -> Verdict | None:
    try:
        return run.read_attempt_verdict(run.newest_attempt())
    except OSError:  # the folder is damaged
        return None


def _last_attempt(run: Run) -> str | None:
    """How the newest attempt ended, where another is to follow."""
    from hpcdist.monitor.follow import again_sentence

    verdict = _attempt_verdict(run)
    if verdict is None or run.verdict_file.exists():
        return None
    return again_sentence(verdict, most_restarts=run.read_outline().launch.max_restarts)


def _describe_place(place: SweepPlace) -> dict[str, Any]:
    """The sweep that a run belongs to, and its place there."""
    keys = ("id", "index", "num_points", "point", "repeat", "label", "comparison", "variant")
    return {key: getattr(place, key) for key in keys}


def by_sweep(described: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The runs of a sweep together, at the place of its first; other runs each by themselves."""
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
