"""Debuggers in a node's living ranks: each rank is told to wait for one, and says where it
listens."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import msgspec

from hpcdist.agent.requests import NodeDebuggers, RankDebugger, WantDebugger
from hpcdist.agent.watch import LivingRank, RankWatch
from hpcdist.base.polling import poll
from hpcdist.rank.debugging import Debugger
from hpcdist.rank.inquiry import Desk
from hpcdist.rank.questions import Debug

_ANSWER_S = 30.0
"""debugpy starts a process of its own, after an import of a second or two."""
_POLL_S = 0.05


def report_debuggers(
    request: WantDebugger, ranks: Sequence[LivingRank], watch: RankWatch
) -> NodeDebuggers:
    """Have these ranks wait for debuggers; return where they listen."""
    desks = {rank: watch.board.desk(rank.order.local_rank) for rank in ranks}
    asked = [desk for desk in desks.values() if desk.is_attended]
    for desk in asked:
        desk.ask(msgspec.json.encode(Debug(request.wait_s)))
    poll(
        lambda: all(desk.answer() is not None for desk in asked) or None,
        interval_s=_POLL_S,
        limit_s=_ANSWER_S,
    )
    return NodeDebuggers(ranks=[_report(rank, desk) for rank, desk in desks.items()])


def _report(rank: LivingRank, desk: Desk) -> RankDebugger:
    folder = ""
    with contextlib.suppress(OSError):  # it has just ended
        folder = os.readlink(f"/proc/{rank.pid}/cwd")
    return RankDebugger(
        rank=rank.order.rank, host=rank.order.host, folder=folder, debugger=_debugger(desk)
    )


def _debugger(desk: Desk) -> Debugger:
    if not desk.is_attended:
        return Debugger(error="it has no process group yet, and no thread that could start one")
    try:
        return msgspec.json.decode(desk.answer() or b"", type=Debugger)
    except (msgspec.MsgspecError, UnicodeError):
        return Debugger(error="it does not answer: C code holds Python's lock, or it is stopped")
