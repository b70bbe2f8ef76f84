"""A slow line to a port of this machine: what goes in comes out later, at full speed. It is in the
place of tc's netem, which not every kernel has."""

import asyncio
import contextlib
import threading


class SlowLine:
    """Takes connections on `port`, and counts the bytes that each side sends."""

    def __init__(self, to_port, round_trip_s):
        self._to_port, self._delay_s = to_port, round_trip_s / 2
        self.connections = 0
        self.sent_bytes = 0
        """From the laptop."""
        self.received_bytes = 0
        self._is_over = asyncio.Event()
        self._listens = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), daemon=True)
        self._thread.start()
        self._listens.wait(10)

    def close(self):
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join(10)

    async def _serve(self):
        """The tasks of connections end with the loop."""
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listens.set()
        async with server:
            await self._is_over.wait()

    async def _connect(self, reader, writer):
        self.connections += 1
        with contextlib.suppress(OSError), contextlib.closing(writer):
            await asyncio.sleep(2 * self._delay_s)  # as the handshake of TCP would take
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
            with contextlib.closing(far_writer):
                await asyncio.gather(
                    self._pass_on(reader, far_writer, "sent_bytes"),
                    self._pass_on(far_reader, writer, "received_bytes"),
                )

    async def _pass_on(self, source, target, counter):
        pieces = asyncio.Queue()

        async def give():
            while piece := await pieces.get():
                due_s, data = piece
                await asyncio.sleep(due_s - self._loop.time())
                target.write(data)
            await asyncio.sleep(self._delay_s)
            with contextlib.suppress(OSError):
                target.write_eof()

        giving = asyncio.create_task(give())
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                setattr(self, counter, getattr(self, counter) + len(data))
                pieces.put_nowait((self._loop.time() + self._delay_s, data))
        pieces.put_nowait(None)
        await giving
