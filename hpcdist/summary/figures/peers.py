"""Decide whether the ranks of a run trained one model together, and when its replicas part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from hpcdist.runs.events import Digest, PeerGroup
from hpcdist.summary.read.event_file import EventFile
from hpcdist.summary.values import Parting


def find_together(
    groups: Iterable[PeerGroup], *, world_size: int
) -> tuple[bool | None, str | None]:
    """Judge by the group that each rank was in whether they trained one model, and say why not; one
    rank that exchanges data speaks for all. None for a single rank, and where nothing tells."""
    found = list(groups)
    if world_size < 2 or not found:
        return None, None
    largest = max(group.size for group in found)
    if largest == 0:
        why = "they joined no process group"
    elif largest < world_size:
        why = f"the largest process group has {largest}"
    elif any(group.exchanges for group in found):
        return True, None
    elif any(group.exchanges is False for group in found):
        why = (
            "they joined a process group, but no collective operation ran in their steps (is the "
            "model wrapped?)"
        )
    else:
        return None, None
    return False, f"{world_size} ranks trained apart from each other: {why}"


class Replicas:
    """Compares the digests of ranks, one rank after the other: they need not all be in memory."""

    def __init__(self) -> None:
        self._found: dict[int, dict[int, dict[str, list[int]]]] = defaultdict(dict)
        """Attempt -> step -> digest of the parameters -> the ranks that have it."""
        self._are_sharded = False

    def add(self, record: EventFile) -> None:
        for digest in record.all(Digest):
            self._are_sharded |= digest.is_sharded
            by_digest = self._found[record.attempt].setdefault(digest.step, {})
            by_digest.setdefault(digest.parameters, []).append(record.number)

    def parting(self) -> Parting | None:
        """Return where the ranks part, in the first attempt in which they do; None where each has
        another part of the model."""
        for attempt, steps in sorted(self._found.items()):
            equal_at = None
            for step, by_digest in sorted(steps.items()):
                if len(by_digest) > 1 and not self._are_sharded:
                    most, *others = sorted(by_digest.values(), key=lambda own: (-len(own), own[0]))
                    return Parting(
                        step=step,
                        attempt=attempt,
                        equal_at=equal_at,
                        ranks=sorted(rank for own in others for rank in own),
                        others=most,
                    )
                equal_at = step
        return None
