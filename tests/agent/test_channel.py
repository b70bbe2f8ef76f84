"""Messages between processes: whole, or the channel is closed."""

import socket

import pytest

from hpcdist.agent.channel import Channel, ChannelClosedError


@pytest.fixture
def channels():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours), theirs


def test_messages_arrive_whole_however_they_are_cut(channels):
    channel, other = channels
    text = b'{"type": "a", "text": "\xc3\xbc"}\n{"type": "b"}\n{"ty'
    got = []
    for byte in text:
        other.send(bytes([byte]))
        got += channel.receive()
    other.send(b'pe": "c"}\n')
    got += channel.receive()
    assert [message["type"] for message in got] == ["a", "b", "c"]
    assert got[0]["text"] == "ü"


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\n", b"[1]\n", b"\xff\xfe\n", b"\n", b"{}x\n"])
def test_garbage_closes_the_channel(channels, garbage):
    channel, other = channels
    other.send(garbage)
    with pytest.raises(ChannelClosedError):
        channel.receive()


def test_the_end_of_the_other_side_is_told(channels):
    channel, other = channels
    other.send(b'{"type": "last')
    other.close()
    assert channel.receive() == []
    with pytest.raises(ChannelClosedError, match="closed the connection"):
        channel.receive()
    with pytest.raises(ChannelClosedError):
        channel.send({"type": "x"})


def test_large_messages_pass(channels):
    channel, other = channels
    reader = Channel(other)
    channel.send({"type": "x", "text": "y" * 100_000})
    got = []
    while not got:
        got = reader.receive()
    assert len(got[0]["text"]) == 100_000


def test_a_host_that_vanishes_is_noticed_by_the_kernel():
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = socket.create_connection(server.getsockname())
        channel = Channel(connection)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
        channel.close()
