"""Sentences on loading: how many workers to use, which steps loading keeps up with, and what would
help; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpcdist.base.statistics import Ratio, differs, ratios_of_all
from hpcdist.base.text import (
    format_percent,
    format_time,
    interval_text,
    number_of,
    spread_text,
)
from hpcdist.bench.cells import Findings, TimedCell

PARTS = {
    "read": "reading",
    "decode": "decoding",
    "wait": "waiting in __getitem__",
    "item": "computing in __getitem__",
    "transform": "transform",
    "collate": "collate",
    "hand_over": "hand-over and waiting",
}
"""Parts of the time of a sample, in their order -> words."""
WAITING = ("read", "wait", "hand_over")
"""Parts in which no CPU is busy."""

LEAST_DIFFERENCE = 0.03
"""A difference of the means counts where it is more than chance, and from 3 % on: nobody spends a
worker on less."""

_MUCH = 1.2
"""Times as many images/s that would be worth more workers, or another run."""
_NOTABLE_SHARE = 0.25
"""Share of the time of a sample below which a part is not worth a change."""
_BUSY = 0.8  # of the CPUs: then only less work per image helps
_WIDTH = 24
"""Characters of a list of transforms that a line has room for."""

Series = Sequence[TimedCell]
"""By workers; all else is equal."""


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Facts that hold for all cells of a benchmark."""

    ranks: int = 1
    """Each loads its share, all at the same time."""
    cpus: float
    """CPUs of each rank, a quota counted in part."""
    decoder: str | None = None
    """None: the data set is the user's own."""

    @property
    def noun(self) -> str:
        """The name of what is loaded."""
        return "image" if self.decoder else "sample"


def conclude(cells: Sequence[TimedCell], loading: Loading) -> Findings:
    """Answer how many workers to use, and say what is certain; all else is on the transform that
    takes longest, with the batch size that has most images/s."""
    by_rate = sorted(cells, key=lambda cell: -(cell.rate or 0.0))
    best: dict[str, Series] = {}
    for name in dict.fromkeys(_transform(cell) for cell in cells):
        own = [cell for cell in by_rate if _transform(cell) == name]
        size = own[0].keys["batch_size"]
        best[name] = sorted((c for c in own if c.keys["batch_size"] == size), key=_workers)
    chosen = {name: recommended(series) for name, series in best.items()}
    name = min(chosen, key=lambda name: chosen[name].rate or 0.0)
    cell, series = chosen[name], best[name]
    whose = f" with transform {shortened(name)}" if len(best) > 1 else ""
    least = format_time(cell.time_s.mean)
    return Findings(
        conclusions=[
            *_answer(best, chosen, loading),
            f"Loading{whose} keeps up with training steps of {least}.",
        ],
        details=[_on_workers(cell, series, whose, loading), *_on_parts(cell, series, loading)],
    )


def recommended(series: Series) -> TimedCell:
    """Return the way with the fewest workers that none is faster than by more than chance, and by
    enough to matter."""
    for cell in series:
        times = _against_fastest(cell, series)
        if times.mean <= 1 + LEAST_DIFFERENCE or differs(times) is False:
            break
    return cell


def _workers(cell: TimedCell) -> int:
    return int(cell.keys["workers"])


def _transform(cell: TimedCell) -> str:
    return str(cell.keys.get("transform", "none"))


def shortened(text: str) -> str:
    """Cut a list of transforms to what a line has room for."""
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."


def with_workers(number: int) -> str:
    """Return `with 2 workers`."""
    return f"with {number_of(number, 'worker')}" if number else "without workers"


def _ratio(cell: TimedCell, other: TimedCell, series: Series) -> Ratio:
    """Return how many times as fast one is as another, with every two of the series compared."""
    compared = ratios_of_all([each.time_s for each in series])
    return compared[series.index(other), series.index(cell)]


def _against_fastest(cell: TimedCell, series: Series) -> Ratio:
    """Return how many times as fast the fastest of a series is: any might have been it."""
    fastest = min(series, key=lambda each: each.time_s.mean)
    return Ratio(mean=1.0) if cell is fastest else _ratio(fastest, cell, series)


