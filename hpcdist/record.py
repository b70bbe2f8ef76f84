"""Recording from a script's own loop, so that its steps are in the summary and its verdict.

    from hpcdist import record

    for images, labels in record.batches(loader):
        ...
        optimizer.step()
        record.step(samples=len(images), loss=loss)
    record.evaluate(accuracy=accuracy)

With `record.start(model=model)` before the loop the time of a step is divided among computing,
waiting for other ranks, and the optimizer, too; or the loop says so itself with `record.mark`.

A script that can go on from a checkpoint of its own stops before the time limit or a preemption:

        record.step(samples=len(images), loss=loss)
        if record.should_stop():
            save_checkpoint()
            sys.exit(record.EXIT_STOPPED)

One that can do so with fewer ranks, too, says it at its begin by `record.elastic()`.

A Trainer of Lightning does all this with `callbacks=[record.LightningCallback()]`.

Where the script was not started by hpcdist, the calls do nothing.
"""

from typing import TYPE_CHECKING, Any

from hpcdist.base.errors import EXIT_STOPPED
from hpcdist.machine.process import shield_worker
from hpcdist.rank.own_loop import (
    batches,
    elastic,
    evaluate,
    finish,
    flops,
    mark,
    should_stop,
    start,
    step,
)

if TYPE_CHECKING:
    from hpcdist.training.lightning import LightningCallback

__all__ = [
    "EXIT_STOPPED",
    "LightningCallback",
    "batches",
    "elastic",
    "evaluate",
    "finish",
    "flops",
    "mark",
    "shield_worker",
    "should_stop",
    "start",
    "step",
]


def __getattr__(name: str) -> Any:
    if name != "LightningCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hpcdist.training.lightning import LightningCallback  # imports Lightning

    return LightningCallback
