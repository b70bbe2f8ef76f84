"""Time from the command to the first all-reduce of all ranks, and the memory they take.

The same script by `hpcdist submit --local` and by torchrun: 8 ranks on one node, and on 2 simulated
nodes with 4 ranks each (2 torchruns, started at the same instant). Memory is PSS, where a page that
n processes share counts 1/n for each: of the ranks alone, and of everything the command started.
"""

from __future__ import annotations

from functools import partial

from ranks import Layout, launched, warm_up
from sidebyside import Figures, Measure, compare, option_parser, print_machine

from hpcdist.machine.memory import proportional_bytes

_LAYOUTS = (
    (Layout(nodes=1, ranks_per_node=8), 0.15),
    (Layout(nodes=2, ranks_per_node=4), 0.22),
)
"""Layout, and the largest ratio of the ranks' memory that meets the target."""


def measure(side: str, layout: Layout) -> Figures:
    """One launch."""
    with launched(side, layout) as ranks:
        reports = ranks.reports()
        # While all ranks are there; both sums at one time, since they are compared.
        rank_bytes = sum(proportional_bytes(report["pid"]) for report in reports)
        all_bytes = sum(proportional_bytes(pid) for pid in ranks.commands.all_pids())
        ranks.release()
        return {
            "first all-reduce": max(report["done_s"] for report in reports)
            - ranks.commands.begin_s,
            "memory of the ranks": rank_bytes / 1e6,
            "memory of all processes": all_bytes / 1e6,
        }


def main() -> None:
    parser = option_parser(__doc__, pairs=3)
    parser.add_argument("--ranks", type=int, default=8, help="in all; default: %(default)s")
    options = parser.parse_args()
    print_machine()
    warm_up(options.pairs)
    for full, most_memory in _LAYOUTS:
        layout = Layout(nodes=full.nodes, ranks_per_node=options.ranks // full.nodes)
        compare(
            f"{layout.nodes} node(s) x {layout.ranks_per_node} ranks",
            [
                Measure(name="first all-reduce", unit="s", at_most=0.24),
                Measure(name="memory of the ranks", unit="PSS, MB", at_most=most_memory),
                Measure(name="memory of all processes", unit="PSS, MB"),
            ],
            {side: partial(measure, side, layout) for side in ("hpcdist", "torchrun")},
            pairs=options.pairs,
        )


if __name__ == "__main__":
    main()
