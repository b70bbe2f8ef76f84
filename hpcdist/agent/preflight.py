"""The preflight of a job's nodes (`launch.preflight`): some seconds of work before the ranks start,
which find a node that computes wrongly, or clearly more slowly than the others.

Each node multiplies matrices of small whole numbers, whose product is exact, on each of its GPUs or
on all its CPUs. Then nodes add up numbers by pairs, in rounds with other partners: whoever had a
bad partner in one round is not blamed for that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from statistics import median_low

from msgspec import Struct

from hpcdist.agent.node import NodeFacts
from hpcdist.base.text import one_line
from hpcdist.rank.context import RankOrder
from hpcdist.runs.verdict import Verdict

LIMIT_S = 120.0
"""Time for all of it; nodes may take long to import torch."""
_CLEARLY = 2.0
"""A node is clearly slower that takes so many times as long as the typical one."""
_PRODUCTS_S = 2.0
_NUM_PARTS = 4
_MEET_S = 45.0
_ROUND_S = 5.0
"""Limit of the first round; those later have twice as long each, since a partner may come late."""
_MOST_ROUNDS = 3
_NUM_SUMS = 5
_SUM_NUMBERS = 1 << 22


class Figures(Struct, frozen=True, kw_only=True):
    """What the preflight of one node has measured."""

    products_s: list[float] = []
    """Seconds of one product, by GPU, or of all CPUs together."""
    sums_s: dict[int, float | None] = {}
    """Seconds of one all-reduce, by the other node; None: it failed."""
    fault: str = ""
    """What the node did wrong."""


def measure(order: RankOrder) -> Figures:
    """Check the node of this process, whose first rank is `order`. Raises ImportError."""
    import torch

    figures, fault = Figures(), ""
    torch.set_num_threads(order.num_cpus)
    gpus = [f"cuda:{index}" for index in range(order.num_gpus * order.local_world_size)]
    try:
        for device in gpus or ["cpu"]:
            figures.products_s.append(_time_product(device, _PRODUCTS_S / (len(gpus) or 1)))
        if order.num_nodes > 1:
            figures.sums_s.update(_time_sums(order))
    except Exception as error:  # noqa: BLE001 - whatever it is, the node is not fit
        fault = one_line(f"{type(error).__name__}: {error}")[:300]
    return Figures(products_s=figures.products_s, sums_s=figures.sums_s, fault=fault)


def _time_product(device: str, time_s: float) -> float:
    """Return the seconds of one product, of the best part of the time. Raises ArithmeticError where
    one is wrong."""
    import torch

    size, random = 4096 if device != "cpu" else 1024, torch.Generator().manual_seed(0)
    numbers = torch.randint(-2, 3, (2, size, size), generator=random).to(device, torch.float32)
    left, right = numbers
    sums = left.double() @ right.double().sum(1)
    found_s: list[float] = []
    for _ in range(_NUM_PARTS):
        num_products, begin_s, now_s = 0, time.perf_counter(), 0.0
        while now_s < begin_s + time_s / _NUM_PARTS:
            if num_wrong := int(((left @ right).double().sum(1) != sums).sum()):
                raise ArithmeticError(f"{num_wrong} rows of a product on {device} were wrong")
            num_products, now_s = num_products + 1, time.perf_counter()
        found_s.append((now_s - begin_s) / num_products)
    return min(found_s)  # something else may have disturbed the others


def _time_sums(order: RankOrder) -> Iterator[tuple[int, float | None]]:
    """Yield the other node of each round, and the seconds of an all-reduce with it."""
    import torch
    import torch.distributed as dist

    node, last = order.node_rank, order.num_nodes - 1 + order.num_nodes % 2
    address, port = (order.environment[f"MASTER_{name}"] for name in ("ADDR", "PORT"))
    limit = timedelta(seconds=_MEET_S)
    store = dist.PrefixStore("preflight", dist.TCPStore(address, int(port), timeout=limit))
    store.set(str(node), "")
    with suppress(dist.DistStoreError):  # the rounds tell who never came
        store.wait([str(other) for other in range(order.num_nodes)], limit)
    for number in range(min(last, _MOST_ROUNDS)):
        other = partner(node, number, last)
        if other >= order.num_nodes:  # of an odd number, one pauses
            continue
        seconds: list[float] = []
        limit = timedelta(seconds=_ROUND_S * 2**number)
        pair, place = dist.PrefixStore(f"{number}-{min(node, other)}", store), int(node > other)
        try:
            dist.init_process_group("gloo", timeout=limit, store=pair, world_size=2, rank=place)
            for _ in range(_NUM_SUMS):
                numbers, begin_s = torch.full((_SUM_NUMBERS,), node + 1.0), time.perf_counter()
                dist.all_reduce(numbers)
                seconds.append(time.perf_counter() - begin_s)
                if not bool((numbers == node + other + 2).all()):
                    raise RuntimeError("the sum is wrong")
            yield other, min(seconds)
        except RuntimeError:
            yield other, None
        if dist.is_initialized():
            dist.destroy_process_group()


def partner(node: int, number: int, last: int) -> int:
    """Return the node that another one meets in a round; each meets another in every round, and
    `last`, which is odd, is the number of rounds after which all have met."""
    if node in {number, last}:
        return last if node == number else number
    return (2 * number - node) % last


def judge(figures: Mapping[int, Figures], members: Mapping[int, NodeFacts]) -> Verdict | None:
    """Return the verdict on a job with nodes that are not fit; None where all are."""
    fit = {node: one for node, one in figures.items() if not one.fault}
    late = Figures(fault=f"it did not answer within {LIMIT_S:g} s")
    found = {node: figures.get(node, late).fault for node in members if node not in fit}
    products_s = {node: one.products_s for node, one in fit.items()}
    best_s: dict[int, list[float]] = {}
    for node, one in fit.items():
        others = [other for other in one.sums_s if other in fit]  # the rest failed their partners
        # Both have to say that it worked, and by the slower word.
        sides = [(one.sums_s[other], fit[other].sums_s.get(node)) for other in others]
        worked = [max(own, its) for own, its in sides if own and its]
        if worked:
            best_s[node] = [min(worked)]
        elif others:
            found[node] = "no all-reduce with another node worked"
    for what, times_s in (("a matrix product", products_s), ("an all-reduce", best_s)):
        typical_s = median_low([one for each in times_s.values() for one in each] or [0.0])
        for node, each in times_s.items():
            if (own_s := max(each)) > _CLEARLY * typical_s:
                ratio = own_s / typical_s
                slow = f"{what} took {ratio:.1f} times as long as on the typical node"
                found[node] = f"{slow} ({own_s * 1e3:.3g} and {typical_s * 1e3:.3g} ms)"
    if not found:
        return None
    said = [f"{members[node].name} failed the preflight: {why}" for node, why in found.items()]
    if len(found) > max(1, len(members) // 2):
        most = f"{len(found)} of {len(members)} nodes are not fit, so that none is to blame"
        return Verdict(kind="launch", message="; ".join([most, *said]))
    node, left_out = min(found), {members[node].host: why for node, why in found.items()}
    return Verdict(
        kind="launch",
        message="; ".join(said),
        node=node,
        host=members[node].host,
        left_out=left_out,
        try_elsewhere=True,
    )
