"""Requests of commands as a node's agent answers them.

It takes a thread for each: neither a rank that does not answer nor a driver that hangs may keep the
agent from its ranks.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from hpcdist.agent import messages
from hpcdist.agent.profiles import report_profiles
from hpcdist.agent.requests import (
    AnyRequest,
    NodeDebuggers,
    NodeReport,
    NodeTrouble,
    RankDebugger,
    WantDebugger,
    WantProfile,
    WantStacks,
)
from hpcdist.agent.watch import LivingRank, RankWatch
from hpcdist.agent.whereabouts import ask_all, report_stacks
from hpcdist.rank.debugging import Debugger
from hpcdist.rank.inquiry import SLOW, Desk
from hpcdist.rank.questions import Debug

_WAIT_S = 0.05
"""Between two looks of the agent's loop at whether a report is there."""
_DEBUGGER_S = 30.0
"""debugpy starts a process of its own, after an import of a second or two."""


class Inspection:
    """The requests that this node's agent is answering."""

    def __init__(self, watch: RankWatch, log: Callable[[str], None]) -> None:
        self._watch = watch
        self._log = log
        self._num_open = 0
        self._done: deque[messages.Report] = deque()

    def begin(self, request: AnyRequest) -> None:
        """Answer a request in a thread of its own."""
        ranks = [rank for rank in self._watch.living() if request.concerns(rank.order.rank)]
        thread = threading.Thread(target=self._answer, args=(request, ranks), daemon=True)
        self._num_open += 1
        try:
            thread.start()
        except RuntimeError as error:  # the limit of threads
            self._fail(request, error)

    def next_deadline(self) -> float:
        """Return when `reports` must be asked for next, by the monotonic clock."""
        return time.monotonic() + _WAIT_S if self._num_open else math.inf

    def reports(self) -> Sequence[messages.Report]:
        """Return those that are ready."""
        found = [self._done.popleft() for _ in range(len(self._done))]
        self._num_open -= len(found)
        return found

    def _answer(self, request: AnyRequest, ranks: list[LivingRank]) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the agent's
        try:
            report = self._report(request, ranks)
        except Exception as error:  # noqa: BLE001 - what is not known must not end a run
            self._fail(request, error)
        else:
            self._done.append(messages.Report(request=request.id, report=report))

    def _fail(self, request: AnyRequest, error: Exception) -> None:
        self._log(f"a request is not answered: {error!r}")
        self._done.append(
            messages.Report(request=request.id, report=NodeTrouble(sentence=str(error)))
        )

    def _report(self, request: AnyRequest, ranks: list[LivingRank]) -> NodeReport:
        match request:
            case WantStacks():
                return report_stacks(request, ranks, self._watch.board, self._watch.stacks)
            case WantProfile():
                return report_profiles(request, ranks, self._watch)
            case WantDebugger():
                return _report_debuggers(request, ranks, self._watch)


# Debuggers: each rank is told to wait for one, and says where it listens.


def _report_debuggers(
    request: WantDebugger, ranks: Sequence[LivingRank], watch: RankWatch
) -> NodeDebuggers:
    """Have these ranks wait for debuggers; return where they listen."""
    desks = {rank: watch.board.desk(rank.order.local_rank) for rank in ranks}
    question = msgspec.json.encode(Debug(request.wait_s))
    ask_all(desks.values(), question, limit_s=_DEBUGGER_S, line=SLOW)
    return NodeDebuggers(ranks=[_report_debugger(rank, desk) for rank, desk in desks.items()])


def _report_debugger(rank: LivingRank, desk: Desk) -> RankDebugger:
    folder = ""
    with contextlib.suppress(OSError):  # it has just ended
        folder = os.readlink(f"/proc/{rank.pid}/cwd")
    return RankDebugger(
        rank=rank.order.rank, host=rank.order.host, folder=folder, debugger=_debugger(desk)
    )


def _debugger(desk: Desk) -> Debugger:
    if not desk.is_attended:
        return Debugger(error="it has not made a process group yet: try again when it has")
    try:
        return msgspec.json.decode(desk.answer(SLOW) or b"", type=Debugger)
    except (msgspec.MsgspecError, UnicodeError):
        return Debugger(
            error="it does not answer: C code holds Python's lock (the GIL), or it is stopped"
        )
