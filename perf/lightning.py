"""Training throughput of `hpcdist submit lightning` beside a Lightning script under torchrun.

And that of the torch loop beside Lightning.

The same model, data, batch, optimizer, schedule and threads: see scripts/plain_lightning.py. The
arithmetic of a step is small, so that it shows what a loop costs.
"""

from __future__ import annotations

from functools import partial

from ranks import warm_up
from sidebyside import Measure, compare, option_parser, print_machine
from trainings import by_hpcdist, by_script

_MEASURES = (
    Measure(name="throughput", unit="samples/s", at_least=1.0),
    Measure(name="throughput, all epochs", unit="samples/s"),
    Measure(name="whole command", unit="s"),
)


def main() -> None:
    parser = option_parser(__doc__, pairs=3)
    parser.add_argument("--epochs", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2], help="default: %(default)s")
    options = parser.parse_args()
    print_machine()
    warm_up(options.pairs)
    for ranks in options.ranks:
        training = {"ranks": ranks, "epochs": options.epochs, "threads": 1}
        lightning = partial(by_hpcdist, **training, job="lightning")
        script = partial(by_script, **training, script="plain_lightning.py")
        what = f"{ranks} rank(s) of 1 thread, {options.epochs} epochs"
        compare(
            f"lightning, {what}",
            _MEASURES,
            {"hpcdist": lightning, "Lightning script": script},
            pairs=options.pairs,
        )
        compare(
            f"ddp beside lightning, {what}",
            _MEASURES,
            {"ddp": partial(by_hpcdist, **training), "lightning": lightning},
            pairs=options.pairs,
        )


if __name__ == "__main__":
    main()
