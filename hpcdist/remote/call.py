"""The laptop's side of a command that runs at a host: what it prints appears here, signals go
there, and its exit code comes back."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import msgspec

from hpcdist.base.served import Told
from hpcdist.base.text import show_bytes
from hpcdist.machine.process import handling
from hpcdist.remote import wire
from hpcdist.remote.ssh import Connection
from hpcdist.remote.tree import offer, pack
from hpcdist.runs.snapshot import SnapshotPlan

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)
_MOST_KEPT_BYTES = 16_000_000
_LARGE_BYTES = 1_000_000
"""It may take a while to send so much."""
_TERMINAL_VARIABLES = ("TERM", "COLORTERM", "NO_COLOR")


@dataclass
class Output:
    """Takes what a command prints, and what it tells beside."""

    told: Callable[[dict[str, Any]], None] = lambda _: None
    holds: bool = False
    """stdout is shown as far as was told last: what follows it comes again after a reconnect. So it
    is from the first time on that the command tells how much of a log it has shown."""
    captured: bytearray | None = None
    """Takes stdout in place of this command's own."""
    is_begun: bool = field(default=False, init=False)
    """The command may have begun."""
    _held: bytes = field(default=b"", init=False)

    def out(self, parts: list[bytes | dict[str, Any]]) -> None:
        for part in parts:
            if isinstance(part, dict):
                self.told(part)
                self._give()
                self.holds = self.holds or "shown" in part
            else:
                self._held += part
        if not self.holds:
            self._give()
        if len(self._held) + len(self.captured or b"") > _MOST_KEPT_BYTES:
            raise wire.WireError("the host prints without an end")

    def err(self, data: bytes) -> None:
        _write(sys.stderr.fileno(), data)

    def forget(self) -> None:
        """Drop what was held: the connection broke, and it comes again."""
        self._held = b""

    def finish(self, rest: bytes) -> None:
        self._held += rest
        self._give()

    def _give(self) -> None:
        if self.captured is not None:
            self.captured += self._held
        else:
            _write(sys.stdout.fileno(), self._held)
        self._held = b""


def call(
    connection: Connection,
    request: wire.Call,
    output: Output,
    *,
    tree: SnapshotPlan | None = None,
) -> int:
    """Run a command at the host and return its exit code, with the work tree if there is one."""
    sent = None if tree is None else offer(tree)
    terminal = _terminal(captured=output.captured is not None)
    output.is_begun = True
    connection.send(wire.message(msgspec.structs.replace(request, tree=sent, terminal=terminal)))
    if tree is not None and sent is not None:
        _send_tree(connection, sent, tree.root, output)
    sys.stdout.flush()
    sys.stderr.flush()
    told = Told(connection.word)
    with _signals() as (wake, came):
        while True:
            heard = connection.hear(wake)
            while came:
                _pass_on(connection, came.pop(0))
            if heard is None:
                os.read(wake, 64)
                continue
            kind, content = heard
            if kind == wire.OUT:
                output.out(told.feed(content))
            elif kind == wire.ERR:
                output.err(content)
            elif isinstance(ended := connection.checked(content), wire.Ended):
                output.finish(told.rest())
                return ended.code


def _send_tree(connection: Connection, tree: wire.SentTree, root: str, output: Output) -> None:
    """Send the contents that the host lacks, and no file that it was not offered."""
    reply = connection.reply()
    offered = {entry.sha256: entry.size_bytes for entry in tree.entries if entry.sha256}
    if not isinstance(reply, wire.Missing) or not offered.keys() >= set(reply.sha256):
        raise wire.WireError(f"{connection.host.name} asked for what it was not offered")
    size_bytes = sum(offered[sha256] for sha256 in reply.sha256)
    if size_bytes > _LARGE_BYTES:
        text = f"note: {show_bytes(size_bytes)} of the work tree go to {connection.host.name}\n"
        output.err(text.encode())
    for frame in pack(tree, root, reply.sha256):
        connection.send(frame)


def _terminal(*, captured: bool) -> wire.Terminal:
    size = shutil.get_terminal_size()
    return wire.Terminal(
        out=not captured and sys.stdout.isatty(),
        err=sys.stderr.isatty(),
        columns=size.columns,
        lines=size.lines,
        variables={name: os.environ[name] for name in _TERMINAL_VARIABLES if name in os.environ},
    )


@contextlib.contextmanager
def _signals() -> Iterator[tuple[int, list[int]]]:
    """Give what can be read when a signal comes, and those that came; Ctrl-C is for the command at
    the host, and twice for this one."""
    reader, writer = os.pipe()
    came: list[int] = []
    interrupts = 0

    def take(number: int, _frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += number == signal.SIGINT
        if interrupts > 1:
            raise KeyboardInterrupt
        came.append(number)
        os.write(writer, b"s")

    try:
        with handling(_PASSED_ON, take):
            yield reader, came
    finally:
        os.close(reader)
        os.close(writer)


def _pass_on(connection: Connection, number: int) -> None:
    size = shutil.get_terminal_size()
    connection.send(
        wire.message(wire.Signal(number=number, columns=size.columns, lines=size.lines))
    )


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
