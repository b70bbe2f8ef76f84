"""A command that runs at a host for a laptop: what it tells the laptop beside what it prints.

`hpcdist.remote` forks the command, and says so here. What is told stands among what is printed on
stdout, in a sequence that terminals ignore and that begins with a word that only the two ends know.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from hpcdist.base.files import parse_json

_BEGIN, _END = "\x1b_hpcdist:", "\x1b\\"

_MOST_BYTES = 16_000_000

_word: str | None = None


def serve_by(word: str) -> None:
    """Take it that this process runs for a laptop, which finds by this word what it is told."""
    global _word  # noqa: PLW0603 - there is one command per process
    _word = word


def is_served() -> bool:
    """Return whether this command runs at a host for a laptop."""
    return _word is not None


def tell(value: dict[str, Any]) -> None:
    """Tell the laptop a value, in its order among what is printed; nothing where there is none."""
    if _word is not None:
        sys.stdout.write(f"{_BEGIN}{_word} {json.dumps(value)}{_END}")
        sys.stdout.flush()


class Told:
    """Takes what was told out of what was printed."""

    def __init__(self, word: str) -> None:
        self._begin, self._end = f"{_BEGIN}{word} ".encode(), _END.encode()
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes | dict[str, Any]]:
        """Return what was printed and what was told, in order; the beginning of what may be told
        waits for its end."""
        self._rest += data
        parts: list[bytes | dict[str, Any]] = []
        while True:
            printed, begin, rest = self._rest.partition(self._begin)
            if not begin:
                break
            text, end, rest = rest.partition(self._end)
            if not end and len(text) > _MOST_BYTES:  # it is nothing that was told
                break
            if not end:
                if printed:
                    parts.append(printed)
                    self._rest = self._rest[len(printed) :]
                return parts
            value = parse_json(text)
            parts += [printed] if printed else []
            parts += [value] if isinstance(value, dict) else []
            self._rest = rest
        kept = next(
            n
            for n in range(min(len(self._begin) - 1, len(self._rest)), -1, -1)
            if self._begin.startswith(self._rest[len(self._rest) - n :])
        )
        printed, self._rest = (
            self._rest[: len(self._rest) - kept],
            self._rest[len(self._rest) - kept :],
        )
        return [*parts, printed] if printed else parts

    def rest(self) -> bytes:
        """Return what has no end, once no more comes."""
        rest, self._rest = self._rest, b""
        return rest
