"""Sentences on loading figures: the best number of workers, whether loading or the model waits, and
what would help; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hpcdist.base.statistics import Ratio, differs, ratios, ratios_of_all
from hpcdist.base.text import interval_text, number_of, show_percent, show_time, spread_text
from hpcdist.bench.dataload.figures import (
    MUCH,
    PARTS,
    DataloadCell,
    DataloadSummary,
    ModelStep,
    Series,
    against_fastest,
    best_by_transform,
    is_slower,
    is_undecided,
    recommended,
    slowest_node,
    spread,
)

_NOISY = 0.2  # sd to mean from which on a word of doubt is due
_WIDTH = 40
BRIEF = 24
"""Width of texts in lines that have more to say."""

_NOTABLE_SHARE = 0.25
"""Share of the work per image below which a part is not mentioned."""

_NAMED_SHARE = 0.005  # what would be 0 % is not listed
_BUSY = 0.8  # of the CPUs: then only less work per image helps
_UNCLEAR_RATIO = 20  # what stands in the way then is too small to be measured well
_OVERLAP = 1.2  # reads at once: a little more than one may be chance
_NAMES = dict(
    zip(
        PARTS,
        ("reading", "decoding", "transform", "collate", "hand-over and waiting"),
        strict=True,
    )
)
_FIRST_FILES = {
    "cold": ", with files that came from storage",
    "warm": ", though its files were in memory already",
    "unknown": "; this file system does not show whether its files were in memory",
}
_LESS_DECODING = {
    "exact": "data.decoder=fast takes less time, but its pixels differ a little.",
    "fast": "Smaller files, or data.size below that of the files, would take less decoding.",
}

_Pairs = Mapping[str, tuple[DataloadCell, ModelStep]]
"""By transform, the best way of loading and a training step with as many images."""


def conclude(cells: Sequence[DataloadCell], steps: Sequence[ModelStep]) -> DataloadSummary:
    """Summarize one cell or more, with sentences on the slowest node: what is certain, and what
    cannot be told as the passes differ too much."""
    node = slowest_node(cells)
    own = [cell for cell in cells if cell.node == node]
    best = best_by_transform(own)
    chosen = {name: recommended(series) for name, series in best.items()}
    by_size = {step.batch_size: step for step in steps}
    pairs = {
        name: (cell, by_size[cell.setting.batch_size])
        for name, cell in chosen.items()
        if cell.setting.batch_size in by_size
    }
    dearest = max(chosen, key=lambda name: work_s(chosen[name]))
    return DataloadSummary(
        cells=list(cells),
        steps=list(steps),
        conclusions=[
            *_on_nodes(cells, node),
            *_on_best(best, chosen),
            *_on_bottleneck(pairs),
        ],
        details=[
            *_on_ways(best, chosen, pairs, named=len(best) > 1),
            *_advise(chosen[dearest], best[dearest]),
            *_on_threads(own),
            *_on_passes(chosen[dearest], [cell for series in best.values() for cell in series]),
        ],
    )


def _on_nodes(cells: Sequence[DataloadCell], node: int) -> Iterator[str]:
    """Say by how much the slowest node is slower than the fastest one, each at its best."""
    best = {cell.node: cell for cell in sorted(cells, key=lambda cell: cell.images_per_s)}
    slow = best.pop(node)
    compared = ratios([(slow.time_s, cell.time_s) for cell in best.values()])
    rated = zip(best.values(), compared, strict=True)
    fast, times = max(rated, key=lambda each: each[0].images_per_s, default=(slow, Ratio(mean=1.0)))
    if times.mean >= MUCH and differs(times) is not False:
        yield (
            f"Node {node} ({slow.host}) loads {slow.images_per_s:,.0f} images/s at its best, node "
            f"{fast.node} ({fast.host}) {interval_text(times, 2)} times as many. What follows is "
            "about the slower one, which the others would wait for."
        )


def _on_best(best: Mapping[str, Series], chosen: Mapping[str, DataloadCell]) -> Iterator[str]:
    """Group the transforms by their best number of workers; else say what can be told."""
    rates: dict[int, list[str]] = {}
    undecided = []
    for name, series in best.items():
        times = against_fastest(series)
        if any(map(is_undecided, times)):
            undecided.append(_on_undecided(series, times, _with([name], named=len(best) > 1)))
        else:
            cell = chosen[name]
            shown_rate = spread_text(cell.rate, 0)
            rate = f"{shown_rate} images/s with transform {shortened(name)}"
            rates.setdefault(cell.setting.workers, []).append(rate)
    if rates:
        text = "; ".join(f"{with_workers(number)}: {', '.join(of)}" for number, of in rates.items())
        yield f"Best {text}." if _is_compared(best) else f"{_capital(text)}."
    yield from undecided


def _on_undecided(series: Series, times: Sequence[Ratio], with_transform: str) -> str:
    alike = [cell for cell, time in zip(series, times, strict=True) if not is_slower(time)]
    fewest = series[0]
    fastest = min(series, key=lambda cell: cell.mean_time_s)
    other = min((cell for cell in series if cell is not fewest), key=lambda cell: cell.mean_time_s)
    gain = interval_text(_rate_ratio(other, fewest, series), 1)
    many = f"{with_workers(other.setting.workers)} it is {gain} times as fast as "
    many += with_workers(fewest.setting.workers)
    why = f"the passes differ by {show_percent(max(map(spread, alike)))} (sd)"
    again = "Run it again with more passes (data.repeats)."
    if fewest in alike:
        helps = "fewer workers do as well"
        if fastest is not fewest:
            helps = "workers help" if not fewest.setting.workers else "more workers help"
        return f"Whether {helps}{with_transform} is not certain: {many}; {why}. {again}"
    help_ = "Workers help" if not fewest.setting.workers else "More workers help"
    numbers = [str(cell.setting.workers) for cell in alike]
    which = f"Which of {', '.join(numbers[:-1])} and {numbers[-1]} is best is not certain"
    return f"{help_}{with_transform}: {many}. {which}: {why}. {again}"


def _on_bottleneck(pairs: _Pairs) -> Iterator[str]:
    compared = ratios([(cell.time_s, step.time_s) for cell, step in pairs.values()])
    waits = {name: _idle(cell, step) for name, (cell, step) in pairs.items()}
    times = dict(zip(pairs, compared, strict=True))
    unsure = [name for name, time in times.items() if differs(time) is False]
    late = [name for name, share in waits.items() if share > 0 and name not in unsure]
    ready = [name for name in waits if name not in late and name not in unsure]
    differ = sum(map(bool, (late, ready, unsure))) > 1
    if late:
        up_to = "" if len(late) == 1 else "up to "
        yield (
            f"Loading is the bottleneck{_with(late, named=differ)}: the model waits {up_to}"
            f"{show_percent(max(waits[name] for name in late))} of the time."
        )
    if ready:
        yield f"Loading is not the bottleneck{_with(ready, named=differ)}, the model is."
    if unsure:
        ratio = interval_text(times[unsure[0]], 2)
        up_to = "" if len(unsure) == 1 else f", with {shortened(unsure[0])}"
        yield (
            "Whether loading or the model is the "
            f"bottleneck{_with(unsure, named=differ)} is not certain: a batch takes "
            f"{ratio} times as long as a step{up_to}."
        )


def _on_ways(
    clear: Mapping[str, Series],
    chosen: Mapping[str, DataloadCell],
    pairs: _Pairs,
    *,
    named: bool,
) -> Iterator[str]:
    """Yield lines on the best way with each transform, which begin with its name where `named`."""
    for name, cell in chosen.items():
        for text in [
            *_on_workers(cell, clear[name]),
            *(_on_step(*pairs[name]) if name in pairs else ()),
        ]:
            yield f"{shortened(name, BRIEF)}: {text}" if named else _capital(text)
    without_step = [cell for name, cell in chosen.items() if name not in pairs]
    if without_step:
        is_single = len(without_step) == 1
        least = show_time(without_step[0].mean_time_s) if is_single else "as long as these batches"
        yield f"Loading keeps up with training steps that take at least {least}."
        yield "To compare yours: --set model.name=resnet18, or --set dataload.step_time_s=0.1."


def _on_workers(cell: DataloadCell, series: Series) -> Iterator[str]:
    """Say how fast it is, and what more workers gain, or that they were not tried."""
    workers, alone, most = cell.setting.workers, series[0], series[-1]
    text = f"{with_workers(workers)} {show_time(cell.mean_time_s)} per batch of "
    text += f"{cell.setting.batch_size:,}"
    if workers and not alone.setting.workers:
        gain = interval_text(_rate_ratio(cell, alone, series), 2)
        text += f", {gain} times the rate without workers"
    yield f"{text}."
    cpus = cell.cpus / cell.ranks
    whose = f"the {num_cpus(cpus)} of each rank" if cell.ranks > 1 else f"its {num_cpus(cpus)}"
    if most is not cell:
        times = _rate_ratio(most, cell, series)
        may = "may gain" if is_undecided(times) else "gain"
        yield (
            f"more workers {may} nothing on {whose}: {with_workers(most.setting.workers)} "
            f"{interval_text(times, 2)} times as fast."
        )
    elif workers < int(cpus):
        yield (
            f"more were not tried, and {whose} may have room for them: "
            f"data.workers={workers * 2 or 1}."
        )
    else:
        have = "have" if cpus > 1 else "has"
        yield f"more were not tried, and {whose} {have} no room for them."


def _rate_ratio(cell: DataloadCell, other: DataloadCell, cells: Series) -> Ratio:
    """Return how many times as fast one of the cells is as another, with every two compared."""
    compared = ratios_of_all([each.time_s for each in cells])
    return compared[cells.index(other), cells.index(cell)]


def _on_step(cell: DataloadCell, step: ModelStep) -> Iterator[str]:
    whose = f"a step of {step.model}" if step.model else "a training step"
    idle = _idle(cell, step)
    waits = f"the model waits {show_percent(idle)} of the time"
    then = waits if idle > 0 else "ready before the model needs it"
    step_time, batch_time = show_time(step.mean_time_s), show_time(cell.mean_time_s)
    yield f"{whose} takes {step_time}, a batch {batch_time}: {then}."
    if step.on_cpus:
        batch_s = computing_s(cell) * cell.setting.batch_size * cell.ranks / cell.cpus
        if not cell.setting.workers:  # the rank itself loads, and then steps
            batch_s = cell.mean_time_s
        together_s = max(cell.mean_time_s, step.mean_time_s + batch_s)
        yield (
            "both, measured alone, need the same CPUs: together a step takes about "
            f"{show_time(together_s)}."
        )


def _on_threads(cells: Sequence[DataloadCell]) -> Iterator[str]:
    """Say with how many threads the rank loads without workers, and workers do."""
    alone = {cell.threads for cell in cells if not cell.setting.workers}
    workers = {cell.threads for cell in cells if cell.setting.workers}
    for number in filter(None, alone):
        others = ", as each worker has" if workers else ""
        if workers - {number}:
            others = ", each worker 1: part of the difference may be theirs"
        own = number_of(number, "thread")
        yield f"Without workers the rank has {own} (dataload.threads){others}."


def _on_passes(cell: DataloadCell, cells: Sequence[DataloadCell]) -> Iterator[str]:
    """Compare the first pass of a way with its others, and doubt what differs from pass to pass."""
    ratio = cell.first_time_s / cell.mean_time_s
    if cell.first_files != "memory" and ratio >= MUCH:
        files = _FIRST_FILES[cell.first_files]
        yield f"The first pass took {ratio:.1f} times as long per batch{files}."
    worst = max(map(spread, cells))
    if worst >= _NOISY:
        yield (
            f"The passes differ by up to {show_percent(worst)} (sd), so that small differences "
            "may be chance: run it again."
        )
    if all(cell.repeats == 1 for cell in cells):
        yield "There was one pass of each, so any difference may be chance: use data.repeats=5."


def _advise(cell: DataloadCell, series: Series) -> Iterator[str]:
    """Advise on the best way of loading of a series."""
    if total_s := work_s(cell):
        named = ", ".join(
            f"{_NAMES[name]} {show_percent(part_s / total_s)}"
            for name, part_s in _parts_s(cell).items()
            if part_s >= _NAMED_SHARE * total_s
        )
        whose = shortened(cell.setting.transform, BRIEF)
        yield f"An image takes {show_time(total_s)} of work ({whose}): {named}."
        is_busy = cell.images_per_s * computing_s(cell) / cell.cpus >= _BUSY
        if is_busy:
            yield (
                f"The {num_cpus(cell.cpus)} {'are' if cell.cpus > 1 else 'is'} busy with it: only "
                "less work per image or more CPUs (resources.cpus_per_gpu) would help."
            )
        notable = {
            name: part_s
            for name, part_s in _parts_s(cell).items()
            if part_s >= _NOTABLE_SHARE * total_s
        }
        for name in sorted(notable, key=lambda name: -notable[name]):
            yield from _would_help(name, cell)
        if "read" in notable and not is_busy:
            yield from _on_reads(cell, more_workers=series[-1] is cell)


def work_s(cell: DataloadCell) -> float:
    """Return the seconds of work per image, in all parts."""
    return sum(cell.parts_s.values())


def computing_s(cell: DataloadCell) -> float:
    """Return the seconds per image in which a CPU is busy."""
    return sum(cell.parts_s.get(name, 0.0) for name in ("decode", "transform", "collate"))


def _parts_s(cell: DataloadCell) -> dict[str, float]:
    return {name: cell.parts_s[name] for name in PARTS if name in cell.parts_s}


def _would_help(name: str, cell: DataloadCell) -> Iterator[str]:
    """Yield what could be done about a part."""
    total_s = work_s(cell)

    def most(*saved: str) -> str:
        left_s = total_s - sum(cell.parts_s.get(part, 0.0) for part in saved)
        if left_s * _UNCLEAR_RATIO < total_s:
            return "many times as fast"
        return f"at most {total_s / left_s:.1f} times as fast"

    if name == "decode" and cell.decoder in _LESS_DECODING:
        yield _LESS_DECODING[cell.decoder]
    if name == "transform":
        yield f"Cheaper transforms would help: without any, {most('transform')}."


def _on_reads(cell: DataloadCell, *, more_workers: bool) -> Iterator[str]:
    """Advise on slow storage; `more_workers`: more workers may gain something."""
    read_s = cell.parts_s["read"]
    at_once = cell.images_per_s / cell.ranks * read_s / max(1, cell.setting.workers)
    now = f", each worker has about {at_once:.0f} reads under way" if at_once >= _OVERLAP else ""
    yield f"Reading a file takes {show_time(read_s)}{now}."
    workers = "More workers than CPUs, or a" if more_workers else "A"
    yield f"{workers} copy on a local disk would help."


def _idle(cell: DataloadCell, step: ModelStep) -> float:
    """Return the share of the time that the model waits."""
    return max(0.0, 1 - step.mean_time_s / cell.mean_time_s)


def _is_compared(by_transform: Mapping[str, Series]) -> bool:
    return any(len(series) > 1 for series in by_transform.values())


def _with(names: Iterable[str], *, named: bool) -> str:
    return f" with transform {', '.join(map(shortened, names))}" if named else ""


def shortened(text: str, width: int = _WIDTH) -> str:
    """Cut a list of transforms to what a line or a legend has room for."""
    return text if len(text) <= width else f"{text[:width]}..."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def with_workers(number: int) -> str:
    """Return `with 2 workers`."""
    return f"with {number_of(number, 'worker')}" if number else "without workers"


def num_cpus(number: float) -> str:
    """Return `2 CPUs`, of which a quota may be a part: `0.5 CPUs`."""
    return f"{number:g} CPU{'' if number == 1 else 's'}"
