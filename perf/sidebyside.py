"""Two sides measured in turns, and their ratio with its spread.

A machine is never quite idle, and its speed drifts. So the sides take turns (A B A B ...), each
ratio is between neighbours in time, and what is printed is the least, the middle and the largest
of the ratios.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

Figures = Mapping[str, float]
"""What one run of one side yields: name of a measure -> value."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One row of the table."""

    name: str
    unit: str
    at_most: float | None = None
    """Largest ratio, or difference, that meets the target; None for measures without one."""
    at_least: float | None = None
    """Smallest ratio, or difference, that meets the target."""
    by_difference: bool = False
    """Compare by ours minus the peer's, in the measure's unit, where a ratio would say little."""

    def compare(self, ours: float, peer: float) -> float:
        """Two neighbours in time."""
        return ours - peer if self.by_difference else ours / peer


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The least, the middle and the largest of several values."""

    least: float
    median: float
    largest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(least=min(values), median=statistics.median(values), largest=max(values))


def compare(
    title: str,
    measures: Sequence[Measure],
    sides: Mapping[str, Callable[[], Figures]],
    *,
    pairs: int,
    warms_up: bool = False,
) -> None:
    """Run two sides in turns and print a row per measure; the first side is divided by the second.

    Differences have a sign. With `warms_up` each side runs once before, unless a single pair says
    that this is a trial.
    """
    if warms_up and pairs > 1:
        for run in sides.values():
            run()
    found: dict[str, list[Figures]] = {side: [] for side in sides}
    for _ in range(pairs):
        for side, run in sides.items():
            found[side].append(run())
    ours, peer = sides
    print(f"\n{title}, pairs: {pairs}")
    print(
        f"  {'':<36}{ours:>18}{peer:>18}   {'ratio: min':>10}{'median':>8}{'max':>8}   target, met"
    )
    for measure in measures:
        print(_row(measure, found[ours], found[peer]), flush=True)


def print_machine() -> None:
    """Print what a figure means nothing without."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "hpcdist"))
    print(
        f"{len(os.sched_getaffinity(0))} CPUs ({_cpu_name()}), {memory_bytes / 1e9:.0f} GB memory, "
        f"load {os.getloadavg()[0]:.1f} at the start; Linux {platform.release()}, "
        f"Python {platform.python_version()}, {versions}",
        flush=True,
    )


def option_parser(about: str | None, *, pairs: int) -> argparse.ArgumentParser:
    """A parser with the option that all benchmarks have."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=pairs, help="default: %(default)s")
    return parser


def _row(measure: Measure, ours: Sequence[Figures], peer: Sequence[Figures]) -> str:
    values = [figures[measure.name] for figures in ours]
    peer_values = [figures[measure.name] for figures in peer]
    found = Spread.of(
        [measure.compare(value, other) for value, other in zip(values, peer_values, strict=True)]
    )
    name = f"{measure.name} ({measure.unit})"
    form = "+.3f" if measure.by_difference else ".3f"
    shown = "".join(
        f"{format(value, form):>{width}}"
        for value, width in ((found.least, 10), (found.median, 8), (found.largest, 8))
    )
    return (
        f"  {name:<36}{_show(values):>18}{_show(peer_values):>18}   {shown}   "
        f"{_judge(measure, found.median)}"
    )


def _show(values: Sequence[float]) -> str:
    """The middle value, and half the range."""
    spread = Spread.of(values)
    return f"{spread.median:,.4g} ± {(spread.largest - spread.least) / 2:,.2g}"


def _judge(measure: Measure, found: float) -> str:
    sign = "+" if measure.by_difference else ""
    if measure.at_most is not None:
        return f"<= {measure.at_most:{sign}g}: {'yes' if found <= measure.at_most else 'NO'}"
    if measure.at_least is not None:
        return f">= {measure.at_least:{sign}g}: {'yes' if found >= measure.at_least else 'NO'}"
    return "-"


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
