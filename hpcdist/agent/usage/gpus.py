"""What NVML tells of the GPUs that a node's ranks drive.

GPUs are known by their UUIDs, which the agent found when it chose them, so CUDA_VISIBLE_DEVICES is
of no concern here. What a GPU does not tell (a part of one, MIG, has no use and no power of its
own) is asked for once and then left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from hpcdist.agent.usage.figures import GpuFacts
from hpcdist.agent.usage.windows import ENERGY

_SLOWED = 0x08 | 0x20 | 0x40 | 0x80
"""HW_SLOWDOWN, SW_THERMAL, HW_THERMAL and HW_POWER_BRAKE of nvml.h. The power cap is not among
them: a GPU at its cap does what it was bought for."""


class GpuReader:
    """The GPUs of one node, from the first sample to `close`."""

    def __init__(self, uuids: Sequence[str]) -> None:
        """Nothing is read where there is no GPU, no library or no driver."""
        self.facts: list[GpuFacts] = []
        self._gpus: list[_Gpu] = []
        self._nvml: Any = None
        if uuids:
            self._open(uuids)

    def sample(self, length_s: float) -> list[dict[str, float]]:
        """What each GPU tells; its `energy_j` is that of the time `length_s` since the last."""
        return [gpu.sample(length_s) for gpu in self._gpus]

    def close(self) -> None:
        """Let go of the driver."""
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self._nvml = None

    def _open(self, uuids: Sequence[str]) -> None:
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return
        self._nvml = pynvml
        for uuid in uuids:
            with contextlib.suppress(pynvml.NVMLError):
                gpu = _Gpu(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid))
                self.facts.append(gpu.facts(uuid))
                self._gpus.append(gpu)


class _Gpu:
    """One of them."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._passing = (nvml.NVML_ERROR_TIMEOUT, nvml.NVML_ERROR_UNKNOWN)
        self._silent: set[str] = set()
        self._energy_mj: float | None = None

    def facts(self, uuid: str) -> GpuFacts:
        name = self._ask("name", self._nvml.nvmlDeviceGetName)
        memory = self._ask("memory_bytes", self._memory)
        limit_mw = self._ask("power_limit", self._nvml.nvmlDeviceGetEnforcedPowerLimit)
        return GpuFacts(
            uuid=uuid,
            name=name.decode() if isinstance(name, bytes) else name,
            memory_bytes=int(memory.total) if memory is not None else None,
            power_limit_w=limit_mw / 1000 if limit_mw is not None else None,
        )

    def sample(self, length_s: float) -> dict[str, float]:
        """Each quantity that it tells."""
        found = {
            "utilization": self._ask("utilization", self._utilization),
            "memory_bytes": self._ask("memory_bytes", lambda handle: self._memory(handle).used),
            "power_w": self._ask("power_w", self._power_w),
            "temperature_c": self._ask("temperature_c", self._temperature),
            "throttled": self._ask("throttled", self._throttled),
        }
        known = {name: float(value) for name, value in found.items() if value is not None}
        energy_j = self._energy_j(known.get("power_w"), length_s)
        return known if energy_j is None else {**known, ENERGY: energy_j}

    def _ask(self, quantity: str, read: Callable[[Any], Any]) -> Any:
        """None for what it did not tell before: to ask again costs time."""
        if quantity in self._silent:
            return None
        try:
            return read(self._handle)
        except self._nvml.NVMLError as error:
            if error.value not in self._passing:
                self._silent.add(quantity)
            return None

    def _utilization(self, handle: Any) -> float:
        return float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100

    def _memory(self, handle: Any) -> Any:
        """In version 1 of the answer `used` holds what the driver reserves for itself, too."""
        try:
            return self._nvml.nvmlDeviceGetMemoryInfo(handle, version=self._nvml.nvmlMemory_v2)
        except self._nvml.NVMLError:  # a driver before 510
            return self._nvml.nvmlDeviceGetMemoryInfo(handle)

    def _power_w(self, handle: Any) -> float:
        return float(self._nvml.nvmlDeviceGetPowerUsage(handle)) / 1000

    def _temperature(self, handle: Any) -> float:
        return float(self._nvml.nvmlDeviceGetTemperature(handle, self._nvml.NVML_TEMPERATURE_GPU))

    def _throttled(self, handle: Any) -> float:
        reasons = self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        return float(bool(reasons & _SLOWED))

    def _energy_j(self, power_w: float | None, length_s: float) -> float | None:
        """By the GPU's own meter (from Volta on), else its power over the time."""
        before_mj = self._energy_mj
        self._energy_mj = self._ask(ENERGY, self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        if self._energy_mj is not None and before_mj is not None:
            return max(0.0, self._energy_mj - before_mj) / 1000
        return None if power_w is None else power_w * length_s
