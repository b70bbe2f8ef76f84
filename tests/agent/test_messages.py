"""Messages between processes: whole and of a known kind, or the channel is closed."""

import socket

import pytest

from hpcdist.agent import messages
from hpcdist.agent.messages import Channel, ChannelClosedError


@pytest.fixture
def channels():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours, messages.FROM_FORKSERVER), theirs


def test_messages_arrive_whole_however_they_are_cut_and_the_end_is_told(channels):
    channel, other = channels
    text = b'{"type": "failed", "sentence": "\xc3\xbc"}\n{"type": "ready"}\n{"ty'
    got = []
    for byte in text:
        other.send(bytes([byte]))
        got += channel.receive()
    other.send(b'pe": "gone", "attempt": 3}\n{"type": "last')
    other.close()
    got += channel.receive()
    assert got == [messages.Failed("ü"), messages.Ready(), messages.Gone(3)]
    with pytest.raises(ChannelClosedError, match="closed the connection"):
        channel.receive()
    with pytest.raises(ChannelClosedError):
        channel.send(messages.Close())


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\n",
        b'{"type": "failed", "sentence": ' + b"[" * 10_000 + b"\n",
        b'{"type": "fork", "orders": []}\n',  # an agent's, not a forkserver's
        b'{"type": "gone", "attempt": 3, "more": 1}\n',
        b"x" * 20_001,  # without an end
    ],
)
def test_what_is_no_message_of_that_side_closes_the_channel(channels, monkeypatch, garbage):
    monkeypatch.setattr(messages, "_MOST_BYTES", 20_000)
    channel, other = channels
    other.send(garbage)
    with pytest.raises(ChannelClosedError):
        [channel.receive() for _ in range(9)]
