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
from contextlib import suppress
from typing import NoReturn

from hpcdist.base.errors import SchedulerError, UserError

_MOST_BYTES = 48_000
"""Of one line, before base64."""
LOCALHOST = "127.0.0.1"


class _Lines:
    """One end of the command: sends what connections receive, and gives them what comes."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._connections: dict[int, StreamWriter] = {}
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

    async def _send(self, number: int, data: bytes) -> None:
        self._writer.write(json.dumps([number, base64.b64encode(data).decode()]).encode() + b"\n")
        await self._writer.drain()

    async def run(self, port: int | None = None) -> None:
        """Give connections what comes for them until nothing can come any more; a new number is a
        connection to `port`, where that is given."""
        while line := await self._reader.readline():
            number, text = json.loads(line)
            data = base64.b64decode(text)
            if number not in self._connections and port is not None:
                try:
                    self.add(number, *await asyncio.open_connection(LOCALHOST, port))
                except OSError:
                    await self._send(number, b"")
            if (writer := self._connections.get(number)) is None:
                continue
            with suppress(OSError):  # it has gone meanwhile
                if data:
                    writer.write(data)
                    await writer.drain()
                else:
                    self._connections.pop(number).close()


def answer() -> None:
    """Be the end on the node: sys.argv has the port that connections go to."""

    async def serve() -> None:
        loop, reader = asyncio.get_running_loop(), StreamReader(limit=4 * _MOST_BYTES)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        pipe, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
        writer = StreamWriter(pipe, protocol, None, loop)
        writer.write(b'[0, ""]\n')  # it is there
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
            if await command.stdout.readline():
                server = await asyncio.start_server(
                    lambda reader, writer: lines.add(next(numbers), reader, writer), LOCALHOST, port
                )
                ready(server.sockets[0].getsockname()[1])
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
