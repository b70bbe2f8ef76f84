"""What every command of the site is: carries its words to the daemon, and prints the answer.

It is copied with two lines before it, which say where the daemon listens. It starts in a few
milliseconds because it imports nothing that takes longer.

A message is one byte, the length in four, and text: C for the call, then from the daemon O and E
for the two outputs, I for `send me your standard input`, R for the return code.
"""

import _socket
import os
import sys
import time

SOCKET = globals().get("SOCKET", "")
_SCM_RIGHTS = 1
_RETRY_S = 0.1


def main():
    connection = _connect()
    name = os.path.basename(sys.argv[0])
    environment = [f"{key}={value}" for key, value in os.environ.items()]
    words = [name, os.getcwd(), str(len(sys.argv) - 1), *sys.argv[1:], *environment]
    _send(connection, "\0".join(words), with_files=name in ("blaunch", "ssh"))
    while True:
        kind, text = _receive(connection)
        if kind == b"R":
            sys.stdout.flush()
            os._exit(int(text))  # quicker than a tidy end
        elif kind == b"I":
            _send(connection, "" if sys.stdin.isatty() else sys.stdin.buffer.read())
        elif kind == b"O":
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
        elif kind == b"E":
            sys.stderr.buffer.write(text)
            sys.stderr.buffer.flush()
        else:
            _wait_for_ever()


def _connect():
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.connect(SOCKET)
    except OSError:
        _wait_for_ever()
    return connection


def _wait_for_ever():
    """The daemon is down: like the real commands, say so and wait for it."""
    print("LSF is down. Please wait ...", file=sys.stderr, flush=True)
    while True:
        time.sleep(_RETRY_S)


def _send(connection, text, *, with_files=False):
    data = text if isinstance(text, bytes) else text.encode(errors="surrogateescape")
    message = b"C" + len(data).to_bytes(4, "little") + data
    sent = 0
    if with_files:
        files = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
        ancillary = [(_socket.SOL_SOCKET, _SCM_RIGHTS, files)]
        sent = connection.sendmsg([message], ancillary)
    while sent < len(message):
        sent += connection.send(message[sent : sent + 65536])


def _receive(connection):
    head = _receive_all(connection, 5)
    if len(head) < 5:
        return b"", b""
    return head[:1], _receive_all(connection, int.from_bytes(head[1:], "little"))


def _receive_all(connection, length):
    data = b""
    while len(data) < length:
        piece = connection.recv(length - len(data))
        if not piece:
            break
        data += piece
    return data


if __name__ == "__main__":
    main()
