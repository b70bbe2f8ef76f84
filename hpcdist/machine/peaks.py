"""The most that GPUs compute, in dense operations per second, as NVIDIA's data sheets state it.

Where a sheet states the figure for sparse matrices alone, it is halved.
"""

from __future__ import annotations

_FORMATS = {"fp32": 0, "tf32": 1, "bf16-mixed": 2, "bf16-true": 2, "fp16-mixed": 2}
"""Value of `train.precision` -> column of the table."""
_PEAKS = {
    "GH200": (67, 494.5, 989.5),
    "H200 NVL": (60, 417.5, 835.5),
    "H100 NVL": (60, 417.5, 835.5),
    "H200": (67, 494.5, 989.5),
    "H100 PCIe": (51, 378, 756),
    "H100 80GB HBM3": (67, 494.5, 989.5),
    "A100": (19.5, 156, 312),
    "A30": (10.3, 82, 165),
    "A40": (37.4, 74.8, 149.7),
    "L40S": (91.6, 183, 362),
    "L4": (30.3, 60, 121),
}
"""Words of the name that the driver gives -> 10^12 operations per second in fp32, tf32 and 16 bits.
Older GPUs than these have no cores for tf32 and bf16."""


def peak_flops_per_s(gpu: str, precision: str) -> float | None:
    """Return the peak of a GPU, by the name that its driver gives, in a `train.precision`; None
    where the table has none, as for a part of a GPU (MIG)."""
    words = gpu.replace("-", " ").split()
    # Whole words: L4 is not L40S.
    name = next((name for name in _PEAKS if {*name.split()} <= {*words}), None)
    if name is None or "MIG" in words or precision not in _FORMATS:
        return None
    return _PEAKS[name][_FORMATS[precision]] * 1e12
