"""What nodes used, sample by sample, that as the files of agents, and what of it is to be found."""

import math
import random
import statistics
from typing import NamedTuple

import msgspec

from hpcdist.runs.events import EventWriter, GpuFacts, GpuWindow, NodeBegin, UsageWindow

_GPU_BYTES = 80 * 10**9
_NUM_CPUS = 4


class Sample(NamedTuple):
    """One window of a node; the GPUs' by the names of the event's fields."""

    length_s: float
    cpus_busy: float
    gpus: list[dict[str, float]]


class SampledNode(NamedTuple):
    """One node in one attempt."""

    node: int
    attempt: int
    samples: list[Sample]


def sample_nodes(*, nodes, num_gpus, attempts, seed):
    """Any loads, at uneven times; the last GPU of a node does not tell its use."""
    draw = random.Random(seed)

    def gpu(index):
        use = {"utilization": draw.random()} if index < num_gpus - 1 else {}
        return {"memory_bytes": draw.randrange(10**9, _GPU_BYTES)} | use

    def sample(_):
        gpus = [gpu(index) for index in range(num_gpus)]
        return Sample(draw.uniform(0.5, 3), draw.uniform(0, _NUM_CPUS), gpus)

    places = [(node, attempt) for attempt in range(attempts) for node in range(nodes)]
    return [SampledNode(*one, [*map(sample, range(draw.randrange(20, 200)))]) for one in places]


def write_nodes(sampled, run):
    """As their agents do."""
    for node, attempt, samples in sampled:
        events = EventWriter(run.usage_file(node, attempt))
        begin = NodeBegin(
            begin_s=0.0,
            node=node,
            host=f"host{node}",
            cpus=list(range(_NUM_CPUS)),
            num_cpus=_NUM_CPUS,
        )
        events.write(begin)
        uuids = [f"GPU-{node}-{index}" for index in range(len(samples[0].gpus))]
        if facts := [GpuFacts(uuid=uuid, memory_bytes=_GPU_BYTES) for uuid in uuids]:
            events.write(msgspec.structs.replace(begin, gpus=facts))
        for length_s, cpus_busy, gpus in samples:
            windows = [GpuWindow(**gpu) for gpu in gpus]
            of_node = {"wall_s": length_s, "cpus_busy": cpus_busy, "gpus": windows}
            events.write(UsageWindow(time_s=0.0, **of_node))
        events.close()


def expected_usage(sampled):
    """By the keys of the summary's `usage`."""
    of_node = {}
    for node, _, samples in sampled:
        of_node.setdefault(node, []).extend(samples)
    every = [(one.length_s, gpu) for own in of_node.values() for one in own for gpu in one.gpus]
    told = [(time_s, gpu["utilization"]) for time_s, gpu in every if "utilization" in gpu]
    of_cpus = [_mean([(one.length_s, one.cpus_busy) for one in own]) for own in of_node.values()]
    return {
        "sampled_s": max(math.fsum(one.length_s for one in own) for own in of_node.values()),
        "gpu_utilization": _mean(told) if told else None,
        "max_gpu_memory_bytes": max((gpu["memory_bytes"] for _, gpu in every), default=None),
        "cpus_busy": math.fsum(of_cpus),
        "num_cpus": _NUM_CPUS * len(of_node),
    }


def _mean(pairs):
    """Over the time in which it was told."""
    lengths_s, values = zip(*pairs, strict=True)
    return statistics.fmean(values, lengths_s)
