"""What loading figures mean: how many workers, and whether loading or the model waits; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from hpcdist.base.text import show_percent, show_time
from hpcdist.bench.dataload.advice import advise, computing_s, work_s
from hpcdist.bench.dataload.figures import LoadingCell, StepTime
from hpcdist.bench.dataload.series import (
    LEAST_DIFFERENCE,
    Series,
    best_by_transform,
    is_unclear,
    recommended,
    slowest_node,
    spread,
)
from hpcdist.bench.dataload.words import BRIEF, capital, listed, num_cpus, shortened, with_workers

_MUCH = 1.2  # times another rate, or time: then it is told
_NOISY = 0.2  # sd to mean from which on a word of doubt is due


class Conclusion(Struct, frozen=True, kw_only=True):
    """Sentences on loading figures."""

    headlines: list[str] = []
    """How many workers, and which of loading and the model is the bottleneck."""
    details: list[str] = []
    """What that goes by, and what would help."""


def conclude(cells: Sequence[LoadingCell], steps: Sequence[StepTime]) -> Conclusion:
    """Of the slowest node where there are several.

    Where passes differ so much that another run could say the opposite, only that is said.
    """
    if not cells:
        return Conclusion()
    node = slowest_node(cells)
    own = [cell for cell in cells if cell.node == node]
    best = best_by_transform(own)
    unclear = {name: series for name, series in best.items() if any(map(is_unclear, series))}
    clear = {name: series for name, series in best.items() if name not in unclear}
    headlines = [
        *_on_nodes(cells, node),
        *_on_best(clear),
        *_on_unclear(unclear, named=bool(clear)),
        *_on_bottleneck(clear, steps),
    ]
    return Conclusion(
        headlines=headlines, details=list(_details(clear, own, steps, named=len(best) > 1))
    )


def _on_nodes(cells: Sequence[LoadingCell], node: int) -> Iterator[str]:
    """Only where nodes differ."""
    others = [cell for cell in cells if cell.node != node]
    if not others:
        return
    slow = max((cell for cell in cells if cell.node == node), key=_rate)
    fast = max(others, key=_rate)
    ratio = _rate(fast) / _rate(slow)
    if ratio >= _MUCH and not is_unclear(slow) and not is_unclear(fast):
        yield (
            f"Node {node} ({slow.host}) loads {_rate(slow):,.0f} images/s at its best, node "
            f"{fast.node} ({fast.host}) {ratio:.2f} times as many: what follows is about the "
            "slower, for which the others would wait."
        )


def _on_best(clear: Mapping[str, Series]) -> Iterator[str]:
    """By number of workers, so that one is told once."""
    rates: dict[int, list[str]] = {}
    for name, series in clear.items():
        cell = recommended(series)
        rate = f"{_rate(cell):,.0f} images/s with transform {shortened(name)}"
        rates.setdefault(cell.setting.workers, []).append(rate)
    if rates:
        told = "; ".join(f"{with_workers(number)}: {', '.join(of)}" for number, of in rates.items())
        yield f"Best {told}." if _is_compared(clear) else f"{capital(told)}."


def _on_unclear(unclear: Mapping[str, Series], *, named: bool) -> Iterator[str]:
    if not unclear:
        return
    worst = max(spread(cell) for series in unclear.values() for cell in series)
    what = "How many workers are best" if _is_compared(unclear) else "How fast loading is"
    yield (
        f"{what} cannot be told{_with(unclear, said=named)}: the passes differ by "
        f"{show_percent(worst)} (sd). Run it again."
    )


def _on_bottleneck(clear: Mapping[str, Series], steps: Sequence[StepTime]) -> Iterator[str]:
    pairs = _with_step(clear, steps)
    waits = {name: _idle(cell, step) for name, (cell, step) in pairs.items()}
    late = [name for name, share in waits.items() if share > 0]
    ready = [name for name in waits if name not in late]
    differ = bool(late and ready)
    if late:
        most = max(waits.values())
        up_to = "" if len(late) == 1 else "up to "
        yield (
            f"Loading is the bottleneck{_with(late, said=differ)}: the model waits {up_to}"
            f"{show_percent(most)} of the time."
        )
    if ready:
        yield f"Loading is not the bottleneck{_with(ready, said=differ)}, the model is."


def _with(names: Iterable[str], *, said: bool) -> str:
    return f" with transform {listed(names)}" if said else ""


def _details(
    clear: Mapping[str, Series],
    own: Sequence[LoadingCell],
    steps: Sequence[StepTime],
    *,
    named: bool,
) -> Iterator[str]:
    """One line each; `named`: what is about one transform begins with its name."""
    if not clear:
        return
    pairs = _with_step(clear, steps)
    for name, series in clear.items():
        told = [*_on_workers(series), *(_on_step(*pairs[name]) if name in pairs else ())]
        for text in told:
            yield f"{shortened(name, BRIEF)}: {text}" if named else capital(text)
    chosen = {name: recommended(series) for name, series in clear.items()}
    yield from _on_steps_in_time([chosen[name] for name in clear if name not in pairs])
    dearest = max(chosen, key=lambda name: work_s(chosen[name]))
    yield from advise(chosen[dearest], clear[dearest], own)
    yield from _on_first(chosen[dearest])
    yield from _on_noise(clear)


def _on_workers(series: Series) -> Iterator[str]:
    cell = recommended(series)
    workers, alone = cell.setting.workers, series[0]
    text = f"{with_workers(workers)} {show_time(cell.mean_time_s)} per batch of "
    text += f"{cell.setting.batch_size:,}"
    if workers and not alone.setting.workers:
        text += f", {alone.mean_time_s / cell.mean_time_s:.2f} times the rate without workers"
    yield f"{text}."
    cpus = cell.cpus / cell.ranks
    whose = f"the {num_cpus(cpus)} of each rank" if cell.ranks > 1 else f"its {num_cpus(cpus)}"
    yield _on_more(cell, series[-1], whose=whose, cpus=cpus)


def _on_more(cell: LoadingCell, most: LoadingCell, *, whose: str, cpus: float) -> str:
    """Of more workers: what they gain, or that nobody tried."""
    workers = cell.setting.workers
    if most is not cell:
        ratio = _rate(most) / _rate(cell)
        chance = ", which is within the noise" if ratio > 1 + LEAST_DIFFERENCE else ""
        return (
            f"more workers gain nothing on {whose}: {with_workers(most.setting.workers)} "
            f"{ratio:.2f} times that{chance}."
        )
    if workers < int(cpus):
        return f"more were not tried, and {whose} may have room: data.workers={workers * 2 or 1}."
    return f"more were not tried, and {whose} {'have' if cpus > 1 else 'has'} no room for them."


def _on_step(cell: LoadingCell, step: StepTime) -> Iterator[str]:
    whose = f"a step of {step.model}" if step.model else "a training step"
    idle = _idle(cell, step)
    then = (
        f"the model waits {show_percent(idle)} of the time"
        if idle > 0
        else "ready before it is wanted"
    )
    step_time, batch_time = show_time(step.mean_time_s), show_time(cell.mean_time_s)
    yield f"{whose} takes {step_time}, a batch {batch_time}: {then}."
    if step.on_cpus:
        batch_s = computing_s(cell) * cell.setting.batch_size * cell.ranks / cell.cpus
        together_s = max(cell.mean_time_s, step.mean_time_s + batch_s)
        yield (
            "both, measured alone, want the same CPUs: together a step takes about "
            f"{show_time(together_s)}."
        )


def _on_steps_in_time(cells: Sequence[LoadingCell]) -> Iterator[str]:
    """Where no step is known: which would be long enough."""
    if not cells:
        return
    least = "as long as these batches" if len(cells) > 1 else show_time(cells[0].mean_time_s)
    yield f"Loading keeps up with training steps that take at least {least}."
    yield "To compare yours: --set model.name=resnet18, or --set dataload.step_time_s=0.1."


def _on_first(cell: LoadingCell) -> Iterator[str]:
    ratio = cell.first_time_s / cell.mean_time_s
    if cell.first_files != "memory" and ratio >= _MUCH:
        yield (
            f"The first pass took {ratio:.1f} times as long per batch"
            f"{_TEMPERATURES[cell.first_files]}."
        )


_TEMPERATURES = {
    "cold": ", with files that came from storage",
    "warm": ", though its files were in memory already",
    "unknown": "; whether its files were in memory cannot be told here",
}


def _on_noise(clear: Mapping[str, Series]) -> Iterator[str]:
    cells = [cell for series in clear.values() for cell in series]
    worst = max(map(spread, cells))
    if worst >= _NOISY:
        yield (
            f"The passes differ by up to {show_percent(worst)} (sd), so that small differences "
            "may be chance: run it again."
        )
    if all(cell.repeats == 1 for cell in cells):
        yield "There was one pass of each, so that any difference may be chance: data.repeats=5."


def _with_step(
    clear: Mapping[str, Series], steps: Sequence[StepTime]
) -> dict[str, tuple[LoadingCell, StepTime]]:
    """By transform: the best way of loading, and a step with as many images."""
    by_size = {step.batch_size: step for step in steps}
    chosen = {name: recommended(series) for name, series in clear.items()}
    return {
        name: (cell, by_size[cell.setting.batch_size])
        for name, cell in chosen.items()
        if cell.setting.batch_size in by_size
    }


def _idle(cell: LoadingCell, step: StepTime) -> float:
    """Share of the time that the model waits."""
    return max(0.0, 1 - step.mean_time_s / cell.mean_time_s)


def _is_compared(by_transform: Mapping[str, Series]) -> bool:
    return any(len(series) > 1 for series in by_transform.values())


def _rate(cell: LoadingCell) -> float:
    return cell.images_per_s
