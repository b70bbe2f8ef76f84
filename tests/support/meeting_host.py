"""Node 0's side of a meeting, without an agent around it, and followers that join it."""

import contextlib
import json
import selectors
import socket
import threading
import time

import msgspec

from hpcdist.agent.agreement import NodeFacts
from hpcdist.agent.follower import join_meeting
from hpcdist.agent.meeting import HostedMeeting, MeetingPlace
from hpcdist.agent.messages import Join
from hpcdist.base import files
from hpcdist.machine.network import network_key
from hpcdist.runs.run import Run

LIMIT_S = 30


class MeetingHost:
    """A hosted meeting on 127.0.0.1; what it was told, and what it logged, in lists."""

    def __init__(self, folder, num_nodes=2, **options):
        self.run = Run.create(folder, "x")
        self.selector = selectors.DefaultSelector()
        self.heard, self.lost, self.logged = [], [], []
        self.meeting = HostedMeeting(
            self.run,
            num_nodes=num_nodes,
            addresses=["127.0.0.1"],
            port_range=None,
            selector=self.selector,
            on_message=lambda node, message: self.heard.append((node, message)),
            on_lost=lambda node, _: self.lost.append(node),
            log=self.logged.append,
            **options,
        )
        self.place = msgspec.convert(json.loads(self.run.meeting_file.read_text()), MeetingPlace)
        self.address = ("127.0.0.1", self.place.port)
        self.secret = bytes.fromhex(self.place.secret)

    @property
    def num_sockets(self):
        """Its open sockets, the listening one included."""
        return len(self.selector.get_map())

    def turn(self, timeout_s=0.02):
        """One turn of an agent's loop; the number of sockets that were ready."""
        ready = self.selector.select(timeout_s)
        for key, _ in ready:
            key.data()
        self.meeting.on_time()
        return len(ready)

    def turn_until(self, condition):
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline
            self.turn()

    @contextlib.contextmanager
    def serving(self):
        """Turn in another thread, so that this one can join."""
        is_over = threading.Event()

        def serve():
            while not is_over.is_set():
                self.turn()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def connect(self):
        return socket.create_connection(self.address, timeout=LIMIT_S)

    def close(self):
        for key in list(self.selector.get_map().values()):
            key.fileobj.close()
        self.selector.close()


def join_in_time(run, node=1, timeout_s=LIMIT_S, **options):
    return join_meeting(
        run,
        node_rank=node,
        num_nodes=2,
        source=None,
        timeout_s=timeout_s,
        give_up=lambda: False,
        **options,
    )


def join_message(node=1):
    return Join(facts=NodeFacts(node=node, host="n", num_nodes=2, ranks=1))


def write_place(run, port, secret="00" * 32, **fields):
    """The file of another meeting."""
    place = MeetingPlace(
        addresses=["127.0.0.1"], network=network_key(), port=port, secret=secret, **fields
    )
    files.write_json(run.meeting_file, msgspec.to_builtins(place))
