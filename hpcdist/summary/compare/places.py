"""The same job on several clusters: how much faster one is than another, and for what money: pure.

Runs are of one kind here where their settings and sizes are equal; device, scheduler and version of
torch may differ, which are what a cluster has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from hpcdist.base.statistics import differs, mean, ratios
from hpcdist.base.text import interval_text, shown
from hpcdist.summary.compare.sizes import measured_rate
from hpcdist.summary.values import PlaceComparison, PlaceSummary, RunFigures, RunSummary

_SURE_OF_MONEY = 0.05


def place_of(run: RunFigures) -> str:
    """Return the name of the profile that a run went by, or else its scheduler's."""
    return run.cluster or run.scheduler or ""


def compare_places(runs: Sequence[RunSummary]) -> list[PlaceComparison]:
    """Compare done runs that were the same but for their place; the first place is the baseline."""
    alike: dict[tuple[object, ...], list[RunSummary]] = defaultdict(list)
    for run in runs:
        if run.state == "done" and run.samples_per_s and run.samples_per_s.mean > 0:
            code = run.ran_with.code
            key = (run.job, run.settings, code, run.comparison, run.nodes, run.gpus_per_node)
            alike[key].append(run)
    compared = ((same[0], _summaries(same)) for same in alike.values())
    return [
        PlaceComparison(
            job=first.job, nodes=first.nodes, gpus_per_node=first.gpus_per_node, places=places
        )
        for first, places in compared
        if len(places) > 1
    ]


def _summaries(same: Sequence[RunSummary]) -> list[PlaceSummary]:
    places: dict[str, list[RunSummary]] = {}
    for run in same:
        places.setdefault(place_of(run), []).append(run)
    rates = [measured_rate(runs) for runs in places.values()]
    speedups = [None, *ratios([(rate, rates[0]) for rate in rates[1:]])]
    return [
        PlaceSummary(
            name=name,
            has_gpus=runs[0].num_cpus is None,
            runs=[run.run for run in runs],
            samples_per_s=rate,
            price=_mean_price(runs),
            speedup=speedup,
        )
        for (name, runs), rate, speedup in zip(places.items(), rates, speedups, strict=True)
    ]


def _mean_price(runs: Sequence[RunSummary]) -> float | None:
    prices = [run.cost.price for run in runs if run.cost and run.cost.price is not None]
    return mean(prices) if len(prices) == len(runs) else None


def place_sentences(comparison: PlaceComparison) -> Iterator[str]:
    """Say of each place but the first how fast it is against that, and what the runs cost."""
    first, *others = comparison.places
    for place in others:
        assert place.speedup is not None
        name, other = _named(place, comparison), _named(first, comparison)
        times = interval_text(place.speedup, 2)
        size = f"{comparison.nodes} x {comparison.gpus_per_node}"
        sentence = f"{name} is {times} times as fast as {other} ({size} each)"
        if differs(place.speedup) is False:
            sentence += ", so which of the two is faster is not certain"
        yield f"{sentence}{_money(place, first)}."


def _named(place: PlaceSummary, comparison: PlaceComparison) -> str:
    """Say the device, too, where it differs."""
    device = ""
    if len({each.has_gpus for each in comparison.places}) > 1:
        device = " (GPU)" if place.has_gpus else " (CPU)"
    return f"{shown(place.name)}{device}"


def _money(place: PlaceSummary, first: PlaceSummary) -> str:
    if not (place.price and first.price):
        return ""
    own, other = (f"{price:,.4g}" for price in (place.price, first.price))
    gain = first.price / place.price  # equal runs, start-up and evaluations included
    if abs(gain - 1) < _SURE_OF_MONEY:
        value = "as many samples for the same money"
    else:
        value = f"{gain:.2f} times as many samples for the same money"
    return f"; a run cost {own} there and {other} on {shown(first.name)}, {value}"
