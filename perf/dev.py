"""Time from the command to the first step of a script, in the nodes that `hpcdist dev` holds.

The script imports torch and makes one step; the peer is `python script.py`. The first run in held
nodes is left out: what the script imports is there from the second on.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from commands import HPCDIST, run_command
from sidebyside import Figures, Measure, compare, option_parser, print_machine

_SCRIPT = """
import time
import torch
torch.nn.Linear(8, 1)(torch.rand(4, 8)).sum().backward()
print("first step", time.time(), flush=True)
"""
_MEASURE = Measure(name="first step", unit="s", at_most=1)


def time_first_step(command: list[str], folder: Path) -> Figures:
    """One run of the script; the time by its own word."""
    begin_s = time.time()
    said = run_command(command, folder)
    found = re.search(r"first step ([\d.]+)", said)
    assert found is not None, said
    return {"first step": float(found[1]) - begin_s}


def main() -> None:
    options = option_parser(__doc__, pairs=5).parse_args()
    print_machine()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder = Path(name)
        (folder / "script.py").write_text(_SCRIPT)
        run_command([HPCDIST, "dev", "--local", "--set", "launch.device=cpu"], folder)
        try:
            inside = [HPCDIST, "submit", "script.py", "--in", "dev"]
            bare = [sys.executable, "script.py"]
            compare(
                "hpcdist submit script.py --in dev",
                [_MEASURE],
                {
                    "hpcdist": partial(time_first_step, inside, folder),
                    "python": partial(time_first_step, bare, folder),
                },
                pairs=options.pairs,
                warms_up=True,
            )
        finally:
            run_command([HPCDIST, "cancel", "dev"], folder)


if __name__ == "__main__":
    main()
