"""All benchmarks, one after the other: `python perf [--pairs N]`."""

import subprocess
import sys
from pathlib import Path

code = 0
for name in ("commands", "start", "train", "recording", "dataload", "slurm"):
    print(f"\n== {name}", flush=True)
    command = [sys.executable, str(Path(__file__).with_name(f"{name}.py")), *sys.argv[1:]]
    code |= subprocess.run(command, check=False).returncode
sys.exit(code)
