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


def test_messages_arrive_whole_however_they_are_cut(channels):
    channel, other = channels
    text = b'{"type": "failed", "sentence": "\xc3\xbc"}\n{"type": "ready"}\n{"ty'
    got = []
    for byte in text:
        other.send(bytes([byte]))
        got += channel.receive()
    other.send(b'pe": "gone", "attempt": 3}\n')
    got += channel.receive()
    assert got == [messages.Failed("ü"), messages.Ready(), messages.Gone(3)]


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\n",
        b"[1]\n",
        b"\xff\xfe\n",
        b'{"type": "failed", "sentence": "\xff"}\n',
        b"\n",
        b"{}x\n",
        b'{"type": "failed", "sentence": ' + b"[" * 10_000 + b"\n",
        b'{"type": "unheard_of"}\n',
        b'{"type": "fork", "orders": []}\n',  # an agent's, not a forkserver's
        b'{"type": "gone"}\n',
        b'{"type": "gone", "attempt": "3"}\n',
        b'{"type": "gone", "attempt": 3, "more": 1}\n',
    ],
)
def test_what_is_no_message_of_that_side_closes_the_channel(channels, garbage):
    channel, other = channels
    other.send(garbage)
    with pytest.raises(ChannelClosedError):
        channel.receive()


def test_a_message_without_an_end_closes_the_channel(channels, monkeypatch):
    monkeypatch.setattr(messages, "_MOST_BYTES", 1000)
    channel, other = channels
    other.send(b"x" * 1001)
    with pytest.raises(ChannelClosedError, match="more than 1000 bytes"):
        channel.receive()


def test_the_end_of_the_other_side_is_told(channels):
    channel, other = channels
    other.send(b'{"type": "last')
    other.close()
    assert channel.receive() == []
    with pytest.raises(ChannelClosedError, match="closed the connection"):
        channel.receive()
    with pytest.raises(ChannelClosedError):
        channel.send(messages.Close())
