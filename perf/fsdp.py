"""Memory and time of the strategy fsdp beside ddp: the same training on 4 ranks of this machine.

An MLP whose weights are most of what a rank holds, with AdamW. The ranks train by gloo on CPUs that
they share, so the times tell what cutting up costs where communication goes through memory, not
what it costs between GPUs; the memory is what it is anywhere.
"""

from __future__ import annotations

import os
import statistics
from functools import partial

from commands import SCRIPTS
from ranks import warm_up
from sidebyside import Figures, Measure, compare, option_parser, print_machine

from jobs import run_job

_MEASURES = (
    Measure(name="model states, fullest rank", unit="MB", at_most=0.4),
    Measure(name="peak memory, fullest rank", unit="MB"),
    Measure(name="median step, slowest rank", unit="ms"),
)


def train(strategy: str, ranks: int, width: int, steps: int) -> Figures:
    """Train by `hpcdist submit fsdp --set strategy=...`, and read what the ranks recorded."""
    settings = {
        "strategy": strategy,
        "model.name": "wide_mlp:WideMLP",
        "model.args": {"width": width},
        "train.max_steps": steps,
        "train.epochs": steps,
        "train.batch_size": 32,
        "train.num_threads": 1,
        "train.evaluate_every_epochs": 0,
        "checkpoint.every_epochs": 0,
        "record.window_s": 0.001,
    }
    return _figures(run_job("fsdp", ranks, settings))


def _figures(ranks: list[list[dict]]) -> Figures:
    memory = [event for rank in ranks for event in rank if event["event"] == "memory"]
    states = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
    steps_s = [
        [
            event["step_time_s"]["sum"] / event["steps"]
            for event in rank
            if event["event"] == "steps"
        ][2:]
        for rank in ranks
    ]
    return {
        "model states, fullest rank": max(sum(event[key] for key in states) for event in memory)
        / 1e6,
        "peak memory, fullest rank": max(rank[-1]["max_rss_bytes"] for rank in ranks) / 1e6,
        "median step, slowest rank": max(map(statistics.median, steps_s)) * 1e3,
    }


def main() -> None:
    parser = option_parser(__doc__, pairs=3)
    parser.add_argument("--ranks", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--width", type=int, default=4096, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=8, help="default: %(default)s")
    options = parser.parse_args()
    print_machine()
    os.environ["PYTHONPATH"] = str(SCRIPTS)  # for the model
    warm_up(options.pairs, ["hpcdist"])
    sides = {
        strategy: partial(train, strategy, options.ranks, options.width, options.steps)
        for strategy in ("fsdp", "ddp")
    }
    compare(
        f"fsdp beside ddp, {options.ranks} ranks of 1 thread, MLP of 4 x {options.width:,}",
        _MEASURES,
        sides,
        pairs=options.pairs,
    )


if __name__ == "__main__":
    main()
