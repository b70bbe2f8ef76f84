"""TCP connections through the standard input and output of one command, such as srun or ssh: from
a port of this machine to one of a node, where no login is allowed and no port is open.

Both ends send lines: the number of a connection and some of its bytes in base64, nothing at its
end. Lines, as srun passes on what it has read up to the end of one.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import NoReturn

from hpcdist.base.errors import SchedulerError, UserError

_MOST_BYTES = 48_000
"""Of one line, before base64."""
_MOST_WAITING = 64_000_000
"""Bytes for a connection that does not read them."""
_READY = b'[0, ""]\n'
LOCALHOST = "127.0.0.1"


class _Lines:
    """One end of the command: sends what connections receive, and gives them what comes."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._connections: dict[int, StreamWriter] = {}
        self._half_closed: set[int] = set()
        self._last = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, number: int, reader: StreamReader, writer: StreamWriter) -> None:
        """Carry what a connection receives."""
        self._connections[number] = writer
        task = asyncio.create_task(self._carry(number, reader))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, number: int, reader: StreamReader) -> None:
        data = b"more"
        while data:
            try:
                data = await reader.read(_MOST_BYTES)
            except OSError:
                data = b""
            await self._send(number, data)
        self._end_one_way(number)

    def _end_one_way(self, number: int) -> None:
        """Close a connection when both of its ways have ended."""
        if number not in self._half_closed:
            self._half_closed.add(number)
            return
        self._half_closed.discard(number)
        if writer := self._connections.pop(number, None):
            writer.close()

    async def _send(self, number: int, data: bytes) -> None:
        self._writer.write(json.dumps([number, base64.b64encode(data).decode()]).encode() + b"\n")
        await self._writer.drain()

    async def run(self, port: int | None = None) -> None:
        """Give connections what comes for them until nothing can come any more; a new number is a
        connection to `port`, where that is given."""
        while line := await self._reader.readline():
            number, text = json.loads(line)
            data = base64.b64decode(text)
            if number > self._last and port is not None:
                self._last = number
                try:
                    self.add(number, *await asyncio.open_connection(LOCALHOST, port))
                except OSError:
                    await self._send(number, b"")
            if (writer := self._connections.get(number)) is None:
                continue
            with suppress(OSError):  # it has gone meanwhile
                if data:
                    writer.write(data)
                else:
                    writer.write_eof()
            if not data:
                self._end_one_way(number)
            elif writer.transport.get_write_buffer_size() > _MOST_WAITING:
                writer.transport.abort()  # it does not read, and others would wait for it


def answer() -> None:
    """Be the end on the node: sys.argv has the port that connections go to."""

    async def serve() -> None:
        loop, reader = asyncio.get_running_loop(), StreamReader(limit=4 * _MOST_BYTES)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        pipe, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
        writer = StreamWriter(pipe, protocol, None, loop)
        writer.write(_READY)
        await _Lines(reader, writer).run(int(sys.argv[1]))

    asyncio.run(serve())


def listen(argv: Sequence[str], port: int, ready: Callable[[int], None]) -> NoReturn:
    """Be the end here: listen on `port` of 127.0.0.1, 0 for a free one, and start the command,
    whose other end answers; `ready` is told the port.

    Raises KeyboardInterrupt, UserError where the port is taken, and SchedulerError where the
    command ends by itself.
    """

    async def serve() -> NoReturn:
        command = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=4 * _MOST_BYTES,
        )
        assert command.stdin is not None
        assert command.stdout is not None
        lines, numbers = _Lines(command.stdout, command.stdin), iter(range(1, sys.maxsize))
        try:
            while (line := await command.stdout.readline()) not in (b"", _READY):
                pass  # what start-up files of a shell print
            if line:
                server = await asyncio.start_server(
                    lambda reader, writer: lines.add(next(numbers), reader, writer), LOCALHOST, port
                )
                ready(server.sockets[0].getsockname()[1])
                with closing(server), suppress(ValueError):  # amid the lines something was printed
                    await lines.run()
        finally:
            with suppress(ProcessLookupError):
                command.terminate()
        raise SchedulerError(
            f"{argv[0]} ended, which carried the connections (exit code {await command.wait()})",
            hint="see whether the run goes on: hpcdist status",
        )

    try:
        asyncio.run(serve())
    except OSError as error:
        raise UserError(
            f"port {port} of this machine cannot be had, or {argv[0]} not run: {error.strerror}",
            hint="name another port with --port",
        ) from None
