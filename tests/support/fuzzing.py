"""Damaged inputs of every kind, made from a seed, and what reading each of them came to."""

from __future__ import annotations

import contextlib
import json
import random
import resource
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LIMIT_S = 5.0
"""Of CPU time, for one input."""
MEMORY_BYTES = 3 * 10**9
"""Address space beyond what the process had."""

Read = Callable[[bytes], bool]
"""Reads an input: True where it gave values, False where it was refused in words. Anything that it
raises is a failure."""


@dataclass(frozen=True)
class Sample:
    """An input that is right, and what reads it."""

    content: bytes
    read: Read


@dataclass
class Failure:
    number: int
    content: bytes
    error: str


@dataclass
class Result:
    kind: str
    inputs: int = 0
    refused: int = 0
    failures: list[Failure] = field(default_factory=list)


class TookTooLongError(BaseException):
    """Not caught by what catches every Exception."""


def fuzz(
    kind: str, samples: list[Sample], *, number: int, seed: int, first: int = 0, most_failures=20
) -> Result:
    """Read `number` damaged inputs of a kind; input n of a seed is always the same."""
    result = Result(kind)
    for sample in samples:
        assert sample.read(sample.content), f"the undamaged {kind} was refused"
    with limited_memory():
        for index in range(first, first + number):
            draw = random.Random(f"{seed}/{kind}/{index}")
            sample = draw.choice(samples)
            content = damage(sample.content, draw)
            result.inputs += 1
            try:
                with limited_time():
                    result.refused += not sample.read(content)
            except (Exception, TookTooLongError):  # noqa: BLE001 - each is a finding
                error = traceback.format_exc(limit=-4)
                result.failures.append(Failure(index, content, error))
                if len(result.failures) >= most_failures:
                    break
    return result


@contextlib.contextmanager
def limited_time() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TookTooLongError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextlib.contextmanager
def limited_memory() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


# Damage.


def damage(content: bytes, draw: random.Random) -> bytes:
    """Return what a disk, an editor or a stranger may make of a file."""
    ways = [_flip, _replace, _cut, _remove, _repeat, _insert, _splice, _fill]
    if content[:1] in b"{[" or b'\n{"' in content:
        ways += [_other_value] * 8
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        content = draw.choice(ways)(content, draw)
    return content


def _span(content: bytes, draw: random.Random) -> tuple[int, int]:
    begin = draw.randrange(len(content) + 1)
    return begin, min(len(content), begin + draw.choice((1, 2, 4, 16, 64, 1024)))


def _flip(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8))):
        if changed:
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _replace(content: bytes, draw: random.Random) -> bytes:
    begin, end = _span(content, draw)
    return content[:begin] + draw.randbytes(end - begin) + content[end:]


def _cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def _remove(content: bytes, draw: random.Random) -> bytes:
    begin, end = _span(content, draw)
    return content[:begin] + content[end:]


def _repeat(content: bytes, draw: random.Random) -> bytes:
    begin, end = _span(content, draw)
    return content[:end] + content[begin:end] * draw.choice((1, 2, 100)) + content[end:]


def _splice(content: bytes, draw: random.Random) -> bytes:
    begin, end = _span(content, draw)
    place = draw.randrange(len(content) + 1)
    return content[:place] + content[begin:end] + content[place:]


def _fill(content: bytes, draw: random.Random) -> bytes:
    begin, end = _span(content, draw)
    return content[:begin] + draw.choice((b"\0", b"\xff", b" ")) * (end - begin) + content[end:]


def _insert(content: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(content) + 1)
    return content[:place] + draw.choice(_PIECES) + content[place:]


_PIECES = (
    *(
        b"\0",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"\r",
        b"\n",
        b"\n\n",
        b"\t",
        b"\x1b[2J",
        b"\xef\xbb\xbf",
    ),
    *(b"NaN", b"Infinity", b"-1", b"1e999", b"0", b"9" * 30, b"9" * 5000, b"-" + b"9" * 30),
    *(b"null", b"true", b'""', b"''", b"{}", b"[]", b"[" * 2000, b'{"a":' * 2000, b"]" * 50),
    *(
        b"&a ",
        b"*a",
        b"!!python/object:os.system ",
        b"!!binary ",
        b"? ",
        b"<<: ",
        b"%TAG ",
        b"---\n",
    ),
    *(b"../../..", b"/etc/passwd", b"x" * 100_000, b"a: &a [1]\nb: [*a,*a]\n", b"{{", b"${HOME}"),
)
_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2**31,
        2**63,
        2**64,
        -(2**63),
        10**400,
        0.5,
        -0.0,
        1e308,
        1e-320,
    ),
    *(
        float("nan"),
        float("inf"),
        -float("inf"),
        "",
        "x",
        "\0",
        "\ud800",
        "a\nb",
        "9" * 400,
        "../..",
    ),
    *(
        [],
        {},
        [[]],
        [1, "a"],
        {"a": 1},
        {"": None},
        "/",
        "x" * 70_000,
        "\x1b]0;x\x07",
        1e9,
        -1e9,
        3,
    ),
)


def _other_value(content: bytes, draw: random.Random) -> bytes:
    """Put another value into JSON, or remove or add a key; of JSON lines, into one."""
    lines = content.split(b"\n")
    objects = [place for place, line in enumerate(lines) if line[:1] == b"{"]
    if lines and len(objects) > 1:
        place = draw.choice(objects)
        lines[place] = _with_other_value(lines[place], draw)
        if draw.random() < 0.2:
            other = draw.randrange(len(lines))
            lines[place], lines[other] = lines[other], lines[place]
        return b"\n".join(lines)
    return _with_other_value(content, draw)


def _with_other_value(content: bytes, draw: random.Random) -> bytes:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return content
    places = list(_places(value))
    if not places:
        return content
    inner, key = draw.choice(places)
    if draw.random() < 0.15:
        del inner[key]
    elif draw.random() < 0.1 and isinstance(inner, dict):
        inner["x" + str(key)] = inner.pop(key)
    elif draw.random() < 0.2 and isinstance(inner[key], int | float):
        with contextlib.suppress(OverflowError):
            inner[key] = inner[key] * draw.choice((-1, 0.5, 1000, 10**6, 10**15))
    else:
        inner[key] = draw.choice(_VALUES)
    try:
        return json.dumps(value).encode()
    except (ValueError, RecursionError):
        return content


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(pairs) if isinstance(value, dict | list) else []:
        yield value, key
        if isinstance(item, dict | list):
            yield from _places(item)
