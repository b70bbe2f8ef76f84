"""A job on many real slurmds of one machine: from `hpcdist submit` to the steps of all ranks, and
from the death of a rank to the verdict.

Ranks import no torch. All nodes share this machine's CPUs, on which most of the time is Slurm's and
Python's own start, once per node: what grows with the number of nodes here is CPU time, and no
waiting.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from commands import HPCDIST, LIMIT_S, SCRIPTS, BenchmarkError
from sidebyside import option_parser, print_machine
from testcluster import Site, booted

from hpcdist.machine.process import send_signal
from hpcdist.runs.run import Run

_POLL_S = 0.02
_RANK_MEMORY_GB = 0.2
COLUMNS = ("submit to last first step (s)", "of it CPU, all processes (s)", "death to verdict (s)")


def measure(site: Site, nodes: int, ranks: int) -> tuple[float, float, float]:
    """One job; its last rank is killed while all step."""
    with tempfile.TemporaryDirectory(dir=site.folder) as name:
        folder = Path(name)
        before_s, begin_s = _busy_s(), time.time()
        script = (str(SCRIPTS / "plain_steps.py"), "--nodes", str(nodes), "--gpus", str(ranks))
        settings = ("launch.device=cpu", f"resources.mem_gb={ranks * _RANK_MEMORY_GB:g}")
        words = [word for one in settings for word in ("--set", one)]
        options = ("--scheduler", "slurm", "--no-snapshot", "--runs", str(folder / "runs"), *words)
        site.run(HPCDIST, "submit", *script, *options, "--", str(folder), str(10 * LIMIT_S))
        (path,) = (folder / "runs").iterdir()
        run = Run(path)
        steps = [folder / f"began-{rank}" for rank in range(nodes * ranks)]
        _wait(lambda: all(map(os.path.exists, steps)), run)
        began_s = max(step.stat().st_mtime for step in steps) - begin_s
        cpu_s = _busy_s() - before_s
        killed_s = time.time()
        send_signal(_pid_of(run, nodes * ranks - 1), signal.SIGKILL)
        _wait(run.verdict_file.exists, run)
        verdict = run.read_verdict()
        if verdict is None or not verdict.first or verdict.first.rank != nodes * ranks - 1:
            raise BenchmarkError(f"the verdict is {verdict}")
        ended_s = run.verdict_file.stat().st_mtime - killed_s
        site.wait_until_empty()
        return began_s, cpu_s, ended_s


def _busy_s() -> float:
    """CPU time of this machine."""
    times = psutil.cpu_times()
    return float(times.user + times.system)


def _pid_of(run: Run, rank: int) -> int:
    """By its log, which is its output."""
    log = str(run.log_file(rank))
    for process in psutil.process_iter():
        try:
            if os.readlink(f"/proc/{process.pid}/fd/1") == log:
                return int(process.pid)
        except OSError:
            continue
    raise BenchmarkError(f"rank {rank} has no process")


def _wait(condition: object, run: Run) -> None:
    assert callable(condition)
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        if (verdict := run.read_verdict()) is not None and not condition():
            raise BenchmarkError(verdict.message)
        if time.monotonic() > deadline_s:
            raise BenchmarkError(f"{run.path}: nothing after {LIMIT_S:g} s")
        time.sleep(_POLL_S)


def show(nodes: int, found: Sequence[tuple[float, float, float]]) -> None:
    values = [statistics.median(column) for column in zip(*found, strict=True)]
    shown = "   ".join(f"{title} {value:.2f}" for title, value in zip(COLUMNS, values, strict=True))
    print(f"{nodes:>4} nodes   {shown}", flush=True)


def main() -> None:
    parser = option_parser(__doc__, pairs=3)
    sizes = [4, 16, 64]
    parser.add_argument("--nodes", type=int, nargs="+", default=sizes, help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=2, help="per node; default: %(default)s")
    options = parser.parse_args()
    print_machine()
    with booted(
        num_nodes=max(options.nodes), num_cpus=max(4, options.ranks), memory_mib=4000
    ) as site:
        print(f"\n{options.ranks} ranks per node; the middle of {options.pairs}")
        for nodes in options.nodes:
            found = [measure(site, nodes, options.ranks) for _ in range(options.pairs)]
            show(nodes, found)


if __name__ == "__main__":
    main()
