"""Sentences on loading: how many workers to use, whether loading or the model waits, and what would
help; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpcdist.base.statistics import Ratio, differs, ratio, ratios_of_all, spread_measure
from hpcdist.base.text import interval_text, number_of, show_percent, show_time, spread_text
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
"""Times as long, or as many images/s, that would be worth more workers, or another run."""
_NOISY = 0.2  # sd to mean from which on a word of doubt is due
_NOTABLE_SHARE = 0.25
"""Share of the time of a sample below which a part is not worth a change."""
_BUSY = 0.8  # of the CPUs: then only less work per image helps
_CERTAIN = 10**6
"""As many equal values have no error."""
_WIDTH = 24
"""Characters of a list of transforms that a line has room for."""

Series = Sequence[TimedCell]
"""By workers; all else is equal."""


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Facts that hold for all cells of a benchmark."""

    ranks: int = 1
    """Ranks of each node; each loads its share, all at the same time."""
    cpus: Mapping[int, float]
    """Node -> CPUs that its ranks have together, a quota counted in part."""
    decoder: str | None = None
    """None: the data set is the user's own."""
    step_time_s: float | None = None
    """Time of the user's training step, with a batch that is already loaded."""

    def cpus_of(self, cell: TimedCell) -> float:
        """Return the CPUs of each rank."""
        return self.cpus[_node(cell)] / self.ranks


def conclude(cells: Sequence[TimedCell], loading: Loading) -> Findings:
    """Answer how many workers to use, on the slowest node, and say what is certain; all else is on
    the transform that takes longest."""
    nodes = {_node(cell): cell for cell in sorted(cells, key=lambda cell: cell.rate or 0.0)}
    slowest = min(nodes.values(), key=lambda cell: cell.rate or 0.0)
    own = sorted((c for c in cells if _node(c) == _node(slowest)), key=lambda c: -(c.rate or 0.0))
    best: dict[str, Series] = {}
    for name in dict.fromkeys(str(cell.keys.get("transform", "none")) for cell in cells):
        of_name = [cell for cell in own if cell.keys.get("transform", "none") == name]
        size = of_name[0].keys["batch_size"]  # the one with most images/s
        best[name] = sorted((c for c in of_name if c.keys["batch_size"] == size), key=_workers)
    chosen = {name: recommended(series) for name, series in best.items()}
    name = min(chosen, key=lambda name: chosen[name].rate or 0.0)
    cell, series = chosen[name], best[name]
    whose = f" with transform {shortened(name)}" if len(best) > 1 else ""
    return Findings(
        conclusions=[
            *_answer(best, chosen, loading),
            *_on_bottleneck(cell, loading.step_time_s, whose),
            *_on_nodes(slowest, list(nodes.values())),
        ],
        details=[
            _on_workers(cell, series, whose, loading),
            *_on_parts(cell, series, loading),
            *_on_passes(cell, own),
        ],
    )


def recommended(series: Series) -> TimedCell:
    """Return the way with the fewest workers that none is faster than by more than chance."""
    return next(cell for cell in series if not _is_slower(_against_fastest(cell, series)))


def _workers(cell: TimedCell) -> int:
    return int(cell.keys["workers"])


def _node(cell: TimedCell) -> int:
    return int(cell.keys.get("node", 0))


def shortened(text: str) -> str:
    """Cut a list of transforms to what a line has room for."""
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."


def num_cpus(number: float) -> str:
    """Return `2 CPUs`, of which a quota may be a part: `0.5 CPUs`."""
    return f"{number:g} CPU{'' if number == 1 else 's'}"


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


def _is_slower(times: Ratio) -> bool:
    """Return whether a way takes longer than the fastest by more than chance, and by enough to
    matter."""
    return times.mean > 1 + LEAST_DIFFERENCE and differs(times) is not False


def _spread(cell: TimedCell) -> float:
    return (cell.sd_time_s or 0.0) / cell.time_s.mean


