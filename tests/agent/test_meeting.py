"""How agents meet."""

import json
import multiprocessing
import selectors
import socket

import pytest

from hpcdist.agent import meeting, messages
from hpcdist.agent.meeting import HostedMeeting, join_meeting
from hpcdist.agent.messages import Channel
from hpcdist.agent.node import DisagreementError
from hpcdist.base.version import __version__
from hpcdist.machine.network import network_key
from hpcdist.runs.run import Run


def test_an_agent_waits_past_the_place_of_one_that_is_gone(tmp_path):
    run = Run.create(tmp_path, "x")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    run.meeting_file.write_text(
        json.dumps(
            {"addresses": ["127.0.0.1"], "network": network_key(), "port": port, "token": "old"}
        )
    )
    asked = []
    joined = join_meeting(
        run,
        node_rank=1,
        source=None,
        timeout_s=30,
        give_up=lambda: len(asked) > 3 or asked.append(1),
    )
    assert joined is None


def test_a_node_that_comes_again_takes_the_place_of_its_former_connection(tmp_path):
    run = Run.create(tmp_path, "x")
    heard, lost = [], []
    with selectors.DefaultSelector() as selector:
        hosted = HostedMeeting(
            run,
            addresses=["127.0.0.1"],
            bind_to="127.0.0.1",
            port_range=None,
            selector=selector,
            on_message=lambda node, message: heard.append((node, message)),
            on_lost=lambda node, _reason: lost.append(node),
        )
        place = json.loads(run.meeting_file.read_text())
        assert run.meeting_file.stat().st_mode & 0o777 == 0o600

        def turn():
            for key, _ in selector.select(0.2):
                key.data()

        def come():
            connection = socket.create_connection((place["addresses"][0], place["port"]))
            channel = Channel(connection, messages.ANSWER)
            hello = messages.Hello(node=1, token=place["token"], version=__version__)
            channel.send(hello)
            turn()
            turn()
            assert isinstance(channel.receive()[0], messages.Welcome)
            return channel.expect(messages.TO_AGENT)

        first = come()
        second = come()
        second.send(messages.Failed(sentence="no"))
        turn()
        assert (heard, lost) == ([(1, messages.Failed(sentence="no"))], [])
        hosted.send(1, messages.Pause())
        assert second.receive() == [messages.Pause()]
        first.close()
        second.close()
        turn()
        assert lost == [1]
        hosted.send(1, messages.Close())  # nobody is there, which on_lost has told
        for key in list(selector.get_map().values()):
            key.fileobj.close()


def test_an_agent_of_another_version_is_refused_with_both_versions(tmp_path):
    run = Run.create(tmp_path, "x")
    with selectors.DefaultSelector() as selector:
        HostedMeeting(
            run,
            addresses=["127.0.0.1"],
            bind_to="127.0.0.1",
            port_range=None,
            selector=selector,
            on_message=lambda *_: None,
            on_lost=lambda *_: None,
        )
        process = multiprocessing.get_context("fork").Process(target=join_as_1, args=(run,))
        process.start()
        while process.is_alive():
            for key, _ in selector.select(0.1):
                key.data()
        assert process.exitcode == 0
        for key in list(selector.get_map().values()):
            key.fileobj.close()


def join_as_1(run):
    """In a process of its own: node 0's is busy with its selector."""
    meeting.__version__ = "9.9"
    versions = f"this node has hpcdist 9.9, node 0 has {__version__}: "
    with pytest.raises(DisagreementError, match=versions):
        join_meeting(run, node_rank=1, source=None, timeout_s=30, give_up=lambda: False)
