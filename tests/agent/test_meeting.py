"""How agents meet."""

import json
import selectors
import socket

from hpcdist.agent.channel import Channel
from hpcdist.agent.meeting import HostedMeeting, join_meeting
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
        meeting = HostedMeeting(
            run,
            addresses=["127.0.0.1"],
            bind_to="127.0.0.1",
            port_range=None,
            selector=selector,
            on_message=lambda node, message: heard.append((node, message["type"])),
            on_lost=lambda node, _reason: lost.append(node),
        )
        place = json.loads(run.meeting_file.read_text())
        assert run.meeting_file.stat().st_mode & 0o777 == 0o600

        def turn():
            for key, _ in selector.select(0.2):
                key.data()

        def come():
            connection = socket.create_connection((place["addresses"][0], place["port"]))
            channel = Channel(connection)
            channel.send({"type": "hello", "node": 1, "token": place["token"]})
            turn()
            turn()
            assert channel.receive()[0]["type"] == "welcome"
            return channel

        first = come()
        second = come()
        second.send({"type": "join", "host": "h"})
        turn()
        assert (heard, lost) == ([(1, "join")], [])
        meeting.send(1, {"type": "start"})
        assert second.receive() == [{"type": "start"}]
        first.close()
        second.close()
        turn()
        assert lost == [1]
        meeting.send(1, {"type": "end"})  # nobody is there, which on_lost has told
        for key in list(selector.get_map().values()):
            key.fileobj.close()
