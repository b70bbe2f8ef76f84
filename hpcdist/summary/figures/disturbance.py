"""Tell whether something else used the CPUs or GPUs of a run while it trained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from hpcdist.base.text import format_percent, number_of
from hpcdist.summary.figures.rank import RankFigures, largest, smallest
from hpcdist.summary.figures.usage import NodeTotals

_OTHERS_SHARE = 0.1
"""Share of the CPUs that others take from a run, where the CPUs are full."""
_FULL = 0.9
_LEAST_S = 1.0
"""Less time was not sampled well enough to say anything."""
_OVERLAP = 0.05
"""Share of the time of a run."""


class Stay(Struct, frozen=True):
    """The time that a run's steps took on a host, and what they had there."""

    host: str
    begin_s: float
    """Unix time, by the clock of the host."""
    end_s: float
    cpus: list[int]
    """That its ranks were bound to; none where they were bound to none."""
    gpus: list[str]
    """UUIDs."""


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


def find_stays(ranks: Sequence[RankFigures], nodes: Sequence[NodeTotals]) -> list[Stay]:
    """Return a stay for each host and attempt in which ranks did steps."""
    gpus: dict[tuple[int, str | None], list[str]] = defaultdict(list)
    for node in nodes:
        host = node.begin.host if node.begin else None
        gpus[node.attempt, host] += [gpu.facts.uuid for gpu in node.gpus]
    there: dict[tuple[int, str], list[RankFigures]] = defaultdict(list)
    for figures in ranks:
        if (
            figures.start.host is not None and (figures.stepping_s or 0.0) > 0
        ):  # a clock that is set
            there[figures.attempt, figures.start.host].append(figures)
    stays = []
    for (attempt, host), own in there.items():
        begin_s = smallest(figures.stepping_s for figures in own)
        end_s = largest(figures.worked_until_s for figures in own)
        cpus = sorted({cpu for figures in own for cpu in figures.start.cpus or []})
        if begin_s is not None and end_s is not None and end_s > begin_s:
            stays.append(Stay(host, begin_s, end_s, cpus, sorted({*gpus[attempt, host]})))
    return stays


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


class _Going(NamedTuple):
    """A stay that has begun, of a run."""

    stay: Stay
    run: str


class _Overlap(NamedTuple):
    """The part of a run's time for which another was on the same CPUs or GPUs."""

    share: float
    other: str
    host: str
    shared: str

    def sentence(self) -> str:
        percent = format_percent(min(1.0, self.share))
        return (
            f"{self.other} ran on the same {self.shared} of {self.host} for {percent} % of its time"
        )


def find_overlaps(stays: Mapping[str, Sequence[Stay]]) -> dict[str, str]:
    """Return, by run, a sentence on the run that was on its CPUs or GPUs for most of its time."""
    by_host: dict[str, list[_Going]] = defaultdict(list)
    for run, own in stays.items():
        for stay in own:
            by_host[stay.host].append(_Going(stay, run))
    most: dict[str, _Overlap] = {}
    for there in by_host.values():
        for run, overlap in _overlaps_on_host(there):
            if overlap.share > (most[run].share if run in most else _OVERLAP):
                most[run] = overlap
    return {run: overlap.sentence() for run, overlap in most.items()}


def _overlaps_on_host(stays: list[_Going]) -> Iterator[tuple[str, _Overlap]]:
    """Yield overlaps of two runs, for each of them; of thousands at one time not all pairs, but of
    each run that with the largest share."""
    going: dict[tuple[object, ...], list[_Going]] = defaultdict(list)
    for new in sorted(stays, key=lambda each: each.stay.begin_s):
        for key, earlier in list(going.items()):
            there = [old for old in earlier if old.stay.end_s > new.stay.begin_s]
            if not there:
                del going[key]
                continue
            going[key] = there
            shared = _shared(new.stay, there[0].stay)
            for old in there if shared else ():
                if old.run != new.run:
                    both_s = min(new.stay.end_s, old.stay.end_s) - new.stay.begin_s
                    for mine, other in ((new, old), (old, new)):
                        share = both_s / (mine.stay.end_s - mine.stay.begin_s)
                        yield mine.run, _Overlap(share, other.run, mine.stay.host, shared)
        key = (*new.stay.gpus, None, *new.stay.cpus)
        going[key] = _longest(going[key], new)


def _longest(there: Sequence[_Going], new: _Going) -> list[_Going]:
    """Return the stays on the same CPUs and GPUs without those that two other runs outlast: whoever
    comes later is with one of these for longer, and those were with them for longer."""
    kept: list[_Going] = []
    for each in sorted([*there, new], key=lambda each: -each.stay.end_s):
        if len({longer.run for longer in kept} - {each.run}) < 2:
            kept.append(each)
    return kept


def _shared(one: Stay, other: Stay) -> str:
    """Name what both had; empty where each had its own, or where that is not known."""
    if one.gpus or other.gpus:
        return "GPUs" if {*one.gpus} & {*other.gpus} else ""
    return "CPUs" if {*one.cpus} & {*other.cpus} else ""
