"""A slow line to a port of this machine: what goes in comes out later, at full speed. It is in the
place of tc's netem, which not every kernel has."""

import contextlib
import queue
import socket
import threading
import time

_CHUNK_BYTES = 1 << 16


class SlowLine:
    """Takes connections on `port`, and counts the bytes that each side sends."""

    def __init__(self, to_port, round_trip_s):
        self._to = ("127.0.0.1", to_port)
        self._delay_s = round_trip_s / 2
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open = [self._listener]
        self._threads = []
        self.connections = 0
        self.sent_bytes = 0
        """From the laptop."""
        self.received_bytes = 0
        self._start(self._serve)

    def _start(self, act, *arguments):
        thread = threading.Thread(target=act, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self):
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(timeout=10)
        for one in self._open:
            one.close()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.connections += 1
                self._open.append(near)
                self._start(self._connect, near)

    def _connect(self, near):
        time.sleep(2 * self._delay_s)  # as the handshake of TCP would take
        far = socket.create_connection(self._to)
        self._open.append(far)
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pass_on(near, far, "sent_bytes")
        self._pass_on(far, near, "received_bytes")

    def _pass_on(self, source, target, counter):
        pieces = queue.SimpleQueue()

        def take():
            data = b"-"
            while data:
                try:
                    data = source.recv(_CHUNK_BYTES)
                except OSError:
                    data = b""
                setattr(self, counter, getattr(self, counter) + len(data))
                pieces.put((time.monotonic() + self._delay_s, data))

        def give():
            with contextlib.suppress(OSError):
                while True:
                    due_s, data = pieces.get()
                    time.sleep(max(0.0, due_s - time.monotonic()))
                    if not data:
                        break
                    target.sendall(data)
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)

        self._start(take)
        self._start(give)
