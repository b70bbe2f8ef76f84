"""Damaged inputs of every kind, made from a seed, and what reading each of them came to."""

import json
import random
import resource
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpcdist.base.errors import HpcdistError
from hpcdist.base.text import one_line

LIMIT_S = 5.0
"""Of CPU time, for one input."""
MEMORY_BYTES = 3 * 10**9
"""Address space beyond what the process had."""


@dataclass(frozen=True)
class Sample:
    """An input that is right, and what reads it: that returns True where it took all of the input.
    Anything that it raises but its refusals is a failure."""

    content: bytes
    read: Callable
    refusals: tuple[type[Exception], ...] = ()

    def is_read(self, content: bytes) -> bool:
        try:
            return self.read(content)
        except self.refusals as error:
            if isinstance(error, HpcdistError):
                one_line(error.message)
            return False


class TookTooLongError(BaseException):
    """Not caught by what catches every Exception."""


def fuzz(kind, samples, *, number, seed, most_failures=3):
    """Read `number` damaged inputs of a kind; input n of a seed is always the same. Returns how
    many were refused, and the failures: (n, input, traceback)."""

    def stop(*_):
        raise TookTooLongError

    for sample in samples:
        assert sample.is_read(sample.content), f"the undamaged {kind} was refused"
    refused, failures = 0, []
    unlimited = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, unlimited[1]))
    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        for index in range(number):
            draw = random.Random(f"{seed}/{kind}/{index}")
            sample = draw.choice(samples)
            content = damage(sample.content, draw)
            signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
            try:
                refused += not sample.is_read(content)
            except (Exception, TookTooLongError):  # noqa: BLE001 - each is a finding
                failures.append((index, content, traceback.format_exc(limit=-4)))
                if len(failures) >= most_failures:
                    break
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, unlimited)
    return refused, failures


# Damage.

_PIECES = (
    *(b"", b"\0", b" ", b"\xff\xfe", b"\xed\xa0\x80", b"\r", b"\t", b"\x1b[2J", b"\xef\xbb\xbf"),
    *b"{{ ${HOME} ../../.. NaN Infinity -1 1e999 0 null true \"\" '' {} [] *a ---".split(),
    *(b"9" * 5000, b"[" * 2000, b'{"a":' * 2000, b"\n\n", b"&a ", b"!!python/object:os.system "),
    *(b"!!binary ", b"? ", b"<<: ", b"%TAG ", b"x" * 100_000, b"a: &a [1]\nb: [*a,*a]\n"),
)
_VALUES = (
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**63, 2**64, -(2**63), 10**400, 0.5, -0.0, 1e308),
    *(1e-320, 1e9, -1e9, float("nan"), float("inf"), -float("inf"), "", "x", "\0", "\ud800", "/"),
    *("a\nb", "9" * 400, "../..", "x" * 70_000, "\x1b]0;x\x07", [], {}, [[]], [1, "a"]),
    *({"a": 1}, {"": None}),
)


def damage(content, draw):
    """Return what a disk, an editor or a stranger may make of a file."""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        is_json = content[:1] == b"{" or b'\n{"' in content
        way = _other_value if is_json and draw.random() < 0.6 else _other_bytes
        content = way(content, draw)
    return content


def _other_bytes(content, draw):
    """Put something in the place of a span, or between two bytes; or cut the rest off."""
    begin = draw.randrange(len(content) + 1)
    end = begin + draw.choice((0, 1, 1, 2, 4, 16, 64, 1024))
    span = content[begin:end]
    flipped = bytes(byte ^ 1 << draw.randrange(8) for byte in span)
    pieces = (b"", flipped, flipped, span * 100, b"\0" * len(span), draw.choice(_PIECES))
    return content[:begin] + (draw.choice(pieces) + content[end:] if draw.randrange(8) else b"")


def _other_value(content, draw):
    """Put another value into JSON, or take out a key; of lines, into one."""
    lines = content.split(b"\n")
    objects = [place for place, line in enumerate(lines) if line[:1] == b"{"]
    if len(objects) < 2:
        lines, objects = [content], [0]
    place = draw.choice(objects)
    try:
        value = json.loads(lines[place])
        inner, key = draw.choice(list(_places(value)))
        if draw.random() < 0.2:
            del inner[key]
        else:
            inner[key] = draw.choice(_VALUES)
        lines[place] = json.dumps(value).encode()
    except (ValueError, RecursionError, OverflowError, IndexError):
        return content
    if not draw.randrange(8):
        draw.shuffle(lines)
    return b"\n".join(lines)


def _places(value):
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(pairs) if isinstance(value, dict | list) else []:
        yield value, key
        if isinstance(item, dict | list):
            yield from _places(item)
