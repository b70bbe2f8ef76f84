"""The most that GPUs compute, in dense operations per second, as their makers state it.

From NVIDIA's data sheets: H200, GH200, H100 (2024), A100 (2022), A30, A40, A10 (2022), L40S, L4
(2023), T4 (2019), V100 (2020). Where a sheet states the figure for sparse matrices alone, it is
halved. `half` is bfloat16 and float16 on tensor cores.
"""

from __future__ import annotations

from typing import NamedTuple

_TERA = 1e12


class Peak(NamedTuple):
    """In 10^12 operations per second; None where the GPU has no such cores."""

    fp32: float
    tf32: float | None
    half: float


_HOPPER = Peak(67, 494.5, 989.5)
_PEAKS = {
    "GH200": _HOPPER,
    "H200": _HOPPER,
    "H100 PCIe": Peak(51, 378, 756),
    "H100 80GB HBM3": _HOPPER,
    "A100": Peak(19.5, 156, 312),
    "A30": Peak(10.3, 82, 165),
    "A40": Peak(37.4, 74.8, 149.7),
    "L40S": Peak(91.6, 183, 362),
    "L4": Peak(30.3, 60, 121),
    "T4": Peak(8.1, None, 65),
    "V100-SXM2": Peak(15.7, None, 125),
    "V100-PCIE": Peak(14, None, 112),
}
"""Part of the name that the driver gives -> peak. The first that fits counts."""
_FORMATS = {"fp32": "fp32", "tf32": "tf32", "bf16-mixed": "half", "bf16-true": "half"}
_NO_BFLOAT16 = ("T4", "V100")


def peak_flops_per_s(gpu: str, precision: str) -> float | None:
    """Return the peak of a GPU, by the name that its driver gives, in a `train.precision`; None
    where the table has none, as for a part of a GPU (MIG)."""
    words = gpu.replace("-", " ").split()
    if "MIG" in words:
        return None
    for name, peak in _PEAKS.items():
        # L4 is not L40S: whole words, but for A100-SXM4 and the like.
        if all(word in words for word in name.replace("-", " ").split()):
            if precision.startswith("bf16") and name.startswith(_NO_BFLOAT16):
                return None
            value = peak.half if precision == "fp16-mixed" else None
            if precision in _FORMATS:
                value = getattr(peak, _FORMATS[precision])
            return value * _TERA if value else None
    return None
