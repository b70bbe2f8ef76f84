"""All benchmarks, one after the other: `python perf [--pairs N]`.

Each is a command of its own too, such as `python perf/start.py --pairs 5`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_BENCHMARKS = (
    *("cli", "start", "recovery", "train", "lightning", "recording", "figures", "summary"),
    *("fsdp", "allreduce", "dataload", "scale", "metadata", "dev", "lose_node"),
)
_ON_SLURM = ("submit", "status", "slurm_start", "slurm_scale")


def main() -> int:
    folder = Path(__file__).parent
    failed = []
    for name in _BENCHMARKS + _ON_SLURM:
        print(f"\n== {name}", flush=True)
        command = [sys.executable, str(folder / f"{name}.py"), *sys.argv[1:]]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
