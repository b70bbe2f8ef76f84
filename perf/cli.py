"""Time of the commands that only look, beside `python -c pass` with the same interpreter.

`status` is tried with 3 runs and with many, as finished runs of 8 ranks leave them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from commands import HPCDIST, run_command
from made_runs import make_runs
from sidebyside import Figures, Measure, compare, option_parser, print_machine

_MEASURE = Measure(name="time", unit="ms", at_most=10)


def time_command(command: list[str], folder: Path) -> Figures:
    """One run of a command that must succeed."""
    begin_s = time.perf_counter()
    run_command(command, folder)
    time_s = time.perf_counter() - begin_s
    return {"time": time_s * 1e3}


def main() -> None:
    parser = option_parser(__doc__, pairs=15)
    parser.add_argument("--runs", type=int, default=1000, help="how many; default: %(default)s")
    options = parser.parse_args()
    print_machine()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        for num_runs in (3, options.runs):
            make_runs(folder / f"runs-{num_runs}", num_runs=num_runs, num_ranks=8, num_windows=10)
        nothing = [sys.executable, "-c", "pass"]
        for arguments in (
            ["--help"],
            ["jobs"],
            ["status", "--runs", "runs-3"],
            ["status", "--runs", f"runs-{options.runs}"],
            ["render", "ddp", "--scheduler", "local"],
        ):
            command = [HPCDIST, *arguments]
            compare(
                f"hpcdist {' '.join(arguments)}",
                [_MEASURE],
                {
                    "hpcdist": partial(time_command, command, folder),
                    "python -c pass": partial(time_command, nothing, folder),
                },
                pairs=options.pairs,
                warms_up=True,
            )


if __name__ == "__main__":
    main()
