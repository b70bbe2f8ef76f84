"""The summary's figures against a clock outside: steps of a training, timed by the one and by the
other at once.

The clock outside knows nothing of the recorder: it looks when each step of the loop returns. Both
see the same steps, so that no noise of the machine is between them.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from recording import only_rank
from sidebyside import option_parser, print_machine

from hpcdist.job.load import load_job
from hpcdist.job.spec import TrainJob
from hpcdist.summary.figures.rank import measure_rank
from hpcdist.summary.read.event_file import read_events

_WITHIN = 0.02
_SETTINGS = (
    "train.num_threads=1",
    "checkpoint.every_epochs=0",
    "train.optimizer=sgd",
    "model.args.dropout=0",
)


def time_both(epochs: int) -> tuple[float, float, int]:
    """Return seconds per step by the summary and by the clock outside, and the number of steps."""
    from hpcdist.training.loop import Trainer

    times_s: list[float] = []
    before_s = 0.0

    class Watched(Trainer):
        def begin_epoch(self) -> Any:
            nonlocal before_s
            begun = super().begin_epoch()
            before_s = time.perf_counter()
            return begun

        def _step(self, *arguments: Any) -> None:
            nonlocal before_s
            super()._step(*arguments)
            now_s = time.perf_counter()
            times_s.append(now_s - before_s)
            before_s = now_s

    job = load_job("ddp", overrides=[f"train.epochs={epochs}", *_SETTINGS]).job
    assert isinstance(job, TrainJob)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        context = only_rank(job, Path(name))
        trainer = Watched(context, job)
        trainer.train()
        context.events.close()
        assert context.events.path is not None
        figures = measure_rank(read_events(context.events.path, number=0, attempt=0))
    outside_s = times_s[figures.warm_up_steps :]
    steps = figures.totals.steps
    assert steps == len(outside_s), (steps, len(outside_s))
    return figures.totals.sum_s / steps, sum(outside_s) / steps, steps


def main() -> None:
    parser = option_parser(__doc__, pairs=5)
    parser.add_argument("--epochs", type=int, default=20, help="default: %(default)s")
    options = parser.parse_args()
    import torch
    import torch.distributed as dist

    print_machine()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for _ in range(options.pairs):
        summary_s, outside_s, steps = time_both(options.epochs)
        apart = summary_s / outside_s - 1
        print(
            f"  {steps:,} steps: {summary_s * 1e6:,.1f} µs by the summary, "
            f"{outside_s * 1e6:,.1f} µs by the clock outside; {apart:+.2%}   "
            f"target within 2 %, met: {'yes' if abs(apart) <= _WITHIN else 'NO'}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
