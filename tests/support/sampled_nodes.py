"""What nodes used, sample by sample, that as the files of agents, and what of it is to be found."""

import math
import random
import statistics

import msgspec

from hpcdist.runs.events import EventWriter, GpuFacts, GpuWindow, NodeBegin, UsageWindow

_GPU_BYTES = 80 * 10**9
_NUM_CPUS = 4


def sample_nodes(*, nodes, num_gpus, attempts, seed):
    """Any loads, at uneven times, by attempt and node; the last GPU of a node does not tell its
    use."""
    draw = random.Random(seed)

    def gpu(index):
        use = {"utilization": draw.random()} if index < num_gpus - 1 else {}
        return GpuWindow(memory_bytes=draw.randrange(10**9, _GPU_BYTES), **use)

    def sample():
        times = {"wall_s": draw.uniform(0.5, 3), "cpus_busy": draw.uniform(0, _NUM_CPUS)}
        return UsageWindow(time_s=0.0, gpus=[*map(gpu, range(num_gpus))], **times)

    places = [(attempt, node) for attempt in range(attempts) for node in range(nodes)]
    return {place: [sample() for _ in range(draw.randrange(20, 200))] for place in places}


def write_nodes(sampled, run):
    """As their agents do."""
    for (attempt, node), samples in sampled.items():
        events = EventWriter(run.usage_file(node, attempt))
        cpus = {"cpus": list(range(_NUM_CPUS)), "num_cpus": _NUM_CPUS}
        begin = NodeBegin(begin_s=0.0, node=node, host=f"host{node}", **cpus)
        events.write(begin)
        uuids = [f"GPU-{node}-{index}" for index in range(len(samples[0].gpus))]
        if facts := [GpuFacts(uuid=uuid, memory_bytes=_GPU_BYTES) for uuid in uuids]:
            events.write(msgspec.structs.replace(begin, gpus=facts))
        for sample in samples:
            events.write(sample)
        events.close()


def expected_usage(sampled):
    """By the keys of the summary's `usage`."""
    of_node = {}
    for (_, node), samples in sampled.items():
        of_node.setdefault(node, []).extend(samples)
    every = [(one.wall_s, gpu) for own in of_node.values() for one in own for gpu in one.gpus]
    told = [(time_s, gpu.utilization) for time_s, gpu in every if gpu.utilization is not None]
    of_cpus = [_mean([(one.wall_s, one.cpus_busy) for one in own]) for own in of_node.values()]
    return {
        "sampled_s": max(math.fsum(one.wall_s for one in own) for own in of_node.values()),
        "gpu_utilization": _mean(told) if told else None,
        "max_gpu_memory_bytes": max((gpu.memory_bytes for _, gpu in every), default=None),
        "cpus_busy": math.fsum(of_cpus),
        "num_cpus": _NUM_CPUS * len(of_node),
    }


def _mean(pairs):
    """Over the time in which it was told."""
    lengths_s, values = zip(*pairs, strict=True)
    return statistics.fmean(values, lengths_s)
