"""Time from SIGKILL of one of 8 ranks to the first all-reduce of all ranks of the next attempt.

`hpcdist submit --max-restarts 1` against `torchrun --max-restarts 1`, the latter with
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which it does not recover.
"""

from __future__ import annotations

import os
import signal
import time
from functools import partial

from ranks import Layout, launched, warm_up
from sidebyside import Figures, Measure, compare, option_parser, print_machine

_VICTIM = 3  # neither rank 0, which may serve the store, nor the last


def measure(side: str, layout: Layout) -> Figures:
    """One launch, one kill, one recovery."""
    with launched(side, layout) as ranks:
        victim = ranks.reports()[_VICTIM]["pid"]
        killed_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        reports = ranks.reports(attempt=1)
        ranks.release()
        return {"recovery": max(report["done_s"] for report in reports) - killed_s}


def main() -> None:
    options = option_parser(__doc__, pairs=3).parse_args()
    print_machine()
    warm_up(options.pairs)
    layout = Layout(nodes=1, ranks_per_node=8, max_restarts=1)
    compare(
        "1 node x 8 ranks, rank 3 killed",
        [Measure(name="recovery", unit="s", at_most=0.07)],
        {side: partial(measure, side, layout) for side in ("hpcdist", "torchrun")},
        pairs=options.pairs,
    )


if __name__ == "__main__":
    main()
