"""The preflight of a job's nodes (`launch.preflight`): some seconds of work before the ranks start,
by which a node is found that computes wrongly, or clearly more slowly than the others.

Each node multiplies matrices of small whole numbers, whose product is exact, on each of its GPUs or
on all its CPUs, and adds up numbers with both its neighbours: whose partner is bad is not to blame.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from statistics import median_low
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdist.agent.node import NodeFacts
from hpcdist.base.text import one_line
from hpcdist.job.spec import Allreduce
from hpcdist.rank.context import RankOrder
from hpcdist.runs.verdict import Verdict

LIMIT_S = 120.0
"""Time for all of it; nodes may take long to import torch."""
_CLEARLY = 2.0
"""A node is clearly slower that takes so many times as long as the typical one."""
_PRODUCTS_S = 2.0
_NUM_PARTS = 4
_MEET_S = 45.0
_PAIR_S = 5.0
_SUMS = Allreduce(iterations=20, warmup=1, max_time_s=0.5)
_SUM_NUMBERS = 1 << 22


class Figures(Struct, frozen=True, kw_only=True):
    """The result of the preflight of one node."""

    product_s: float = 0.0
    """Seconds of one product, on the slowest GPU."""
    sums_s: dict[int, float | None] = {}
    """Seconds of one all-reduce, by the other's place among the nodes; None: it failed."""
    fault: str = ""
    """A sentence on the fault of the node; empty: it has none."""


def measure(order: RankOrder) -> Figures:
    """Check the node of this process, whose first rank is `order`. Raises ImportError."""
    import torch

    torch.set_num_threads(order.num_cpus)
    gpus = [f"cuda:{index}" for index in range(order.num_gpus * order.local_world_size)]
    try:
        time_s = _PRODUCTS_S / (len(gpus) or 1)
        product_s = max(_time_product(device, time_s) for device in gpus or ["cpu"])
        return Figures(product_s=product_s, sums_s=_time_sums(order) if order.num_nodes > 1 else {})
    except Exception as error:  # noqa: BLE001 - whatever it is, the node is not fit
        return Figures(fault=one_line(f"{type(error).__name__}: {error}")[:300])


def _time_product(device: str, time_s: float) -> float:
    """Return the seconds of one product, of the best part of the time: something else may disturb
    the others. Raises ArithmeticError where one is wrong."""
    import torch

    size, random = 4096 if device != "cpu" else 1024, torch.Generator().manual_seed(0)
    left, right = torch.randint(-2, 3, (2, size, size), generator=random).to(device, torch.float32)
    sums = left.double() @ right.double().sum(1)
    found_s: list[float] = []
    for _ in range(_NUM_PARTS):
        num_products, begin_s, now_s = 0, time.perf_counter(), 0.0
        while now_s < begin_s + time_s / _NUM_PARTS:
            if num_wrong := int(((left @ right).double().sum(1) != sums).sum()):
                raise ArithmeticError(f"{num_wrong} rows of a product on {device} were wrong")
            num_products, now_s = num_products + 1, time.perf_counter()
        found_s.append((now_s - begin_s) / num_products)
    return min(found_s)


def _time_sums(order: RankOrder) -> dict[int, float | None]:
    """Return the seconds of an all-reduce with each neighbour in the ring of nodes."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore, TCPStore  # torch exports them untyped

    from hpcdist.bench.allreduce.measure import measure_all_reduce

    # Nodes may be lost: what counts is the place among those that are left.
    node, num_nodes = order.rank // order.local_world_size, order.num_nodes
    limit = timedelta(seconds=_MEET_S)
    address, port = (order.environment[f"MASTER_{name}"] for name in ("ADDR", "PORT"))
    store: Any = TCPStore(address, int(port), timeout=limit)
    store.set(f"preflight/{node}", "")
    with suppress(RuntimeError):  # who never came fails its pairs
        store.wait([f"preflight/{other}" for other in range(num_nodes)], limit)

    def round_of(pair: int) -> int:
        """Even pairs come first, then odd ones; in an odd ring, the last one comes by itself."""
        return 2 if pair == num_nodes - 1 and pair % 2 == 0 else pair % 2

    found: dict[int, float | None] = {}
    for pair in sorted({node, (node - 1) % num_nodes}, key=round_of):
        other = (node + 1) % num_nodes if pair == node else pair
        found[other] = None
        with suppress(RuntimeError):
            dist.init_process_group(
                "gloo",
                timeout=timedelta(seconds=_PAIR_S * 2 ** round_of(pair)),  # a partner may come late
                store=PrefixStore(f"preflight/pair-{pair}", store),
                world_size=2,
                rank=int(node > other),
            )
            cell = measure_all_reduce(torch.empty(_SUM_NUMBERS), _SUMS)
            found[other] = cell.more["median_time_s"]
        if dist.is_initialized():
            dist.destroy_process_group()
    return found


def judge(
    figures: Mapping[int, Figures], members: Mapping[int, NodeFacts]
) -> tuple[Verdict | None, set[int]]:
    """Return the verdict on a job with nodes that are not fit, and these; None where all are, and
    no nodes where so many are not that none is to blame."""
    late = Figures(fault=f"it did not answer within {LIMIT_S:g} s")
    found = {node: one.fault for node in members if (one := figures.get(node, late)).fault}
    products_s = {node: one.product_s for node, one in figures.items() if not one.fault}
    pairs = {node: list(filter(None, figures[node].sums_s.values())) for node in products_s}
    sums_s = {node: min(each) for node, each in pairs.items() if each}
    for what, times_s in (("a matrix product", products_s), ("an all-reduce", sums_s)):
        typical_s = median_low(times_s.values() or [0.0])
        for node, own_s in times_s.items():
            if own_s > _CLEARLY * typical_s:
                slow = f"{what} took {own_s / typical_s:.1f} times as long as on the typical node"
                found.setdefault(node, f"{slow} ({own_s * 1e3:.3g} and {typical_s * 1e3:.3g} ms)")
    nodes = sorted(members)
    for node in products_s.keys() - sums_s.keys():
        partners = {nodes[place] for place in figures[node].sums_s}
        if partners & sums_s.keys():  # others could work with that one
            found.setdefault(node, "no all-reduce with another node worked")
    if not found:
        return None, set()
    said = [f"{members[node].name} failed the preflight: {why}" for node, why in found.items()]
    if len(found) > max(1, len(members) // 2):
        said.insert(0, f"{len(found)} of {len(members)} nodes are not fit, so none is to blame")
        return Verdict(kind="launch", message="; ".join(said)), set()
    verdict = Verdict(kind="launch", message="; ".join(said), node=min(found), try_elsewhere=True)
    left_out = {members[node].host: why for node, why in found.items()}
    return replace(verdict, host=members[min(found)].host, left_out=left_out), {*found}
