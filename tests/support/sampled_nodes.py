"""What nodes used, sample by sample, that as the files of agents, and what of it is to be found."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hpcdist.agent.sampler import Sample, Windows
from hpcdist.runs.events import EventWriter, GpuFacts, NodeBegin
from hpcdist.runs.run import Run

_OF_GPU = ("utilization", "memory_bytes", "power_w", "throttled")
_GPU_BYTES = 80 * 10**9
_NUM_CPUS = 4


@dataclass(frozen=True, kw_only=True)
class SampledNode:
    """One node in one attempt."""

    node: int
    attempt: int
    num_gpus: int
    samples: list[Sample]


def sample_nodes(*, nodes: int, num_gpus: int, attempts: int, seed: int) -> list[SampledNode]:
    """Any loads, at uneven times; the last GPU of a node does not tell its power."""
    draw = random.Random(seed)
    return [
        SampledNode(
            node=node,
            attempt=attempt,
            num_gpus=num_gpus,
            samples=[_sample(draw, num_gpus) for _ in range(draw.randrange(20, 200))],
        )
        for attempt in range(attempts)
        for node in range(nodes)
    ]


def _sample(draw: random.Random, num_gpus: int) -> Sample:
    busy = draw.uniform(0, _NUM_CPUS)
    return Sample(
        length_s=draw.uniform(0.5, 3),
        node={
            "cpus_busy": busy,
        },
        gpus=[_gpu_sample(draw, has_power=index < num_gpus - 1) for index in range(num_gpus)],
    )


def _gpu_sample(draw: random.Random, *, has_power: bool) -> dict[str, float]:
    power = {"power_w": draw.uniform(80, 700), "energy_j": draw.uniform(10, 900)}
    return {
        "utilization": draw.random(),
        "memory_bytes": draw.randrange(10**9, _GPU_BYTES),
        "throttled": draw.randrange(2),
        **(power if has_power else {}),
    }


def write_nodes(sampled: Iterable[SampledNode], run: Run) -> None:
    """As their agents do, in windows that grow."""
    for one in sampled:
        events = EventWriter(run.usage_file(one.node, one.attempt))
        begin = NodeBegin(
            begin_s=0.0,
            node=one.node,
            host=f"host{one.node}",
            cpus=list(range(_NUM_CPUS)),
            num_cpus=_NUM_CPUS,
        )
        events.write(begin)
        facts = [
            GpuFacts(uuid=_uuid(one.node, index), memory_bytes=_GPU_BYTES)
            for index in range(one.num_gpus)
        ]
        if facts:
            events.write(msgspec.structs.replace(begin, gpus=facts))
        windows = Windows(1.0)
        found = [windows.add(sample, time_s=0.0) for sample in one.samples]
        for window in [*found, windows.close()]:
            if window is not None:
                events.write(window)
        events.close()


def _uuid(node: int, index: int) -> str:
    return f"GPU-{node}-{index}"


def expected_usage(sampled: Sequence[SampledNode]) -> dict[str, Any]:
    """By the keys of the summary's `usage`."""
    of_node: dict[int, list[Sample]] = {}
    for one in sampled:
        of_node.setdefault(one.node, []).extend(one.samples)
    nodes = [_node(node, samples) for node, samples in of_node.items()]
    gpus = [
        _gpu(node, index, samples)
        for node, samples in of_node.items()
        for index in range(len(samples[0].gpus))
    ]
    fullest = _largest(gpus, "max_memory_bytes")
    return {
        "sampled_s": max(math.fsum(one.length_s for one in own) for own in of_node.values()),
        "gpu_utilization": _of_all(of_node, "utilization"),
        "max_gpu_memory_bytes": fullest,
        "gpu_memory_bytes": _GPU_BYTES if gpus else None,
        "gpu_power_w": _of_all(of_node, "power_w"),
        "energy_j": math.fsum(gpu["energy_j"] or 0 for gpu in gpus) if gpus else None,
        "cpus_busy": sum(node["cpus_busy"] for node in nodes),
        "num_cpus": _NUM_CPUS * len(nodes),
        "nodes": nodes,
        "gpus": gpus,
    }


def _node(node: int, samples: Sequence[Sample]) -> dict[str, Any]:
    own = [(one.length_s, one.node) for one in samples]
    return {
        "node": node,
        "host": f"host{node}",
        "num_cpus": _NUM_CPUS,
        "cpus_busy": _mean(own, "cpus_busy"),
    }


def _gpu(node: int, index: int, samples: Sequence[Sample]) -> dict[str, Any]:
    own = [(one.length_s, one.gpus[index]) for one in samples]
    most = {
        name: max((found[name] for _, found in own if name in found), default=None)
        for name in _OF_GPU
    }
    energies_j = [found["energy_j"] for _, found in own if "energy_j" in found]
    return {
        "node": node,
        "uuid": _uuid(node, index),
        "name": None,
        "utilization": _mean(own, "utilization"),
        "max_memory_bytes": most["memory_bytes"],
        "memory_bytes": _GPU_BYTES,
        "power_w": _mean(own, "power_w"),
        "energy_j": math.fsum(energies_j) if energies_j else None,
        "throttled": _mean(own, "throttled"),
    }


def _of_all(of_node: dict[int, list[Sample]], name: str) -> float | None:
    found = [
        (sample.length_s, gpu)
        for samples in of_node.values()
        for sample in samples
        for gpu in sample.gpus
    ]
    return _mean(found, name)


def _mean(found: Iterable[tuple[float, Any]], name: str) -> float | None:
    """Over the time in which it was told."""
    told = [(length_s, values[name]) for length_s, values in found if name in values]
    if not told:
        return None
    lengths_s, values = zip(*told, strict=True)
    return statistics.fmean(values, lengths_s)


def _largest(found: Iterable[dict[str, Any]], key: str) -> Any:
    return max((one[key] for one in found), default=None)
