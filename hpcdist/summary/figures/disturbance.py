"""Tell whether something else used the CPUs of a run while it trained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from hpcdist.base.text import number_of
from hpcdist.summary.figures.usage import NodeTotals

_OTHERS_SHARE = 0.1
"""Share of the CPUs that others take from a run, where the CPUs are full."""
_FULL = 0.9
_LEAST_S = 1.0
"""Less time was not sampled well enough to say anything."""


class OtherLoad(NamedTuple):
    """CPUs of a host that others used while a run trained there."""

    host: str | None
    others_busy: float
    ranks_busy: float
    num_cpus: int

    @property
    def takes_from_ranks(self) -> bool:
        in_all = self.others_busy + self.ranks_busy
        return self.others_busy >= _OTHERS_SHARE * self.num_cpus and in_all >= _FULL * self.num_cpus

    def sentence(self) -> str:
        return (
            f"other processes took {self.others_busy:.1f} of the "
            f"{number_of(self.num_cpus, 'CPU')} that it had on {self.host or 'its host'}"
        )


def find_other_loads(nodes: Iterable[NodeTotals]) -> list[OtherLoad]:
    """Return what others used on each set of CPUs that ranks had.

    Simulated nodes share a host, and may share its CPUs: then what all of them used is their own.
    """
    together: dict[tuple[int, str | None, tuple[int, ...]], list[NodeTotals]] = defaultdict(list)
    for node in nodes:
        if node.begin is not None and node.length_s >= _LEAST_S:
            key = node.attempt, node.begin.host, (*(node.begin.cpus or ()),)
            together[key].append(node)
    loads = []
    for (_, host, cpus), own in together.items():
        busy = [node.totals["bound_cpus_busy"].mean for node in own]
        used = [node.totals["cpus_busy"].mean for node in own]
        num_cpus = len(cpus) or max(node.begin.host_cpus or 0 for node in own if node.begin)
        known = [value for value in busy if value is not None]
        if not known or not num_cpus or any(value is None for value in used):
            continue
        in_all, ranks_busy = sum(known) / len(known), sum(value or 0.0 for value in used)
        loads.append(OtherLoad(host, max(0.0, in_all - ranks_busy), ranks_busy, num_cpus))
    return loads
