"""The use that a run makes of its devices: operations per second, and energy per sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hpcdist.base.statistics import mean
from hpcdist.machine.peaks import peak_flops_per_s
from hpcdist.summary.figures.rank import RankFigures
from hpcdist.summary.values import EnergyUse, FlopRate, UsageSummary


def flop_rate(
    ranks: Sequence[RankFigures],
    usage: UsageSummary | None,
    *,
    samples_per_s: float | None,
    world_size: int,
) -> FlopRate | None:
    """Return the operations of all ranks; None where nobody counted them."""
    counted = [own.flops for own in ranks if own.flops and own.flops.per_sample]
    if not counted:
        return None
    first = counted[0]
    per_s = None if samples_per_s is None else first.per_sample * samples_per_s
    peak_per_s: float | None = None
    peak_by: Literal["datasheet", "matrix product"] | None = None
    measured = [one.peak_per_s for one in counted if one.peak_per_s]
    gpus = usage.gpus if usage else []
    peaks = [peak_flops_per_s(gpu.name or "", first.precision or "") for gpu in gpus]
    if measured:
        peak_per_s, peak_by = mean(measured) * world_size, "matrix product"
    elif peaks and None not in peaks:
        peak_per_s, peak_by = sum(peak or 0.0 for peak in peaks), "datasheet"
    return FlopRate(
        per_sample=first.per_sample,
        per_s=per_s,
        peak_per_s=peak_per_s,
        peak_by=peak_by,
        utilization=per_s / peak_per_s if per_s is not None and peak_per_s else None,
    )


def energy_use(usage: UsageSummary | None, *, samples_per_s: float | None) -> EnergyUse | None:
    """Return the energy of a sample, by the meters that there are."""
    if usage is None or not usage.sampled_s or not samples_per_s:
        return None
    known = {"GPUs": usage.energy_j, "processors": usage.cpu_energy_j}
    covers = [name for name, energy_j in known.items() if energy_j]
    if not covers:
        return None
    power_w = sum(energy_j or 0.0 for energy_j in known.values()) / usage.sampled_s
    return EnergyUse(per_sample_j=power_w / samples_per_s, covers=covers)
