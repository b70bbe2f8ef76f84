"""Node 0's side of a meeting, without an agent around it, and followers that join it."""

import contextlib
import json
import socket
import threading
import time

import msgspec

from hpcdist.agent.coordinator import Heard
from hpcdist.agent.meeting import Connections, MeetingPlace, join_meeting
from hpcdist.base import files
from hpcdist.runs.run import Run

LIMIT_S = 30


class MeetingHost:
    """A hosted meeting on 127.0.0.1; what it was told, and what it logged, in lists."""

    def __init__(self, folder, agent_timeout_s=0.0, **options):
        self.run = Run.create(folder, "x")
        self.heard, self.lost, self.logged = [], [], []
        self.meeting = Connections(agent_timeout_s, self.logged.append)
        self.meeting.listen(self.run, addresses=["127.0.0.1"], port_range=None, **options)
        self.place = msgspec.convert(json.loads(self.run.meeting_file.read_text()), MeetingPlace)
        self.address = ("127.0.0.1", self.place.port)
        self.secret = bytes.fromhex(self.place.secret)

    @property
    def num_members(self):
        return len(self.meeting.channels)

    @property
    def num_strangers(self):
        return len(self.meeting.strangers)

    def turn(self, timeout_s=0.02):
        """One turn of the leader's loop."""
        for event in self.meeting.wait(timeout_s):
            if isinstance(event, Heard):
                self.heard.append((event.node, event.message))
            else:
                self.lost.append(event.node)

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
        self.meeting.close()


def join_in_time(run, node=1, timeout_s=LIMIT_S, **options):
    who = {"node_rank": node, "num_nodes": 2, "source": None, "give_up": lambda: False}
    return join_meeting(run, timeout_s=timeout_s, **who, **options)


def write_place(run, port, secret="00" * 32, **fields):
    """The file of another meeting."""
    place = MeetingPlace(addresses=["127.0.0.1"], port=port, secret=secret, **fields)
    files.write_json(run.meeting_file, msgspec.to_builtins(place))
