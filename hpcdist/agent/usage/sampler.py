"""The thread of an agent that samples what its node's ranks use.

A thread, and not a timer of the agent's loop: a driver that answers late, or a rank whose memory
takes long to be counted, must not keep the agent from its ranks. It is a daemon: one that hangs in
the driver does not outlive the agent. The agent forks before the first one, and not after.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from hpcdist.agent.usage.figures import NodeBegin
from hpcdist.agent.usage.windows import Sample, Windows, to_fields
from hpcdist.runs.events import SCHEMA_VERSION, EventWriter
from hpcdist.runs.run import Run

_FIRST_S = 2.0
"""From the start of the ranks: until then imports for samples would be in their way."""
_LOOK_S = 0.2
_SHORTEST_S = 0.05
_END_LIMIT_S = 0.2


class NodeShare(NamedTuple):
    """What the ranks of a node have there."""

    ranks: Callable[[], Mapping[int, int]]
    """Pids of those that live, by local rank."""
    cpus: Sequence[int] | None
    """That they are bound to; None where they are bound to none."""
    num_cpus: float
    """That they may use, a quota counted in part."""
    gpus: Sequence[str]
    """UUIDs of those that they drive."""


class UsageSampler:
    """Samples one attempt after the other; `every_s` 0 is off."""

    def __init__(
        self, run: Run, *, node: int, host: str, every_s: float, log: Callable[[str], None]
    ) -> None:
        self._run = run
        self._node = node
        self._host = host
        self._every_s = every_s
        self._log = log
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, attempt: int, share: NodeShare) -> None:
        """An attempt's ranks are being started."""
        if not self._every_s:
            return
        self._stop.set()  # of an attempt that is over
        self._stop = threading.Event()
        begin_s = time.time()
        self._thread = threading.Thread(
            target=self._live, args=(self._stop, attempt, share, begin_s), daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:  # the limit of threads
            self._thread = None
            self._log(f"what the ranks use is not sampled: {error}")

    def end(self) -> None:
        """No rank is left: have the last window written, unless that takes long."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_END_LIMIT_S)

    def _live(self, stop: threading.Event, attempt: int, share: NodeShare, begin_s: float) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the agent's
        begin = NodeBegin(
            begin_s=begin_s,
            schema=SCHEMA_VERSION,
            node=self._node,
            host=self._host,
            cpus=None if share.cpus is None else list(share.cpus),
            num_cpus=share.num_cpus,
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        )
        try:
            events = EventWriter(self._run.usage_file(self._node, attempt))
            events.write("node", **to_fields(begin))  # also of a run too short for samples
            if self._is_time(stop, share):
                _sample(stop, events, begin, share, max(_SHORTEST_S, self._every_s))
            events.close()
        except Exception as error:  # noqa: BLE001 - what is not known must not end a run
            self._log(f"what the ranks use is not sampled any more: {error!r}")

    def _is_time(self, stop: threading.Event, share: NodeShare) -> bool:
        """Wait for the ranks, and until they have had their start to themselves."""
        while not share.ranks():  # a node may take long to import what they need
            if stop.wait(_LOOK_S):
                return False
        return not stop.wait(min(_FIRST_S, self._every_s))


def _sample(
    stop: threading.Event, events: EventWriter, begin: NodeBegin, share: NodeShare, every_s: float
) -> None:
    """Until the attempt is over, or none of its ranks is left."""
    from hpcdist.agent.usage.gpus import GpuReader
    from hpcdist.agent.usage.processes import NodeProcesses, RankProcesses

    own, node, gpus = RankProcesses(), NodeProcesses(), GpuReader(share.gpus)
    if gpus.facts:
        events.write("node", **to_fields(msgspec.structs.replace(begin, gpus=gpus.facts)))
    windows = Windows(every_s)
    at_s, sampled_s = time.monotonic(), time.time()
    own.sample(share.ranks().values(), 0.0)
    gpus.sample(0.0)
    while not stop.wait(windows.next_in_s()) and (pids := list(share.ranks().values())):
        before_s, at_s, sampled_s = at_s, time.monotonic(), time.time()
        length_s = at_s - before_s
        found = own.sample(pids, length_s) | node.sample(length_s)
        full = windows.add(Sample(length_s, found, gpus.sample(length_s)), time_s=sampled_s)
        if full is not None:
            events.write("usage", **to_fields(full))
    last = windows.close(time_s=sampled_s)
    if last is not None:
        events.write("usage", **to_fields(last))
    gpus.close()
