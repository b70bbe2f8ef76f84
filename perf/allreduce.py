"""The job `allreduce` beside a plain loop of torch.distributed under torchrun.

The same sizes, number of all-reduces and ranks, by gloo on one node; both sides give the mean time
of one all-reduce on the slowest rank. The loop is run as hpcdist runs its ranks, bound to their
shares of the CPUs, which shows what the measuring itself costs (hpcdist takes the time of each
all-reduce, for the median and the percentile), and then as torchrun runs them, not bound.
"""

from __future__ import annotations

import json
import tempfile
from functools import partial
from itertools import product
from pathlib import Path

from commands import SCRIPTS, TORCHRUN, BenchmarkError, started
from ranks import warm_up
from sidebyside import Figures, Measure, compare, option_parser, print_machine

from hpcdist.base.text import show_binary
from jobs import run_job

_SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 24)
_WARMUP = 5
_AT_MOST = {"bound": 1.1, "free": None}
"""How the loop's ranks run -> the largest ratio of times that meets the target."""


def by_hpcdist(ranks: int, iterations: int) -> Figures:
    """Measure by `hpcdist submit allreduce`."""
    settings = {
        "launch.device": "cpu",
        "allreduce.sizes": list(_SIZES),
        "allreduce.iterations": iterations,
        "allreduce.warmup": _WARMUP,
        "allreduce.max_time_s": 600,
    }
    events, *_ = run_job("allreduce", ranks, settings)
    return {
        show_binary(event["keys"]["size_bytes"]): event["mean_time_s"] * 1e6
        for event in events
        if event["event"] == "cell"
    }


def by_script(ranks: int, iterations: int, *, cpus: str) -> Figures:
    """Measure by scripts/plain_all_reduces.py under torchrun."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        result = folder / "result.json"
        command = [TORCHRUN, "--nproc-per-node", str(ranks), str(SCRIPTS / "plain_all_reduces.py")]
        command += [str(result), cpus, str(iterations), str(_WARMUP), *map(str, _SIZES)]
        try:
            with started([command], folder, {"OMP_NUM_THREADS": "1"}) as running:
                running.wait()
        except BenchmarkError:
            if not result.exists():  # else a rank aborted after its work: see trainings.py
                raise
        times_s = json.loads(result.read_text())
    return {show_binary(int(size)): time_s * 1e6 for size, time_s in times_s.items()}


def main() -> None:
    parser = option_parser(__doc__, pairs=5)
    parser.add_argument("--iterations", type=int, default=50, help="default: %(default)s")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="default: %(default)s")
    options = parser.parse_args()
    print_machine()
    warm_up(options.pairs)
    for ranks, (cpus, at_most) in product(options.ranks, _AT_MOST.items()):
        measured = {"ranks": ranks, "iterations": options.iterations}
        compare(
            f"time of an all-reduce, {ranks} ranks, {options.iterations} of each size, loop {cpus}",
            [Measure(name=show_binary(size), unit="µs", at_most=at_most) for size in _SIZES],
            {
                "hpcdist": partial(by_hpcdist, **measured),
                "loop": partial(by_script, **measured, cpus=cpus),
            },
            pairs=options.pairs,
        )


if __name__ == "__main__":
    main()