def _answer(
    best: Mapping[str, Series], chosen: Mapping[str, TimedCell], loading: Loading
) -> Iterator[str]:
    """Say how many workers to use, and what is not certain of it."""
    rates: dict[int, list[str]] = {}
    doubts = []
    for name, series in best.items():
        cell, fastest = chosen[name], min(series, key=lambda each: each.time_s.mean)
        whose = f" with transform {shortened(name)}" if len(best) > 1 else ""
        rate = f"{spread_text(cell.rate_measure, 0)} {loading.noun}s/s"
        if len(best) == 1 and _workers(cell) and not _workers(series[0]):
            gain = interval_text(_ratio(cell, series[0], series), 2)
            rate += f", {gain} times the rate without workers"
        rates.setdefault(_workers(cell), []).append(rate + whose)
        times = _against_fastest(cell, series)
        if times.interval and times.interval.high > _MUCH:
            doubts.append(
                f"Whether {with_workers(_workers(fastest))} it is faster{whose} is not certain: "
                f"{interval_text(times, 1)} times as fast. Run it again with more passes "
                "(data.repeats)."
            )
    key = "data.workers" if loading.decoder else "num_workers"
    texts = [
        f"{number_of(number, 'worker') if number else 'no workers'} ({key}={number}): "
        f"{', '.join(each)}"
        for number, each in rates.items()
    ]
    are_compared = any(len(series) > 1 for series in best.values())
    yield f"{'Use' if are_compared else 'Only tried:'} {'; '.join(texts)}."
    yield from doubts


def _on_workers(cell: TimedCell, series: Series, whose: str, loading: Loading) -> str:
    """Say how long a batch takes, and what more workers gain, or that they were not tried."""
    workers, most = _workers(cell), series[-1]
    cpus = f"{loading.cpus:g} CPU{'' if loading.cpus == 1 else 's'}"
    has = f"the {cpus} of each rank" if loading.ranks > 1 else f"its {cpus}"
    more = f"more were not tried, and {has} {'have' if loading.cpus > 1 else 'has'} no room"
    if most is not cell:
        times = _ratio(most, cell, series)
        gain = "may gain" if times.interval and times.interval.high > _MUCH else "gain"
        more = f"more {gain} nothing on {has}: {with_workers(_workers(most))} it is "
        more += f"{interval_text(times, 2)} times as fast"
    elif workers < int(loading.cpus) or _waiting_share(cell) >= _NOTABLE_SHARE:
        more = f"more were not tried: {workers * 2 or 1} may be faster"
    return (
        f"A batch of {cell.keys['batch_size']:,}{whose} takes {format_time(cell.time_s.mean)} "
        f"{with_workers(workers)}; {more}."
    )


def _on_parts(cell: TimedCell, series: Series, loading: Loading) -> Iterator[str]:
    """Say where the time of a sample goes, and what would help."""
    noun, sample_s = loading.noun, sum(cell.parts_s.values())
    shares = {n: cell.parts_s[n] / sample_s for n in PARTS if cell.parts_s.get(n)}
    listed = ", ".join(f"{PARTS[n]} {format_percent(share)} %" for n, share in shares.items())
    transform = cell.keys.get("transform")
    of = f" ({shortened(str(transform))})" if transform else ""
    yield f"One {noun} takes {format_time(sample_s)} of a worker{of}: {listed}."
    busy_s = sum(part_s for name, part_s in cell.parts_s.items() if name not in WAITING)
    is_busy = (cell.rate or 0.0) / loading.ranks * busy_s >= _BUSY * loading.cpus
    if is_busy:
        yield (
            f"The CPUs are busy with it: only less work per {noun} or more CPUs "
            "(resources.cpus_per_gpu) would help."
        )
    if shares.get("decode", 0.0) >= _NOTABLE_SHARE:
        yield (
            "data.decoder=fast takes less time, but its pixels differ a little."
            if loading.decoder == "exact"
            else "Smaller files, or data.size below that of the files, would take less decoding."
        )
    if _NOTABLE_SHARE <= (share := shares.get("transform", 0.0)) < 1:
        most = 1 / (1 - share)
        yield f"Cheaper transforms would help: without any, at most {most:.1f} times as fast."
    if not is_busy and (share := _waiting_share(cell)) >= _NOTABLE_SHARE:
        workers = "More workers than CPUs, or a" if series[-1] is cell else "A"
        waited = format_time(share * sample_s)
        yield f"Each {noun} waits {waited} for storage, or for something else."
        yield f"{workers} copy on a local disk would help."


def _waiting_share(cell: TimedCell) -> float:
    """Return the share of the time that goes into waiting for files or the like."""
    whole_s = sum(cell.parts_s.values())
    return sum(cell.parts_s.get(name, 0.0) for name in ("read", "wait")) / whole_s if whole_s else 0
