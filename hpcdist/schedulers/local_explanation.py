"""How the ranks of a run on this machine share it, in lines that people can check by hand."""

from __future__ import annotations

from hpcdist.job.spec import JobSpec
from hpcdist.runs.spec import LaunchPlan, NodePlan
from hpcdist.schedulers.explained import counted, product


def explanation(job: JobSpec, launch: LaunchPlan) -> list[str]:
    """Ranks, and the CPUs and GPUs that each gets."""
    size = product(job.resources.nodes, job.ranks_per_node, what="rank")
    threads = launch.num_threads
    each = f", {counted(threads, 'thread')} each (OMP_NUM_THREADS)" if threads else ""
    return [
        f"ranks: {size}, on {launch.device} with {launch.backend}{each}",
        *(f"node {number}: {_share(node)}" for number, node in enumerate(launch.nodes)),
    ]


def _share(node: NodePlan) -> str:
    """What each of a node's ranks gets."""
    shares = [f"CPUs {_ranges(cpus)}" for cpus in node.rank_cpus or []]
    if node.gpus:
        gpus = _shared_out(node.gpus, len(shares) or len(node.gpus))
        pairs = zip(gpus, shares or [""] * len(gpus), strict=False)
        shares = [" and ".join(part for part in (*own, share) if part) for own, share in pairs]
    text = "; ".join(f"rank {place}: {share}" for place, share in enumerate(shares))
    return f"{node.address}; {text}" if node.address else text


def _shared_out(gpus: list[str], num_ranks: int) -> list[list[str]]:
    """The GPUs of each rank."""
    each = max(1, len(gpus) // num_ranks)
    return [gpus[place * each : (place + 1) * each] for place in range(num_ranks)]


def _ranges(cpus: list[int]) -> str:
    """Numbers as Linux writes them: 0-3,8."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][-1] == cpu - 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
