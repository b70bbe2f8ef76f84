"""Ranks that record steps and import no torch: what is left is what hpcdist itself does.

Usage: plain_steps.py FOLDER SECONDS

Each rank makes FOLDER/began-R at its first step and FOLDER/over-R after so many seconds of steps.
"""

import os
import sys
import time
from pathlib import Path

from hpcdist import record

STEP_S = 0.05


def main() -> None:
    folder, length_s, rank = Path(sys.argv[1]), float(sys.argv[2]), os.environ["RANK"]
    record.start()
    (folder / f"began-{rank}").touch()
    end_s = time.monotonic() + length_s
    while time.monotonic() < end_s:
        time.sleep(STEP_S)
        record.step(samples=1)
    (folder / f"over-{rank}").touch()


if __name__ == "__main__":
    main()
