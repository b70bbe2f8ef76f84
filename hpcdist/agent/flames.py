"""Samples of a rank as files: for speedscope.app, and as a flame graph, without the frames of how a
rank is started, and without our own thread."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

import msgspec

from hpcdist.agent.stacks import num_own
from hpcdist.base.text import one_line

_OWN_THREAD = "hpcdist/rank/inquiry.py"
_WIDTH, _ROW, _TOP, _LETTER = 1200.0, 17, 30, 6.6
"""Of the picture, in pixels."""
_LEAST_WIDTH = 0.4


class SampledFrame(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    file: str | None = None
    line: int | None = None

    @property
    def place(self) -> str:
        return f"{self.name} ({(self.file or '?').rsplit('/', 1)[-1]}:{self.line or '?'})"


class ThreadSamples(msgspec.Struct, frozen=True, rename="camel"):
    """The samples of one thread."""

    type: str
    name: str
    unit: str
    start_value: float
    end_value: float
    samples: list[list[int]]
    """Indices of frames, the outermost call first."""
    weights: list[float]
    """Seconds that each sample stands for."""


class _Shared(msgspec.Struct, frozen=True):
    frames: list[SampledFrame]


class Speedscope(msgspec.Struct, frozen=True):
    """A file of speedscope.app."""

    profiles: list[ThreadSamples]
    shared: _Shared
    schema: str = msgspec.field(
        name="$schema", default="https://www.speedscope.app/file-format-schema.json"
    )


def clean(content: Speedscope) -> Speedscope:
    """Return the samples of the program alone."""
    frames = content.shared.frames
    threads = [
        msgspec.structs.replace(one, samples=[_program(stack, frames) for stack in one.samples])
        for one in content.profiles
        if not any(stack and _is_own(frames[stack[0]]) for stack in one.samples)
    ]
    return msgspec.structs.replace(content, profiles=threads)


def _is_own(frame: SampledFrame) -> bool:
    return (frame.file or "").endswith(_OWN_THREAD)


def _program(stack: list[int], frames: Sequence[SampledFrame]) -> list[int]:
    """Return the part of a stack that is the program's."""
    num = num_own([frames[index].file or "" for index in reversed(stack)])
    return stack[len(stack) - num :]


@dataclass
class _Call:
    """A box of the flame graph."""

    text: str
    total_s: float = 0.0
    inner: dict[object, _Call] = field(default_factory=dict)

    def add(self, key: object, text: str, time_s: float) -> _Call:
        call = self.inner.setdefault(key, _Call(text))
        call.total_s += time_s
        return call


def to_svg(content: Speedscope, title: str) -> str:
    """Return the flame graph: a box for each call below what called it, as wide as its time."""
    boxes = list(_boxes(_tree(content)))
    height = _TOP + _ROW * (1 + max(depth for depth, *_ in boxes))
    drawn = "\n".join(_box(*box) for box in boxes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {height}" '
        'font-family="monospace" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n'
        f'<text x="4" y="19" font-size="14">{escape(one_line(title))}</text>\n{drawn}\n</svg>\n'
    )


def _tree(content: Speedscope) -> _Call:
    root = _Call("all threads")
    for thread in content.profiles:
        for stack, time_s in zip(thread.samples, thread.weights, strict=True):
            root.total_s += time_s
            call = root.add(thread.name, thread.name, time_s)
            for index in stack:
                call = call.add(index, content.shared.frames[index].place, time_s)
    return root


def _boxes(root: _Call) -> Iterator[tuple[int, float, float, _Call, float]]:
    """Yield the depth, the left end, the width and the share of each call that can be seen."""
    waiting = [(0, 0.0, root)]
    per_s = _WIDTH / root.total_s if root.total_s else 0.0
    while waiting:
        depth, left, call = waiting.pop()
        width = call.total_s * per_s
        if width < _LEAST_WIDTH and depth:
            continue
        yield depth, left, width, call, width / _WIDTH
        for inner in sorted(call.inner.values(), key=lambda one: -one.total_s):
            waiting.append((depth + 1, left, inner))
            left += inner.total_s * per_s


def _box(depth: int, left: float, width: float, call: _Call, share: float) -> str:
    name = one_line(call.text)
    shade = zlib.crc32(name.encode(errors="replace"))
    colour = f"rgb({225 + shade % 30},{120 + shade // 30 % 100},{50 + shade // 3000 % 60})"
    letters = int((width - 4) / _LETTER)
    shown = name if len(name) <= letters else f"{name[: letters - 2]}.." if letters > 3 else ""
    y = _TOP + depth * _ROW
    return (
        f"<g><title>{escape(name)}: {call.total_s:.2f} s, {share:.1%}</title>"
        f'<rect x="{left:.2f}" y="{y}" width="{width:.2f}" height="{_ROW - 1}" fill="{colour}"/>'
        f'<text x="{left + 3:.2f}" y="{y + 12}">{escape(shown)}</text></g>'
    )
