"""Time and memory of `hpcdist summary` over 1,000 runs of 8 ranks with 100 windows each.

For information: there is no peer, and no target.
"""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path

from cli import time_command
from commands import HPCDIST
from made_runs import make_runs
from sidebyside import Spread, option_parser, print_machine


def main() -> None:
    parser = option_parser(__doc__, pairs=2)
    parser.add_argument("--runs", type=int, default=1000, help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--windows", type=int, default=100, help="default: %(default)s")
    options = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        runs = Path(name) / "runs"
        make_runs(runs, num_runs=options.runs, num_ranks=options.ranks, num_windows=options.windows)
        num_bytes = sum(path.stat().st_size for path in runs.glob("*/events/*.jsonl"))
        command = [HPCDIST, "summary", "--runs", str(runs)]
        times_s = Spread.of(
            [time_command(command, runs)["time"] / 1e3 for _ in range(options.pairs)]
        )
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
    print(
        f"\nsummary of {options.runs:,} runs x {options.ranks} ranks x {options.windows} windows, "
        f"{num_bytes / 1e6:,.0f} MB of events: {times_s.least:.1f} to {times_s.largest:.1f} s, "
        f"{num_bytes / 1e6 / times_s.least:.0f} MB/s at best, peak memory {peak_mb:.0f} MB"
    )


if __name__ == "__main__":
    main()
