"""Numbers whose sum over all ranks is known, and the check that it came out.

At each place two ranks, neighbours, have something and all others 0, so that the sum is exact in
every type and for any number of ranks, also where it is rounded after each addition. Over a stretch
of as many numbers as there are ranks, every rank matters. What belongs at a place depends on the
place, so that parts that are exchanged are seen, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_VALUES = 7  # no power of two: parts of buffers begin at powers of two
_BLOCK_NUMBERS = 1 << 18


class WrongSumError(RuntimeError):
    """An all-reduce gave wrong numbers."""


def fill(buffer: Tensor, *, rank: int, num_ranks: int) -> None:
    """Put what this rank contributes into all of a buffer."""
    place = _places(buffer, num_ranks)
    block = (place % num_ranks == rank) * (1 + place % _VALUES)
    block += ((place + 1) % num_ranks == rank) * 2
    block = block.to(buffer.dtype)
    for part in _parts(buffer, len(block)):
        part.copy_(block[: len(part)])


def require_sums(buffer: Tensor, *, rank: int, num_ranks: int) -> None:
    """Raise WrongSumError where a buffer does not hold the sum of what all ranks filled in."""
    expected = (3 + _places(buffer, num_ranks) % _VALUES).to(buffer.dtype)
    num_wrong = sum(
        int((part != expected[: len(part)]).count_nonzero())
        for part in _parts(buffer, len(expected))
    )
    if num_wrong:
        raise WrongSumError(_sentence(buffer, expected, num_wrong, rank=rank, num_ranks=num_ranks))


def _sentence(
    buffer: Tensor, expected: Tensor, num_wrong: int, *, rank: int, num_ranks: int
) -> str:
    begin = 0
    for part in _parts(buffer, len(expected)):
        wrong = (part != expected[: len(part)]).nonzero()
        if len(wrong):
            at = int(wrong[0])
            break
        begin += len(part)
    return (
        f"rank {rank} has wrong sums over {num_ranks} ranks, of {buffer.nbytes:,} bytes: "
        f"{num_wrong:,} of {buffer.numel():,} numbers; the first, number {begin + at:,}, is "
        f"{float(buffer[begin + at]):g} and must be {float(expected[at]):g}"
    )


def _places(buffer: Tensor, num_ranks: int) -> Tensor:
    """Indices of a block that fits the buffer, and after which the contributions repeat."""
    period = _VALUES * num_ranks
    num_periods = max(1, _BLOCK_NUMBERS // period)
    return torch.arange(min(buffer.numel(), num_periods * period), device=buffer.device)


def _parts(buffer: Tensor, length: int) -> Iterator[Tensor]:
    """Pieces of a buffer: what is compared at once needs memory, too."""
    for begin in range(0, buffer.numel(), length):
        yield buffer[begin : begin + length]
