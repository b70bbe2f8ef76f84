"""The use of a node over time: how samples become the events that an agent writes of it.

Windows of samples grow with the time: a day makes some 700 of them, as for steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, to_builtins

from hpcdist.runs.events import GpuWindow, Spread, UsageWindow

_WINDOW_SHARE = 0.01
_FASTEST_S = 0.5
_GROWTH = 0.1
"""Share of the time so far: samples begin close to each other, so that short runs have some."""
ENERGY = "energy_j"
"""The quantity of a GPU that is added up: it is that of the whole time since the last sample."""


class Sample(NamedTuple):
    """The measurements of one moment, by quantity; the names are those of the events' fields."""

    length_s: float
    """Time since the last sample, for which this one stands."""
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
        return min(self._every_s, max(_FASTEST_S, _GROWTH * self._passed_s))

    def add(self, sample: Sample, *, time_s: float) -> UsageWindow | None:
        """Take a sample of the Unix time `time_s`; return the window that it fills, if it does."""
        self._samples.append(sample)
        self._length_s += sample.length_s
        self._passed_s += sample.length_s
        if self._length_s < _WINDOW_SHARE * self._passed_s:
            return None
        return self.close(time_s=time_s)

    def close(self, *, time_s: float) -> UsageWindow | None:
        """Return the window as far as it is; None where it has no sample."""
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
            **_summed_up([(sample.length_s, sample.node) for sample in samples]),
        )


def _gpu_window(samples: Sequence[Sample], index: int) -> GpuWindow:
    own = [(sample.length_s, sample.gpus[index]) for sample in samples if index < len(sample.gpus)]
    return GpuWindow(**_summed_up(own))


def _summed_up(found: Sequence[tuple[float, Mapping[str, float]]]) -> dict[str, Any]:
    """Return the sum of the energy, and the spread of everything else."""
    summed_up: dict[str, Any] = _spreads(found)
    if summed_up.pop(ENERGY, None) is not None:
        energies = [values[ENERGY] for _, values in found if ENERGY in values]
        summed_up[ENERGY] = _short(sum(energies))
    return summed_up


def _spreads(found: Sequence[tuple[float, Mapping[str, float]]]) -> dict[str, Spread]:
    """Return the spread of every quantity that some sample has; each value weighs as much as the
    time that it stands for."""
    spreads = {}
    for name in dict.fromkeys(name for _, values in found for name in values):
        own = [(length_s, values[name]) for length_s, values in found if name in values]
        low, high = min(value for _, value in own), max(value for _, value in own)
        whole_s = sum(length_s for length_s, _ in own)
        mean = sum(length_s * value for length_s, value in own) / whole_s if whole_s else low
        mean = min(high, max(low, mean))  # whatever the rounding
        spreads[name] = Spread(mean=_short(mean), max=_short(high))
    return spreads


def _short(value: float) -> float:
    """No sample is so exact that more digits would say anything."""
    return float(f"{value:.6g}")


def to_fields(event: Struct) -> dict[str, object]:
    """Return the fields of an event, as EventWriter takes them."""
    fields: dict[str, object] = to_builtins(event)
    return {name: value for name, value in fields.items() if name not in ("event", "time_s")}
