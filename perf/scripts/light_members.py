"""Agents of many nodes in one process: they join and answer as real ones do, and have no ranks.

Usage: light_members.py RUN FIRST LAST RANKS

Joining is the agents' own code, a thread for each node; the messages and sockets are real, too.
Reads orders from stdin, a line each, and answers on stdout with a JSON object per line:

    join        all of them at once; answers when each of them has heard Start
    fail NODE   its first rank fails; answers when each node has heard End
    lose NODE   its agent is lost; likewise
    bytes       what was received and sent so far
    wait        answers when node 0 has closed all connections, or told them to close
"""

import json
import os
import selectors
import socket
import struct
import sys
import threading
import time
from pathlib import Path

from hpcdist.agent import messages
from hpcdist.agent.meeting import Liveness, join_meeting
from hpcdist.agent.messages import ChannelClosedError
from hpcdist.agent.node import NodeFacts
from hpcdist.job.spec import Launch
from hpcdist.machine.process import use_all_descriptors
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import ErrorReport, RankEnd

JOIN_LIMIT_S = 300.0
BEAT_EVERY_S = Liveness(Launch().agent_timeout_s, now_s=0.0).beat_every_s
_BYTES_ACKED = 120
"""Offset of tcpi_bytes_acked in struct tcp_info of linux/tcp.h; tcpi_bytes_received follows."""


class LightMember:
    """One node's agent, from its Join to Close."""

    def __init__(self, node, ranks):
        self.node, self.ranks = node, ranks
        self.channel = None
        self.attempt = 0
        self.num_bytes = (0, 0)

    def join(self, run, failed):
        try:
            joined = join_meeting(
                run,
                node_rank=self.node,
                num_nodes=self.num_nodes,
                source=None,
                timeout_s=JOIN_LIMIT_S,
                give_up=lambda: False,
            )
        except Exception as error:  # noqa: BLE001 - told as the answer
            failed.append(f"node {self.node}: {error}")
            return
        facts = NodeFacts(
            node=self.node,
            host=f"node{self.node}",
            device="cpu",
            address=joined.source,
            master_addr=joined.address,
            num_nodes=self.num_nodes,
        )
        self.channel = joined.channel
        self.channel.send(messages.Join(facts=facts))

    def start(self, meeting):
        self.attempt = meeting.attempt

    def end(self):
        for rank in self.own_ranks():
            self.tell_end(rank, signal="SIGTERM", stopped=True)
        self.channel.send(messages.Gone(attempt=self.attempt))

    def tell_end(self, rank, **how):
        end = RankEnd(
            rank=rank,
            local_rank=rank % self.ranks,
            node=self.node,
            host=f"node{self.node}",
            time_s=time.time(),
            **how,
        )
        self.channel.send(messages.Ended(attempt=self.attempt, end=end))

    def own_ranks(self):
        return range(self.node * self.ranks, (self.node + 1) * self.ranks)

    def count_bytes(self):
        """Received and sent, by the kernel's own count."""
        with socket.socket(fileno=os.dup(self.channel.fileno())) as same:
            info = same.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
        sent, received = struct.unpack_from("QQ", info, _BYTES_ACKED)
        self.num_bytes = (received, sent)


class Members:
    def __init__(self, members):
        self.members = members
        self.selector = selectors.DefaultSelector()
        self.heard = {}  # kind of message -> when each node heard it last
        self.closed = set()
        self.beat_at = time.monotonic()

    def join(self, run):
        failed = []
        threads = [threading.Thread(target=one.join, args=(run, failed)) for one in self.members]
        begin_s = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        joined_s = time.monotonic()
        if failed:
            return {"error": "; ".join(failed[:5]), "failed": len(failed)}
        for one in self.members:
            self.selector.register(one.channel, selectors.EVENT_READ, one)
        self.turn_until("Start")
        return {"begin_s": begin_s, "joined_s": joined_s, "start_s": self.span("Start")}

    def turn_until(self, kind):
        """Until each node has heard a message of this kind, or is not there any more."""
        while self.heard.get(kind, {}).keys() | self.closed < {one.node for one in self.members}:
            self.turn()

    def turn(self):
        for key, _ in self.ready():
            self.receive(key.data)

    def ready(self):
        """What is ready in time for the next beat; then every agent sends its own."""
        found = self.selector.select(max(0.0, self.beat_at - time.monotonic()))
        if time.monotonic() >= self.beat_at:
            self.beat_at += BEAT_EVERY_S
            for one in self.members:
                if one.channel is not None and one.node not in self.closed:
                    one.channel.send(messages.Beat())
        return found

    def receive(self, one):
        try:
            received = one.channel.receive()
            for message in received:
                self.heard.setdefault(type(message).__name__, {})[one.node] = time.monotonic()
                match message:
                    case messages.Start():
                        one.start(message.meeting)
                    case messages.End():
                        one.end()
                    case messages.Close():
                        self.leave(one)
        except ChannelClosedError:
            self.leave(one)

    def leave(self, one):
        if one.node not in self.closed:
            one.count_bytes()
            self.closed.add(one.node)
            self.selector.unregister(one.channel)
            one.channel.close()

    def span(self, kind):
        times = self.heard.get(kind, {}).values()
        return [min(times), max(times)] if times else None

    def obey(self, run, words):
        of_node = {one.node: one for one in self.members}
        one = of_node.get(int(words[1])) if len(words) > 1 else None
        begin_s = time.monotonic()
        if words[0] == "join":
            return self.join(run)
        if words[0] == "fail" and one is not None:
            report = ErrorReport(exception="RuntimeError", text="x", traceback="", time_s=0.0)
            one.tell_end(one.node * one.ranks, exit_code=1, report=report)
        if words[0] == "lose" and one is not None:
            self.leave(one)
        if words[0] in {"fail", "lose"}:
            self.turn_until("End")
            return {"begin_s": begin_s, "end_s": self.span("End")}
        if words[0] == "wait":
            while len(self.closed) < len(self.members):
                self.turn()
            return {"begin_s": begin_s, "closed_s": time.monotonic()}
        for one in self.members:
            if one.node not in self.closed:
                one.count_bytes()
        received, sent = zip(*(one.num_bytes for one in self.members), strict=True)
        return {"received": sum(received), "sent": sum(sent)}


def main():
    use_all_descriptors()
    run = Run(Path(sys.argv[1]))
    first, last, ranks = map(int, sys.argv[2:])
    threading.stack_size(1 << 18)
    LightMember.num_nodes = len(run.read_launch()[1].nodes)
    members = Members([LightMember(node, ranks) for node in range(first, last + 1)])
    orders = sys.stdin.fileno()
    os.set_blocking(orders, False)
    members.selector.register(orders, selectors.EVENT_READ)
    buffer = b""
    while True:
        for key, _ in members.ready():
            if key.fileobj != orders:
                members.receive(key.data)
                continue
            if not (chunk := os.read(orders, 4096)):
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            members.selector.unregister(orders)
            for line in lines:
                print(json.dumps(members.obey(run, line.decode().split())), flush=True)
            members.selector.register(orders, selectors.EVENT_READ)


if __name__ == "__main__":
    main()
