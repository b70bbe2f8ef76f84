"""What the figures of a run's use say for certain, in words."""

from __future__ import annotations

from collections.abc import Iterator

from hpcdist.base.text import format_percent
from hpcdist.summary.values import RunSummary, UsageSummary

_LONG_ENOUGH_S = 60.0
_LITTLE = 0.3
_NEARLY_ALL = 0.95
_OFTEN = 0.1


def usage_remarks(run: RunSummary) -> Iterator[str]:
    """What the figures of its use say for certain."""
    usage = run.usage
    if usage is None or usage.sampled_s < _LONG_ENOUGH_S:
        return
    yield from _idle_gpus(usage)
    yield from _busy_cpus(usage)
    yield from _slowed_gpus(usage)


def _idle_gpus(usage: UsageSummary) -> Iterator[str]:
    if usage.gpu_utilization is not None and usage.gpu_utilization < _LITTLE:
        yield (
            f"the GPUs were busy for {format_percent(usage.gpu_utilization)} % of the time only: "
            "start-up, data loading and waiting took the rest"
        )


def _busy_cpus(usage: UsageSummary) -> Iterator[str]:
    """On CPUs alone that is as it should be."""
    if not usage.gpus or not usage.cpus_busy or not usage.num_cpus:
        return
    if usage.cpus_busy >= _NEARLY_ALL * usage.num_cpus:
        yield (
            f"{usage.cpus_busy:,.1f} of {usage.num_cpus:,.4g} CPUs were busy all the time: more "
            "CPUs, or less work for them, may let the GPUs go faster"
        )


def _slowed_gpus(usage: UsageSummary) -> Iterator[str]:
    for gpu in usage.gpus:
        if gpu.throttled is not None and gpu.throttled > _OFTEN:
            yield (
                f"GPU {gpu.uuid} of node {gpu.node} was slowed down by heat or its power supply "
                f"for {format_percent(gpu.throttled)} % of the time"
            )
