"""Time and memory of `hpcdist summary` over 100, 1,000 and 10,000 runs of 8 ranks with 100 windows.

Nothing kept: all events are read, out of the page cache, and figures kept. Warm: figures were kept
beside the runs at their end. One changed: warm, but for one run whose events changed since. There
is no peer; the targets are seconds, for 1,000 runs on 2 CPUs.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from commands import HPCDIST, run_command, user_environment
from made_runs import make_runs
from sidebyside import option_parser, print_machine

from hpcdist.entry import keep_figures
from hpcdist.runs.run import all_runs

_KINDS = ("nothing kept", "warm", "one changed")
_TARGETS_S = {"warm": 0.5}  # for 1,000 runs
_SETTLE_S = 2.5  # what changed a moment ago is not kept
_LONG_AGO_S = 1.7e9


class Reading(NamedTuple):
    """One `hpcdist summary`."""

    wall_s: float
    cpu_s: float


def main() -> None:
    parser = option_parser(__doc__, pairs=3)
    parser.add_argument("--runs", type=int, nargs="+", default=[100, 1000, 10000], metavar="N")
    parser.add_argument("--ranks", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--windows", type=int, default=100, help="default: %(default)s")
    options = parser.parse_args()
    print_machine()
    columns = "| least (s) | largest (s) | CPU (s) | ms per run | memory (MB) |"
    print(f"\n| runs | events (MB) | summary {columns}")
    print("|--:|--:|---|--:|--:|--:|--:|--:|")
    for num_runs in sorted(options.runs):
        with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
            measure(Path(name), num_runs, options.ranks, options.windows, options.pairs)


def measure(folder: Path, num_runs: int, num_ranks: int, num_windows: int, times: int) -> None:
    """Print the rows of one number of runs."""
    runs = folder / "runs"
    make_runs(runs, num_runs=num_runs, num_ranks=num_ranks, num_windows=num_windows)
    num_bytes = sum(path.stat().st_size for path in runs.glob("*/events/**/*.jsonl"))
    for kind in _KINDS:
        if kind == "warm":
            for run in all_runs(runs):
                keep_figures(run)
        time.sleep(_SETTLE_S)
        readings = []
        for repeat in range(times):
            if kind == "nothing kept":
                for run in all_runs(runs):
                    run.figures_file.unlink(missing_ok=True)
            if kind == "one changed":
                os.utime(all_runs(runs)[0].submission_file, (_LONG_AGO_S + repeat,) * 2)
                time.sleep(_SETTLE_S)  # its time of change is now, whatever is said here
            readings.append(summarize(runs))
        print(row(kind, readings, num_runs, num_bytes))


def summarize(runs: Path) -> Reading:
    """Run the command once."""
    before, begin_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    run_command([HPCDIST, "summary", "--runs", str(runs)], runs.parent, user_environment())
    wall_s, after = time.monotonic() - begin_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Reading(wall_s, cpu_s)


def row(kind: str, readings: list[Reading], num_runs: int, num_bytes: int) -> str:
    """A line of the table; the memory is the largest so far of any process."""
    least_s, largest_s = (found(reading.wall_s for reading in readings) for found in (min, max))
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
    has_target = num_runs == 1000 and kind in _TARGETS_S
    target = f", target {_TARGETS_S[kind]:g} s" if has_target else ""
    cpu_s = min(reading.cpu_s for reading in readings)
    return (
        f"| {num_runs:,} | {num_bytes / 1e6:,.0f} | {kind}{target} "
        f"| {least_s:.2f} | {largest_s:.2f} | {cpu_s:.2f} "
        f"| {1e3 * least_s / num_runs:.2f} | {peak_mb:.0f} |"
    )


if __name__ == "__main__":
    main()
