"""Damaged inputs of every kind, made from a seed, and what reading each of them came to."""

import contextlib
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
    for sample in samples:
        assert sample.is_read(sample.content), f"the undamaged {kind} was refused"
    refused, failures = 0, []
    with limited_memory():
        for index in range(number):
            draw = random.Random(f"{seed}/{kind}/{index}")
            sample = draw.choice(samples)
            content = damage(sample.content, draw)
            try:
                with limited_time():
                    refused += not sample.is_read(content)
            except (Exception, TookTooLongError):  # noqa: BLE001 - each is a finding
                failures.append((index, content, traceback.format_exc(limit=-4)))
                if len(failures) >= most_failures:
                    break
    return refused, failures


@contextlib.contextmanager
def limited_time():
    def stop(*_):
        raise TookTooLongError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextlib.contextmanager
def limited_memory():
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


# Damage.


def damage(content, draw):
    """Return what a disk, an editor or a stranger may make of a file."""
    ways = [_flip, _change]
    if content[:1] in b"{[" or b'\n{"' in content:
        ways += [_other_value] * 3
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        content = draw.choice(ways)(content, draw)
    return content


def _flip(content, draw):
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8)) if content else 0):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _change(content, draw):
    """Put something in the place of a span, or between two bytes; or cut the rest off."""
    begin = draw.randrange(len(content) + 1)
    span = content[begin : begin + draw.choice((0, 1, 2, 4, 16, 64, 1024))]
    if not draw.randrange(8):
        return content[:begin]
    fill = draw.choice((b"\0", b"\xff", b" ")) * len(span)
    put = draw.choice((b"", draw.randbytes(len(span)), span * 100, fill, draw.choice(_PIECES)))
    other = draw.randrange(len(content) + 1)
    if not draw.randrange(8):
        return content[:other] + span + content[other:]
    return content[:begin] + put + content[begin + len(span) :]


_PIECES = (
    *b"\0 \xff\xfe \xed\xa0\x80 \r \t \x1b[2J \xef\xbb\xbf {{ ${HOME} ../../.. /etc/passwd".split(
        b" "
    ),
    *b"NaN Infinity -1 1e999 0 null true \"\" '' {} [] *a ---".split(),
    *(b"9" * 30, b"9" * 5000, b"-" + b"9" * 30, b"[" * 2000, b'{"a":' * 2000, b"]" * 50),
    *(b"\n", b"\n\n", b"&a ", b"!!python/object:os.system ", b"!!binary ", b"? ", b"<<: "),
    *(b"%TAG ", b"x" * 100_000, b"a: &a [1]\nb: [*a,*a]\n"),
)
_VALUES = (
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**63, 2**64, -(2**63), 10**400, 0.5, -0.0, 1e308),
    *(1e-320, 1e9, -1e9, float("nan"), float("inf"), -float("inf"), "", "x", "\0", "\ud800", "/"),
    *("a\nb", "9" * 400, "../..", "x" * 70_000, "\x1b]0;x\x07", [], {}, [[]], [1, "a"]),
    *({"a": 1}, {"": None}),
)


def _other_value(content, draw):
    """Put another value into JSON, or take out a key or name it otherwise; of lines, into one."""
    lines = content.split(b"\n")
    objects = [place for place, line in enumerate(lines) if line[:1] == b"{"]
    place = draw.choice(objects) if len(objects) > 1 else None
    try:
        value = json.loads(content if place is None else lines[place])
        inner, key = draw.choice(list(_places(value)))
        chance = draw.random()
        if chance < 0.15:
            del inner[key]
        elif chance < 0.25 and isinstance(inner, dict):
            inner["x" + str(key)] = inner.pop(key)
        elif chance < 0.45 and isinstance(inner[key], int | float):
            inner[key] *= draw.choice((-1, 0.5, 1000, 10**6, 10**15))
        else:
            inner[key] = draw.choice(_VALUES)
        changed = json.dumps(value).encode()
    except (ValueError, RecursionError, OverflowError, IndexError):
        return content
    if place is None:
        return changed
    lines[place] = changed
    if not draw.randrange(5):
        draw.shuffle(lines)
    return b"\n".join(lines)


def _places(value):
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(pairs) if isinstance(value, dict | list) else []:
        yield value, key
        if isinstance(item, dict | list):
            yield from _places(item)
