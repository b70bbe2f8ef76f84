"""What of a run is compared with a baseline: quantities of which more is better. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hpcdist.base.statistics import Measure, spread_measure
from hpcdist.base.text import show_binary
from hpcdist.bench.dataload.figures import LoadingCell, Setting
from hpcdist.summary.values import RunSummary

SPEED = "samples/s"


def quantities(run: RunSummary) -> dict[str, Measure]:
    """Return what one run measured, by name with unit."""
    return dict(_quantities(run))


def _quantities(run: RunSummary) -> Iterator[tuple[str, Measure]]:
    rate = run.samples_per_s
    if rate is not None:
        yield SPEED, spread_measure(rate.mean, rate.sd, rate.count, over="windows")
    for size in run.all_reduce.sizes if run.all_reduce else []:
        yield f"bus GB/s, {show_binary(size.bytes)}", Measure(mean=size.bus_bytes_per_s / 1e9)
    for cell in run.inference.cells if run.inference else []:
        if cell.images_per_s is not None:
            sd = _relative(cell.images_per_s, cell.sd_time_s, cell.mean_time_s)
            name = f"images/s, {cell.strategy}, batch {cell.batch_size}"
            yield name, spread_measure(cell.images_per_s, sd, cell.repeats, over="windows")
    for way in run.loading.cells if run.loading else []:
        sd = _relative(way.images_per_s, way.sd_time_s, way.mean_time_s)
        measured = spread_measure(way.images_per_s, sd, way.repeats, over="windows")
        yield f"images/s, {_words(way)}", measured


def _words(way: LoadingCell) -> str:
    """A way of loading: its workers and batches, what else is not the default, and the node."""
    setting = msgspec.to_builtins(way.setting)
    usual = msgspec.to_builtins(
        Setting(batch_size=way.setting.batch_size, workers=way.setting.workers)
    )
    others = [f"{key} {value}" for key, value in setting.items() if value != usual[key]]
    workers = f"{way.setting.workers} workers, batch {way.setting.batch_size}"
    return ", ".join([workers, *others, *([f"node {way.node}"] if way.node else [])])


def _relative(rate: float, sd_s: float | None, mean_s: float | None) -> float | None:
    """The sd of a rate from that of the time."""
    return None if sd_s is None or not mean_s else rate * sd_s / mean_s
