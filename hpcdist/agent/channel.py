"""Messages between an agent, its forkserver and the other agents: one JSON object per line."""

from __future__ import annotations

import socket
from typing import Any

import msgspec

Message = dict[str, Any]

_SEND_TIMEOUT_S = 5.0
_CHUNK_BYTES = 1 << 16
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)
"""A host that loses its power or its network says no goodbye: the kernel finds out in 20 s."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(dict[str, Any])


class ChannelClosedError(Exception):
    """The other side is gone."""


class Channel:
    """One end of a connected stream socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(_SEND_TIMEOUT_S)
        if connection.family != socket.AF_UNIX:
            for option in _KEEP_ALIVE:
                connection.setsockopt(*option)
        self._connection = connection
        self._buffer = b""

    def fileno(self) -> int:
        """For select."""
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Send one message; ChannelClosedError where the other side is gone or reads nothing."""
        try:
            self._connection.sendall(_encoder.encode(message) + b"\n")
        except OSError as error:
            raise ChannelClosedError(str(error)) from None

    def receive(self) -> list[Message]:
        """The messages that have come; call it when select says that there is something.

        Raises ChannelClosedError at the end of the stream, or where what comes is no message.
        """
        try:
            chunk = self._connection.recv(_CHUNK_BYTES)
        except OSError as error:
            raise ChannelClosedError(str(error)) from None
        if not chunk:
            raise ChannelClosedError("the other side closed the connection")
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        try:
            return [_decoder.decode(line) for line in lines]
        except msgspec.DecodeError as error:
            raise ChannelClosedError(f"not a message: {error}") from None

    def close(self) -> None:
        """Close this end."""
        self._connection.close()
