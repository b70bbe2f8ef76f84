"""Two sides measured in turns (A B A B ...), and the mean of their ratios with its interval.

A machine is never quite idle, and its speed drifts: each ratio is between neighbours in time. Means
and intervals are those of the summary (hpcdist/base/statistics.py). Whole commands are timed by
hyperfine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from hpcdist.base import statistics

BIN = Path(sys.executable).parent
SCRIPTS = Path(__file__).parent / "scripts"
HPCDIST = str(BIN / "hpcdist")
TORCHRUN = str(BIN / "torchrun")

LIMIT_S = 180.0  # longer than anything here takes: a command that needs more hangs

Figures = Mapping[str, float]
"""What one run of one side yields: name of a measure -> value."""

_TILTING = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "OMP_NUM_THREADS", "HPCDIST_RUNS")
"""Variables that no user has. The first would compile an editable install anew at each start."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One row of the table; `at_most` and `at_least` are targets for the ratio."""

    name: str
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    by_difference: bool = False
    """Compare by ours minus the peer's, in the measure's unit, where a ratio would say little."""

    def compare(self, ours: float, peer: float | None = None) -> float:
        """Two neighbours in time; of a side without a peer, the value itself."""
        if peer is None:
            return ours
        return ours - peer if self.by_difference else ours / peer


def compare(
    title: str,
    measures: Sequence[Measure],
    sides: Mapping[str, Callable[[], Figures]],
    *,
    pairs: int,
    warms_up: bool = False,
) -> None:
    """Run two sides in turns and print a row per measure; the first side is divided by the second.

    Of a single side, the value itself is compared with the target. With `warms_up` each side runs
    once before, unless a single pair says that this is a trial.
    """
    for run in sides.values() if warms_up and pairs > 1 else ():
        run()
    rounds = [[run() for run in sides.values()] for _ in range(pairs)]
    print(f"\n{title}, pairs: {pairs}")
    heads = "".join(f"{side:>20}" for side in sides)
    print(f"  {'mean ± 95 %':<36}{heads}   {'ratio or difference':<24} target, met")
    for measure in measures:
        values = [[figures[measure.name] for figures in one] for one in rounds]
        columns = map(statistics.measure, zip(*values, strict=True))
        shown = "".join(f"{show(column):>20}" for column in columns)
        ratio = statistics.measure([measure.compare(*pair) for pair in values])
        name = f"{measure.name} ({measure.unit})"
        print(f"  {name:<36}{shown}   {show(ratio):<24} {judge(measure, ratio)}", flush=True)


def show(value: statistics.Measure) -> str:
    """Return a mean with half of its 95 % interval, where there is one."""
    if value.interval is None:
        return f"{value.mean:,.4g}"
    return f"{value.mean:,.4g} ± {value.interval.high - value.mean:,.2g}"


def judge(measure: Measure, found: statistics.Measure) -> str:
    """Return the target, and whether the mean meets it; `?` where the interval leaves it open."""
    for sign, target, order in (("<=", measure.at_most, 1), (">=", measure.at_least, -1)):
        if target is not None:
            ends = found.interval
            is_open = ends is not None and ends.low < target < ends.high
            is_met = order * found.mean <= order * target
            return f"{sign} {target:g}: {'yes' if is_met else 'NO'}{' ?' if is_open else ''}"
    return "-"


def parse_options(about: str | None, **defaults: object) -> argparse.Namespace:
    """Read the command line: an option for each default, with several values for a list. Then print
    the machine, without which no figure means anything."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, formatter_class=raw)
    for name, default in defaults.items():
        first = default[0] if isinstance(default, list) else default
        many = {"nargs": "+"} if isinstance(default, list) else {}
        parser.add_argument(
            f"--{name}", type=type(first), default=default, help="default: %(default)s", **many
        )
    options = parser.parse_args()
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    print(
        f"{len(os.sched_getaffinity(0))} CPUs ({cpu[1] if cpu else platform.machine()}), "
        f"load {os.getloadavg()[0]:.1f} at the start; {platform.platform()}, "
        f"Python {platform.python_version()}, torch {metadata.version('torch')}",
        flush=True,
    )
    return options


def user_environment() -> dict[str, str]:
    """The environment without what would tilt the comparison."""
    return {name: value for name, value in os.environ.items() if name not in _TILTING}


def run_command(
    command: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None
) -> str:
    """Run a command that must succeed, to its end; what it wrote on stdout."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=user_environment() | dict(variables or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=LIMIT_S,
        text=True,
        errors="replace",
    )
    if done.returncode:
        said = done.stderr or done.stdout
        sys.exit(f"{shlex.join(command)}: exit code {done.returncode}: {said}")
    return done.stdout


def time_command(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str] | None = None,
    prepare: Sequence[str] = ("true",),
) -> Figures:
    """Time a whole command that must succeed, after another one that is not timed."""
    if shutil.which("hyperfine") is None:
        sys.exit("hyperfine, which times the commands, is missing: apt-get install hyperfine")
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        words = ["--shell=none", "--runs=1", "--export-json", file.name, "--prepare"]
        words += [shlex.join(prepare), shlex.join(command)]
        run_command(["hyperfine", *words], folder, variables)
        (found,) = json.load(file)["results"]
    return {"time": found["mean"], "CPU time": found["user"] + found["system"]}
