"""Conclusions on inference: is a strategy faster than one device, and if not, why; pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from hpcdist.base.statistics import differs
from hpcdist.base.text import format_percent, interval_text, number_of
from hpcdist.bench.cells import CellTable, Comparison, TimedCell, compare

SINGLE = "single"
DATA_PARALLEL = "data_parallel"
PROCESS_PER_GPU = "process_per_gpu"

_UNSURE_SHARE = 0.5
"""An interval with room for this share of the ideal gain, and for none, allows no conclusion."""

_ONE_DEVICE = {
    DATA_PARALLEL: "shows no parallelism: with fewer than 2 GPUs nn.DataParallel calls the model "
    "itself, so that its times are those of single and of a thin wrapper.",
    PROCESS_PER_GPU: "shows no parallelism: its one rank has the whole batch; ask for more with "
    "--gpus or --nodes.",
}


def inference_table(model: str, precision: str, device: str) -> CellTable:
    """Return the table of calls; each is from images on the host to logits there."""
    return CellTable(
        name="inference",
        caption=f"inference of {model} ({precision}, {device}) by batch size, mean ± 95 % interval "
        "over calls",
        time="time per batch",
        rate="images_per_s",
        x="batch_size",
        baseline={"strategy": SINGLE},
    )


def conclude(cells: Sequence[TimedCell]) -> list[str]:
    """Return the most that one process and one device reach, then a sentence for each parallel
    strategy that was measured beside them."""
    singles = [cell for cell in cells if cell.keys["strategy"] == SINGLE and cell.rate]
    sentences = []
    if singles:
        best = max(singles, key=lambda cell: cell.rate or 0.0)
        images = number_of(_size(best), "image")
        sentences = [f"single reaches {best.rate:,.0f} images/s, with {images} per batch."]
    measured = {cell.keys["strategy"] for cell in cells}
    if SINGLE in measured:
        compared = compare(cells, {"strategy": SINGLE})
        for name in (DATA_PARALLEL, PROCESS_PER_GPU):
            if name in measured:
                own = [each for each in compared if each.cell.keys["strategy"] == name]
                sentences.append(_sentence(name, cells, sorted(own, key=lambda e: _size(e.cell))))
    return sentences


def _size(cell: TimedCell) -> int:
    return int(cell.keys["batch_size"])


def _is_win(compared: Comparison) -> bool:
    """Return whether it is faster by more than chance; where no spread is known, by its mean."""
    return compared.gain.mean > 1 and differs(compared.gain) is not False


def _times(compared: Comparison) -> str:
    parallel, single = (cell.time_s.mean * 1e3 for cell in (compared.cell, compared.baseline))
    return f"takes {parallel:.3g} ms, and {single:.3g} on one device"


def _sentence(name: str, cells: Sequence[TimedCell], compared: Sequence[Comparison]) -> str:
    """`compared`: its comparisons with single, the smallest batch size first."""
    own = [cell for cell in cells if cell.keys["strategy"] == name]
    devices = int(max(cell.more["devices"] for cell in own))
    title = f"{name} ({number_of(devices, 'device')})"
    if devices == 1 or not compared:
        none = "cannot be compared: it has no batch size in common with single."
        return f"{title} {_ONE_DEVICE[name] if devices == 1 else none}"
    smallest, largest = compared[0], compared[-1]
    if wins := list(itertools.takewhile(_is_win, reversed(compared))):
        sentence = (
            f"{title} is faster than single from {number_of(_size(wins[-1].cell), 'image')} per "
            f"batch on: {interval_text(largest.gain, 2)} times with {_size(largest.cell):,}."
        )
        if wins[-1] is smallest:
            return sentence
        verb = "that is not certain" if differs(smallest.gain) is False else "it is not"
        return f"{sentence} With {_size(smallest.cell):,} {verb}: a call {_times(smallest)}."
    if some := [f"{_size(each.cell):,}" for each in compared if _is_win(each)]:
        return (
            f"{title} is faster than single with {', '.join(some)} per batch, but not with "
            f"{_size(largest.cell):,}."
        )
    best = max(compared, key=lambda each: each.gain.mean)
    size, ends = _size(best.cell), best.gain.interval
    at_best = f"at its best, with {size:,} per batch, it {_times(best)}"
    ideal_share = 1 - _UNSURE_SHARE * (1 - 1 / devices)  # of the time, with half the ideal gain
    if differs(best.gain) is False and ends is not None and ends.high > 1 / ideal_share:
        return (
            f"Whether {title} is faster than single is not certain: {at_best}: "
            f"{interval_text(best.gain, 2)} times as fast. Repeat the calls more often "
            "(inference.repeats), with nothing else on the machine."
        )
    is_slower = all(differs(each.gain) is not False for each in compared)
    verb = "is slower than single with every batch size" if is_slower else "gains nothing"
    saved = max(0.0, 1 - 1 / best.gain.mean)
    return (
        f"{title} {verb}: {at_best}. A share of {math.ceil(size / devices):,} instead of {size:,} "
        f"images saves {format_percent(saved)} % of the time, where {devices} devices of their own "
        f"would save up to {format_percent(1 - 1 / devices)} %: the rest is the fixed cost of a "
        "call, or the devices share what they compute with."
    )
