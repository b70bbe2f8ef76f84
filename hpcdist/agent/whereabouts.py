"""Where a node's living ranks are, and what their processes do.

A rank is asked through its own thread, which is safe whatever it does. Only one whose thread does
not answer gets the signal at which faulthandler writes its stacks: then no other thread of it runs
Python, whose stack could change meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence

from hpcdist.agent import py_spy
from hpcdist.agent.rank_process import STACKS_SIGNAL
from hpcdist.agent.requests import GpuUse, NodeStacks, RankStacks, WantStacks, merge_stacks
from hpcdist.agent.sampler import GpuReader
from hpcdist.agent.stacks import Stacks, parse
from hpcdist.agent.watch import LivingRank
from hpcdist.base.polling import poll
from hpcdist.machine import process
from hpcdist.machine.process import ProcessUse, process_use, send_signal
from hpcdist.rank.board import ProgressBoard
from hpcdist.rank.inquiry import QUICK, Desk
from hpcdist.rank.questions import WHERE, Account, read_account
from hpcdist.rank.stacks import ThreadStack

_ANSWER_S = 1.0
"""A rank that does not answer for so long lets none of its threads run, on a machine that is not
overloaded."""
_DUMP_S = 0.5
_CPU_S = 0.3
"""Over which CPU time is measured."""
_GPU_S = 1.0
_POLL_S = 0.01
_STOPPED = ("T", "t")


def report_stacks(
    request: WantStacks, ranks: Sequence[LivingRank], board: ProgressBoard, stacks: Stacks
) -> NodeStacks:
    """Return where these ranks are, and what their processes do."""
    begin_s = time.monotonic()
    before = {rank.pid: process_use(rank.pid) for rank in ranks}
    gpus = _GpuLook([rank.order.gpu for rank in ranks if rank.order.gpu])
    accounts = _ask(ranks, board)
    dumps = _dump([rank for rank in ranks if rank not in accounts], stacks)
    native = {rank: py_spy.dump(rank.pid) for rank in ranks} if request.native else {}
    time.sleep(max(0.0, begin_s + _CPU_S - time.monotonic()))
    length_s = time.monotonic() - begin_s
    found = []
    for rank in ranks:
        account, now, then = accounts.get(rank), process_use(rank.pid), before[rank.pid]
        if now is None or then is None:  # it has just ended
            continue
        threads = account.threads if account else dumps.get(rank, [])
        note = _why_mute(rank, now, board, has_stacks=bool(threads)) if account is None else None
        if rank in native:
            threads, note = _with_native(native[rank], threads, note)
        found.append(
            RankStacks(
                rank=rank.order.rank,
                pid=rank.pid,
                step=board.read(rank.order.local_rank).step,
                state=now.state,
                cpu_share=(now.cpu_s - then.cpu_s) / length_s,
                rss_bytes=now.rss_bytes,
                gpu=gpus.found.get(rank.order.gpu or ""),
                threads=threads,
                note=note,
                collectives=account.collectives if account else None,
            )
        )
    return NodeStacks(host=ranks[0].order.host if ranks else "", ranks=merge_stacks(found))


def _ask(ranks: Sequence[LivingRank], board: ProgressBoard) -> Mapping[LivingRank, Account]:
    """Return the accounts that ranks give of themselves."""
    desks = {rank: board.desk(rank.order.local_rank) for rank in ranks}
    ask_all(desks.values(), WHERE, limit_s=_ANSWER_S)
    accounts = {rank: read_account(desk.answer()) for rank, desk in desks.items()}
    return {rank: account for rank, account in accounts.items() if account is not None}


def ask_all(desks: Iterable[Desk], question: bytes, *, limit_s: float, line: int = QUICK) -> None:
    """Ask ranks that have a thread which answers, and wait for their answers."""
    asked = [desk for desk in desks if desk.is_attended]
    for desk in asked:
        desk.ask(question, line)
    poll(
        lambda: all(desk.answer(line) is not None for desk in asked) or None,
        interval_s=_POLL_S,
        limit_s=limit_s,
    )


def _dump(ranks: Sequence[LivingRank], stacks: Stacks) -> Mapping[LivingRank, list[ThreadStack]]:
    """Return what faulthandler writes of ranks that do not answer. What has no handler for the
    signal would be ended by it: a program that is not Python's."""
    asked = [rank for rank in ranks if process.catches(rank.pid, STACKS_SIGNAL)]
    asked = [rank for rank in asked if not _is_stopped(process_use(rank.pid))]
    for rank in asked:
        stacks.hold(rank.order.local_rank)
        send_signal(rank.pid, STACKS_SIGNAL)
    before: dict[LivingRank, str] = {}

    def is_whole() -> bool | None:
        """Return True where no rank writes any more."""
        now = {rank: stacks.held(rank.order.local_rank) for rank in asked}
        is_same = all(now.values()) and now == before
        before.update(now)
        return is_same or None

    poll(is_whole, interval_s=_POLL_S, limit_s=_DUMP_S if asked else 0.0)
    for rank in asked:
        stacks.release(rank.order.local_rank)
    return {rank: parse(text) for rank, text in before.items()}


def _is_stopped(use: ProcessUse | None) -> bool:
    return use is None or use.state in _STOPPED


def _why_mute(
    rank: LivingRank, use: ProcessUse, board: ProgressBoard, *, has_stacks: bool
) -> str | None:
    """Return why a rank has given no account of itself."""
    if _is_stopped(use):
        return "it is stopped (SIGSTOP?), or a debugger holds it"
    if board.desk(rank.order.local_rank).is_attended:
        return "C code holds Python's lock (the GIL), so that no thread can answer"
    if has_stacks:
        return None  # it has no process group yet, and tells all the same
    if not process.catches(rank.pid, STACKS_SIGNAL):
        return "it is not a Python program, or it handles SIGQUIT itself"
    return "it does not answer"


def _with_native(
    dump: py_spy.Dump, threads: list[ThreadStack], note: str | None
) -> tuple[list[ThreadStack], str | None]:
    """Return the threads as py-spy has them, or why it has none, beside what is known else."""
    if dump.threads:
        return dump.threads, note
    return threads, "; ".join(filter(None, [note, f"no native frames: {dump.error}"]))


class _GpuLook:
    """What GPUs do now, found by a thread that a driver may keep."""

    def __init__(self, uuids: Sequence[str]) -> None:
        self.found: dict[str, GpuUse] = {}
        if uuids:
            thread = threading.Thread(target=self._look, args=(list(uuids),), daemon=True)
            thread.start()
            thread.join(_GPU_S)

    def _look(self, uuids: list[str]) -> None:
        for uuid in dict.fromkeys(uuids):
            reader = GpuReader([uuid])
            for sample in reader.sample(0.0):
                self.found[uuid] = GpuUse(
                    utilization=sample.get("utilization"), memory_bytes=sample.get("memory_bytes")
                )
            reader.close()
