"""The step at which the ranks of a run, which should be replicas of each other, part."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from hpcdist.summary.figures.rank import RankFigures
from hpcdist.summary.read.records import Digest
from hpcdist.summary.values import Parting


class Replicas:
    """Compares the digests of ranks, one rank after the other: they need not all be in memory."""

    def __init__(self) -> None:
        self._found: dict[int, dict[int, dict[str, tuple[Digest, list[int]]]]] = defaultdict(dict)
        """Attempt -> step -> parameters -> a digest of these, and the ranks that have them."""
        self._parted: dict[int, int] = {}
        """Attempt -> the first step at which ranks differ."""
        self._parts: list[str] | None = None
        self._are_replicas = True

    def take(self, figures: RankFigures) -> RankFigures:
        """Compare a rank with those before; returns its figures without the digests."""
        digested = figures.digested
        if not figures.digests or digested is None:
            return figures
        self._parts = digested.parts if self._parts is None else self._parts
        self._are_replicas &= not digested.is_sharded and digested.parts == self._parts
        if self._are_replicas:
            for digest in figures.digests:
                self._compare(digest, rank=figures.rank, attempt=figures.attempt)
        return msgspec.structs.replace(figures, digests=[])

    def _compare(self, digest: Digest, *, rank: int, attempt: int) -> None:
        parted = self._parted.get(attempt, digest.step)
        if digest.step > parted:
            return
        by_parameters = self._found[attempt].setdefault(digest.step, {})
        by_parameters.setdefault(digest.parameters, (digest, []))[1].append(rank)
        if len(by_parameters) > 1:
            self._parted[attempt] = digest.step

    def parting(self) -> Parting | None:
        """Return where the ranks part, in the first attempt in which they do."""
        if not self._are_replicas or not self._parted:
            return None
        attempt = min(self._parted)
        step, steps = self._parted[attempt], self._found[attempt]
        most, *others = sorted(
            steps[step].values(), key=lambda found: (-len(found[1]), found[1][0])
        )
        ranks = sorted(rank for _, own in others for rank in own)
        unlike = next(digest for digest, own in others if ranks[0] in own)
        first, number = unlike.first_unlike(most[0], self._parts or [])
        compared = [
            before
            for before, found in steps.items()
            if before < step and any(len(own) > 1 for _, own in found.values())
        ]
        return Parting(
            step=step,
            attempt=attempt,
            equal_at=max(compared, default=None),
            ranks=ranks,
            others=sorted(most[1]),
            first_part=first,
            num_parts=number,
        )
