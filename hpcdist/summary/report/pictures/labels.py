"""The words of pictures that are shown without their page: names of runs and bars, and below each
title the hardware and the date."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from hpcdist.base.text import shown
from hpcdist.cluster.schedulers import LOCAL
from hpcdist.runs.run import Run
from hpcdist.runs.spec import RunSpec
from hpcdist.summary.report.runs import Row
from hpcdist.summary.values import Cell, RunSummary

_MOST_NAMES = 2
_SIZES = ("nodes=", "gpus=", "resources.nodes=", "resources.gpus=", "repeat=")
"""Parts of a point's label that the size says, too, or the end of the run's id."""
_ID = re.compile(r"-\d{8}-\d{6}-(.+)$")


def size(sized: RunSummary | Cell) -> str:
    """Return nodes x ranks, or GPUs, of each."""
    return f"{sized.nodes} x {sized.gpus_per_node}"


def unit_of(runs: Iterable[RunSummary]) -> str:
    """Return what there are several of for each node: no GPUs where runs were on CPUs."""
    return "ranks" if any(run.num_cpus is not None for run in runs) else "GPUs"


def run_names(rows: Sequence[Row]) -> list[str]:
    """Name each run by its variant, its size and its point; and by the end of its id, too, where
    others have the same name."""
    names = []
    for row in rows:
        label = _spec(row.run).sweep
        point = [
            word
            for word in (label.label if label and label.label else "").split()
            if not word.startswith(_SIZES) and row.run.variant is None
        ]
        parts = [row.run.variant or "", size(row.run), *point]
        names.append(", ".join(shown(part) for part in parts if part))
    taken = Counter(names)
    return [
        f"{name} ({short_id(row.run.run)})" if taken[name] > 1 else name
        for row, name in zip(rows, names, strict=True)
    ]


def short_id(run: str) -> str:
    """Return the end of a run's id, which tells it from others of its job."""
    found = _ID.search(run)
    return shown(found[1] if found else run)


def made_on(runs: Iterable[RunSummary]) -> str:
    """Return `CPUs of vm, 2026-11-23`: the hardware of the runs, and the days of their
    submission; what is not known is left out."""
    devices, hosts, days = dict[str, None](), dict[str, None](), set[str]()
    for run in runs:
        spec = _spec(run)
        devices.update(dict.fromkeys(_devices(run)))
        hosts.update(dict.fromkeys(_hosts(run, spec)))
        if spec.created_s is not None:
            days.add(_day(spec.created_s))
    place = _few(list(devices), "kinds of GPUs")
    if names := _few(list(hosts), "hosts"):
        place += f" of {names}" if place else f"on {names}"
    ends = sorted(days - {""})
    when = " to ".join(dict.fromkeys(ends[:1] + ends[-1:]))
    return ", ".join(part for part in (place, when) if part)


def _devices(run: RunSummary) -> list[str]:
    if run.num_cpus is not None:
        return ["CPUs"]
    gpus = run.usage.gpus if run.usage else []
    named = [shown(gpu.name) for gpu in gpus if gpu.name]
    return named or (["GPUs"] if run.step_time_s else [])


def _hosts(run: RunSummary, spec: RunSpec) -> list[str]:
    """Return the hosts of its nodes, as far as they are known."""
    nodes = run.usage.nodes if run.usage else []
    named = [node.host for node in nodes if node.host]
    if not named and spec.scheduler == LOCAL and spec.host:
        named = [spec.host]
    if not named and run.slowest_rank and run.nodes == 1:
        named = [run.slowest_rank.host or ""]
    return [shown(name) for name in named if name]


def _few(names: Sequence[str], noun: str) -> str:
    return " and ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} {noun}"


def _spec(run: RunSummary) -> RunSpec:
    return (Run(Path(run.path)).read_spec() if run.path else None) or RunSpec()


def _day(time_s: float) -> str:
    try:
        return time.strftime("%Y-%m-%d", time.localtime(time_s))
    except (OverflowError, ValueError, OSError):  # a damaged file says 1e400
        return ""
