"""What nodes used, sample by sample, that as the files of agents, and what of it is to be found."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hpcdist.runs.events import EventWriter, GpuFacts, GpuWindow, NodeBegin, UsageWindow
from hpcdist.runs.run import Run

_GPU_BYTES = 80 * 10**9
_NUM_CPUS = 4


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One window of a node, by the names of the event's fields."""

    length_s: float
    node: dict[str, float]
    gpus: list[dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class SampledNode:
    """One node in one attempt."""

    node: int
    attempt: int
    num_gpus: int
    samples: list[Sample]


def sample_nodes(*, nodes: int, num_gpus: int, attempts: int, seed: int) -> list[SampledNode]:
    """Any loads, at uneven times; the last GPU of a node does not tell its use."""
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
    return Sample(
        length_s=draw.uniform(0.5, 3),
        node={"cpus_busy": draw.uniform(0, _NUM_CPUS)},
        gpus=[_gpu_sample(draw, has_use=index < num_gpus - 1) for index in range(num_gpus)],
    )


def _gpu_sample(draw: random.Random, *, has_use: bool) -> dict[str, float]:
    memory = {"memory_bytes": draw.randrange(10**9, _GPU_BYTES)}
    return memory | ({"utilization": draw.random()} if has_use else {})


def write_nodes(sampled: Iterable[SampledNode], run: Run) -> None:
    """As their agents do."""
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
            GpuFacts(uuid=f"GPU-{one.node}-{index}", memory_bytes=_GPU_BYTES)
            for index in range(one.num_gpus)
        ]
        if facts:
            events.write(msgspec.structs.replace(begin, gpus=facts))
        for sample in one.samples:
            gpus = [GpuWindow(**gpu) for gpu in sample.gpus]
            events.write(UsageWindow(time_s=0.0, wall_s=sample.length_s, gpus=gpus, **sample.node))
        events.close()


def expected_usage(sampled: Sequence[SampledNode]) -> dict[str, Any]:
    """By the keys of the summary's `usage`."""
    of_node: dict[int, list[Sample]] = {}
    for one in sampled:
        of_node.setdefault(one.node, []).extend(one.samples)
    of_gpus = [
        (sample.length_s, gpu)
        for samples in of_node.values()
        for sample in samples
        for gpu in sample.gpus
    ]
    of_cpus = [[(one.length_s, one.node) for one in own] for own in of_node.values()]
    return {
        "sampled_s": max(math.fsum(one.length_s for one in own) for own in of_node.values()),
        "gpu_utilization": _mean(of_gpus, "utilization"),
        "max_gpu_memory_bytes": max((gpu["memory_bytes"] for _, gpu in of_gpus), default=None),
        "cpus_busy": math.fsum(_mean(own, "cpus_busy") or 0 for own in of_cpus),
        "num_cpus": _NUM_CPUS * len(of_node),
    }


def _mean(found: Iterable[tuple[float, Any]], name: str) -> float | None:
    """Over the time in which it was told."""
    told = [(length_s, values[name]) for length_s, values in found if name in values]
    if not told:
        return None
    lengths_s, values = zip(*told, strict=True)
    return statistics.fmean(values, lengths_s)
