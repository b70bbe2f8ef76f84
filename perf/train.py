"""Training throughput of `hpcdist submit ddp` beside a hand-written script under torchrun.

The same model, data, batch, optimizer, schedule and threads, at 1, 2 and 4 ranks: see
scripts/plain_ddp.py. With --lean, also beside a script that cuts its batches out of whole tensors.
"""

from __future__ import annotations

from functools import partial
from itertools import product

from ranks import warm_up
from sidebyside import Measure, compare, option_parser, print_machine
from trainings import by_hpcdist, by_script, share_of_threads

_MEASURES = (
    Measure(name="throughput", unit="samples/s", at_least=1.1),
    Measure(name="throughput, all epochs", unit="samples/s"),
    Measure(name="whole command", unit="s"),
)


def main() -> None:
    parser = option_parser(__doc__, pairs=3)
    parser.add_argument("--epochs", type=int, default=40, help="default: %(default)s")
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[1, 2, 4], help="default: %(default)s"
    )
    parser.add_argument(
        "--threads",
        type=int,
        nargs="+",
        help="per rank, on both sides; default: the rank's share of the CPUs, and 1",
    )
    parser.add_argument("--lean", action="store_true", help="also beside the lean script")
    options = parser.parse_args()
    print_machine()
    warm_up(options.pairs)
    for ranks in options.ranks:
        for threads, lean in product(
            options.threads or sorted({share_of_threads(ranks), 1}, reverse=True),
            (False, True) if options.lean else (False,),
        ):
            training = {"ranks": ranks, "epochs": options.epochs, "threads": threads}
            compare(
                f"ddp, {ranks} rank(s) of {threads} thread(s), {options.epochs} epochs",
                _MEASURES,
                {
                    "hpcdist": partial(by_hpcdist, **training),
                    "lean script" if lean else "script": partial(by_script, **training, lean=lean),
                },
                pairs=options.pairs,
            )


if __name__ == "__main__":
    main()