def _answer(
    best: Mapping[str, Series], chosen: Mapping[str, TimedCell], loading: Loading
) -> Iterator[str]:
    """Say how many workers to use, and what is not certain of it."""
    rates: dict[int, list[str]] = {}
    doubts = []
    for name, series in best.items():
        cell, fastest = chosen[name], min(series, key=lambda each: each.time_s.mean)
        whose = f" with transform {shortened(name)}" if len(best) > 1 else ""
        rate = f"{spread_text(cell.rate_measure, 0)} {'images' if loading.decoder else 'samples'}/s"
        if len(best) == 1 and _workers(cell) and not _workers(series[0]):
            gain = interval_text(_ratio(cell, series[0], series), 2)
            rate += f", {gain} times the rate without workers"
        rates.setdefault(_workers(cell), []).append(rate + whose)
        times = _against_fastest(cell, series)
        if cell is not fastest and times.interval and times.interval.high > _MUCH:
            doubts.append(
                f"Whether {with_workers(_workers(fastest))} it is faster{whose} is not certain: "
                f"{interval_text(times, 1)} times as fast, and the passes differ by "
                f"{show_percent(max(map(_spread, (cell, fastest))))} (sd). Run it again with more "
                "passes (data.repeats)."
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


def _on_bottleneck(cell: TimedCell, step_time_s: float | None, whose: str) -> Iterator[str]:
    if step_time_s is None:
        least = show_time(cell.time_s.mean)
        yield f"Loading{whose} keeps up with training steps of {least} (dataload.step_time_s)."
        return
    times = ratio(cell.time_s, spread_measure(step_time_s, 0.0, _CERTAIN, over="windows"))
    if differs(times) is False:
        yield (
            f"Whether loading{whose} or the model is the bottleneck is not certain: a batch takes "
            f"{interval_text(times, 2)} times as long as a step."
        )
    elif times.mean > 1:
        wait = show_percent(1 - 1 / times.mean)
        yield f"Loading{whose} is the bottleneck: the model waits {wait} of the time."
    else:
        yield f"Loading{whose} is not the bottleneck, the model is."


def _on_nodes(slow: TimedCell, nodes: Sequence[TimedCell]) -> Iterator[str]:
    """Say by how much the slowest node is slower than the fastest one, each at its best."""
    fast = max(nodes, key=lambda cell: cell.rate or 0.0)
    times = ratio(slow.time_s, fast.time_s)
    if times.mean >= _MUCH and differs(times) is not False:
        yield (
            f"This is about node {_node(slow)} ({' '.join(slow.hosts)}), which the others would "
            f"wait for: node {_node(fast)} ({' '.join(fast.hosts)}) loads "
            f"{interval_text(times, 2)} times as many."
        )


def _on_workers(cell: TimedCell, series: Series, whose: str, loading: Loading) -> str:
    """Say how long a batch takes, and what more workers gain, or that they were not tried."""
    workers, most, cpus = _workers(cell), series[-1], loading.cpus_of(cell)
    has = f"the {num_cpus(cpus)} of each rank" if loading.ranks > 1 else f"its {num_cpus(cpus)}"
    more = f"more were not tried, and {has} {'have' if cpus > 1 else 'has'} no room"
    if most is not cell:
        times = _ratio(most, cell, series)
        gain = "may gain" if times.interval and times.interval.high > _MUCH else "gain"
        more = f"more {gain} nothing on {has}: {with_workers(_workers(most))} it is "
        more += f"{interval_text(times, 2)} times as fast"
    elif workers < int(cpus) or _waits(cell):
        more = f"more were not tried: {workers * 2 or 1} may be faster"
    return (
        f"A batch of {cell.keys['batch_size']:,}{whose} takes {show_time(cell.time_s.mean)} "
        f"{with_workers(workers)}; {more}."
    )


def _on_parts(cell: TimedCell, series: Series, loading: Loading) -> Iterator[str]:
    """Say where the time of a sample goes, and what would help."""
    sample_s = sum(cell.parts_s.values())
    shares = {n: cell.parts_s[n] / sample_s for n in PARTS if cell.parts_s.get(n)}
    listed = ", ".join(f"{PARTS[name]} {show_percent(share)}" for name, share in shares.items())
    transform, noun = cell.keys.get("transform"), "image" if loading.decoder else "sample"
    of = f" ({shortened(str(transform))})" if transform else ""
    yield f"One {noun} takes {show_time(sample_s)} of a worker{of}: {listed}."
    cpus, rate = loading.cpus_of(cell), (cell.rate or 0.0) / loading.ranks
    busy_s = sum(part_s for name, part_s in cell.parts_s.items() if name not in WAITING)
    is_busy = rate * busy_s / cpus >= _BUSY
    if is_busy:
        yield (
            f"The {num_cpus(cpus)} {'are' if cpus > 1 else 'is'} busy with it: only less work per "
            f"{noun} or more CPUs (resources.cpus_per_gpu) would help."
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
    if _waits(cell) and not is_busy:
        workers = "More workers than CPUs, or a" if series[-1] is cell else "A"
        share = shares.get("read", 0.0) + shares.get("wait", 0.0)
        yield f"Each {noun} waits {show_time(share * sample_s)} for storage, or for something else."
        yield f"{workers} copy on a local disk would help."


def _waits(cell: TimedCell) -> bool:
    """Return whether a notable share of the time goes into waiting for files or the like."""
    waiting_s = sum(cell.parts_s.get(name, 0.0) for name in ("read", "wait"))
    return waiting_s >= _NOTABLE_SHARE * sum(cell.parts_s.values()) > 0


def _on_passes(cell: TimedCell, cells: Sequence[TimedCell]) -> Iterator[str]:
    """Compare the first pass of a way with its others, and doubt what differs from pass to pass."""
    times = cell.more["first_pass_time_s"] / cell.time_s.mean
    if times >= _MUCH:
        yield f"Its first pass, from storage where that can be had, took {times:.1f} times as long."
    worst = max(map(_spread, cells))
    if worst >= _NOISY or all(each.repeats == 1 for each in cells):
        differ = f"The passes differ by up to {show_percent(worst)} (sd)"
        differ = differ if worst else "There was one pass of each"
        yield f"{differ}, so small differences may be chance: run it again, or data.repeats=20."
