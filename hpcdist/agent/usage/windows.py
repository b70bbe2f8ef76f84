"""Samples, summed up in windows that grow with the time: a day makes some 700, as for steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from hpcdist.agent.usage.figures import GpuWindow, Spread, UsageWindow

_WINDOW_SHARE = 0.01
_FASTEST_S = 0.5
_GROWTH = 0.1
"""Of the time so far: samples begin close to each other, so that short runs have some."""
ENERGY = "energy_j"
"""The quantity of a GPU that is added up: it is that of the whole time since the last sample."""


class Sample(NamedTuple):
    """What was found at one moment, by quantity; the names are those of the events' fields."""

    length_s: float
    """Since the last one, for which it stands."""
    node: Mapping[str, float]
    gpus: Sequence[Mapping[str, float]]


class Windows:
    """Gathers samples until a window is full."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._passed_s = 0.0
        self._length_s = 0.0
        self._samples: list[Sample] = []

    def next_in_s(self) -> float:
        """Until the next sample is due."""
        return min(self._every_s, max(_FASTEST_S, _GROWTH * self._passed_s))

    def add(self, sample: Sample, *, time_s: float) -> UsageWindow | None:
        """Take a sample of the Unix time `time_s`; returns the window that it fills."""
        self._samples.append(sample)
        self._length_s += sample.length_s
        self._passed_s += sample.length_s
        if self._length_s < _WINDOW_SHARE * self._passed_s:
            return None
        return self.close(time_s=time_s)

    def close(self, *, time_s: float) -> UsageWindow | None:
        """The window as far as it is; None where it has no sample."""
        samples, length_s = self._samples, self._length_s
        if not samples or not length_s:
            return None
        self._samples, self._length_s = [], 0.0
        num_gpus = max(len(sample.gpus) for sample in samples)
        return UsageWindow(
            time_s=time_s,
            wall_s=_short(length_s),
            samples=len(samples),
            gpus=[_gpu_window(samples, index) for index in range(num_gpus)],
            **_spreads([(sample.length_s, sample.node) for sample in samples]),
        )


def _gpu_window(samples: Sequence[Sample], index: int) -> GpuWindow:
    own = [(sample.length_s, sample.gpus[index]) for sample in samples if index < len(sample.gpus)]
    energies = [found[ENERGY] for _, found in own if ENERGY in found]
    spreads = _spreads([(length_s, _without_energy(found)) for length_s, found in own])
    return GpuWindow(energy_j=_short(sum(energies)) if energies else None, **spreads)


def _without_energy(found: Mapping[str, float]) -> Mapping[str, float]:
    return {name: value for name, value in found.items() if name != ENERGY}


def _spreads(found: Sequence[tuple[float, Mapping[str, float]]]) -> dict[str, Spread]:
    """Of every quantity that some sample has."""
    names = dict.fromkeys(name for _, values in found for name in values)
    return {
        name: _spread([(length_s, values[name]) for length_s, values in found if name in values])
        for name in names
    }


def _spread(values: Sequence[tuple[float, float]]) -> Spread:
    """Each value weighs as much as the time that it stands for."""
    whole_s = sum(length_s for length_s, _ in values)
    low, high = min(value for _, value in values), max(value for _, value in values)
    mean = sum(length_s * value for length_s, value in values) / whole_s if whole_s else low
    return Spread(mean=_short(min(high, max(low, mean))), min=_short(low), max=_short(high))


def _short(value: float) -> float:
    """No sample is so exact that more digits would say anything."""
    return float(f"{value:.6g}")


def to_fields(event: msgspec.Struct) -> dict[str, object]:
    """The fields of an event as EventWriter takes them."""
    fields: dict[str, object] = msgspec.to_builtins(event)
    return {name: value for name, value in fields.items() if name not in ("event", "time_s")}
