"""Pictures in the terminal, where it can show them: by the protocols of kitty, iTerm2, or sixel.

kitty and iTerm2 protocols: which terminal it is stands in the environment, which tmux and screen
pass on although they pass no pictures on. Sixel: the terminal itself is asked (Primary Device
Attributes, as of the VT100; attribute 4 is sixel), which tmux answers for itself.
"""

from __future__ import annotations

import base64
import io
import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

_KITTY_TERMS = ("xterm-kitty", "xterm-ghostty")
_KITTY_PROGRAMS = ("ghostty", "WezTerm")
_ITERM_PROGRAMS = ("iTerm.app",)
_CHUNK = 4096
_ASK = b"\x1b[c"
_ANSWER = re.compile(rb"\x1b\[\?([\d;]*)c")
_SIXEL_ATTRIBUTE = b"4"
_ANSWER_LIMIT_S = 2.0  # on a busy machine, through a slow network
_MOST_WIDTH = 1000
_COLOURS = 255
_BAND = 6


def find_protocol(environment: Mapping[str, str]) -> str | None:
    """kitty, iterm2 or sixel; None where stdout is no terminal that is known to show pictures."""
    if not sys.stdout.isatty() or environment.get("TERM", "dumb") == "dumb":
        return None
    return _named_protocol(environment) or ("sixel" if _answers_sixel() else None)


def encode(image: Image, protocol: str) -> str:
    """What to print for the image to appear."""
    return {"kitty": _kitty, "iterm2": _iterm2, "sixel": _sixel}[protocol](image)


def _named_protocol(environment: Mapping[str, str]) -> str | None:
    """What the terminal says of itself in the environment, unless something sits in between."""
    term, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    if environment.get("TMUX") or environment.get("STY") or term.startswith(("tmux", "screen")):
        return None
    if term in _KITTY_TERMS or environment.get("KITTY_WINDOW_ID") or program in _KITTY_PROGRAMS:
        return "kitty"
    if program in _ITERM_PROGRAMS or environment.get("LC_TERMINAL") == "iTerm2":
        return "iterm2"
    return None


def _answers_sixel() -> bool:
    try:
        answer = _ask_terminal()
    except (OSError, termios.error):  # no terminal to ask, or one that we may not ask
        return False
    found = _ANSWER.search(answer)
    return found is not None and _SIXEL_ATTRIBUTE in found[1].split(b";")[1:]


def _ask_terminal() -> bytes:
    """The terminal's answer, or what has come of it before the limit."""
    descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    try:
        with _raw(descriptor):
            os.write(descriptor, _ASK)
            return _read_answer(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    """Neither echo the answer nor wait for a newline."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


def _read_answer(descriptor: int) -> bytes:
    answer, deadline = b"", time.monotonic() + _ANSWER_LIMIT_S
    while not _ANSWER.search(answer):
        ready, _, _ = select.select([descriptor], [], [], max(0, deadline - time.monotonic()))
        piece = os.read(descriptor, 256) if ready else b""
        if not piece:
            break
        answer += piece
    return answer


def _kitty(image: Image) -> str:
    """https://sw.kovidgoyal.net/kitty/graphics-protocol/: a PNG, in pieces."""
    text = _png(image)
    pieces = [text[begin : begin + _CHUNK] for begin in range(0, len(text), _CHUNK)]
    last = len(pieces) - 1
    return (
        "".join(
            f"\x1b_G{'a=T,f=100,q=2,' if number == 0 else ''}m={int(number < last)};{piece}\x1b\\"
            for number, piece in enumerate(pieces)
        )
        + "\n"
    )


def _iterm2(image: Image) -> str:
    """https://iterm2.com/documentation-images.html: a file, shown inline."""
    text = _png(image)
    num_bytes = len(base64.b64decode(text))
    return f"\x1b]1337;File=inline=1;size={num_bytes}:{text}\x07\n"


def _png(image: Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def _sixel(image: Image) -> str:
    """Bands of six rows, in each band one line per colour: as of the VT340."""
    import numpy as np

    if image.width > _MOST_WIDTH:  # terminals cut off what is wider than they are
        image = image.resize((_MOST_WIDTH, round(image.height * _MOST_WIDTH / image.width)))
    reduced = image.convert("RGB").quantize(_COLOURS)
    palette = (reduced.getpalette() or [])[: 3 * _COLOURS]
    colours = [palette[begin : begin + 3] for begin in range(0, len(palette), 3)]
    pixels = np.asarray(reduced)
    parts = [f'\x1bPq"1;1;{reduced.width};{reduced.height}']
    parts += [
        "#{};2;{};{};{}".format(number, *(round(value * 100 / 255) for value in colour))
        for number, colour in enumerate(colours)
    ]
    for top in range(0, reduced.height, _BAND):
        band = pixels[top : top + _BAND]
        weights = (1 << np.arange(len(band)))[:, None]
        lines = [
            f"#{number}" + _run_lengths(((band == number) * weights).sum(0).tolist())
            for number in np.unique(band).tolist()
        ]
        parts.append("$".join(lines) + "-")
    return "".join([*parts, "\x1b\\\n"])


def _run_lengths(bits: list[int]) -> str:
    """One character per column of six pixels; equal ones as a number and one of them."""
    parts = []
    begin = 0
    for end in range(1, len(bits) + 1):
        if end == len(bits) or bits[end] != bits[begin]:
            parts.append(f"!{end - begin}{chr(63 + bits[begin])}")
            begin = end
    return "".join(parts)
