"""What of a run is compared with a baseline: quantities of which more is better. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hpcdist.base.student import Sample
from hpcdist.base.text import show_binary
from hpcdist.bench.dataload.figures import LoadingCell, Setting
from hpcdist.summary.values import RunSummary

SPEED = "samples/s"


def quantities(run: RunSummary) -> dict[str, Sample]:
    """By name with unit, what one run measured; a `count` of 1 says that its spread within the run
    is not known."""
    return dict(_quantities(run))


def _quantities(run: RunSummary) -> Iterator[tuple[str, Sample]]:
    rate = run.samples_per_s
    if rate is not None:
        yield SPEED, _sample(rate.mean, rate.sd, rate.count)
    for size in run.all_reduce.sizes if run.all_reduce else []:
        yield f"bus GB/s, {show_binary(size.bytes)}", _sample(size.bus_bytes_per_s / 1e9)
    for cell in run.inference.cells if run.inference else []:
        if cell.images_per_s is not None:
            sd = _relative(cell.images_per_s, cell.sd_time_s, cell.mean_time_s)
            name = f"images/s, {cell.strategy}, batch {cell.batch_size}"
            yield name, _sample(cell.images_per_s, sd, cell.repeats)
    for way in run.loading.cells if run.loading else []:
        sd = _relative(way.images_per_s, way.sd_time_s, way.mean_time_s)
        yield f"images/s, {_words(way)}", _sample(way.images_per_s, sd, way.repeats)


def _words(way: LoadingCell) -> str:
    """A way of loading: its workers and batches, what else is not the default, and the node."""
    setting = msgspec.to_builtins(way.setting)
    usual = msgspec.to_builtins(
        Setting(batch_size=way.setting.batch_size, workers=way.setting.workers)
    )
    others = [f"{key} {value}" for key, value in setting.items() if value != usual[key]]
    workers = f"{way.setting.workers} workers, batch {way.setting.batch_size}"
    return ", ".join([workers, *others, *([f"node {way.node}"] if way.node else [])])


def _sample(mean: float, sd: float | None = None, count: int | None = None) -> Sample:
    if sd is None or count is None or count < 2:
        return Sample(mean=mean, sd=0.0, count=1)
    return Sample(mean=mean, sd=sd, count=count)


def _relative(rate: float, sd_s: float | None, mean_s: float | None) -> float | None:
    """The sd of a rate from that of the time."""
    return None if sd_s is None or not mean_s else rate * sd_s / mean_s
