"""Requests of commands as a node's agent answers them: where its living ranks are, what their
processes do, and what takes the time in their next steps.

It takes a thread for each: neither a rank that does not answer nor a driver that hangs may keep the
agent from its ranks. A rank is asked through its own thread, which is safe whatever it does. Only
one whose thread does not answer gets the signal at which faulthandler writes its stacks: then no
other thread of it runs Python, whose stack could change meanwhile.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from hpcdist.agent import messages
from hpcdist.agent.rank_process import STACKS_SIGNAL
from hpcdist.agent.requests import (
    AnyRequest,
    GpuUse,
    NodeProfiles,
    NodeReport,
    NodeStacks,
    NodeTrouble,
    RankStacks,
    WantProfile,
    WantStacks,
    merge_stacks,
)
from hpcdist.agent.sampler import GpuReader
from hpcdist.agent.stacks import Stacks, parse
from hpcdist.agent.watch import LivingRank, RankWatch
from hpcdist.base.polling import poll
from hpcdist.machine import process
from hpcdist.machine.process import ProcessUse, process_use, send_signal
from hpcdist.rank.board import ProgressBoard
from hpcdist.rank.inquiry import Account, StepReport
from hpcdist.rank.stacks import ThreadStack

_WAIT_S = 0.05
"""Between two looks of the agent's loop at whether a report is there."""
_ANSWER_S = 1.0
"""A rank that does not answer for so long lets none of its threads run, on a machine that is not
overloaded."""
_DUMP_S = 0.5
_CPU_S = 0.3
"""Over which CPU time is measured."""
_GPU_S = 1.0
_POLL_S = 0.01
_STEPS_POLL_S = 0.1
_STOPPED = ("T", "t")


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
                return _report_stacks(ranks, self._watch.board, self._watch.stacks)
            case WantProfile():
                return _report_profiles(request, ranks, self._watch)


def _report_stacks(ranks: Sequence[LivingRank], board: ProgressBoard, stacks: Stacks) -> NodeStacks:
    """Return where these ranks are, and what their processes do."""
    begin_s = time.monotonic()
    before = {rank.pid: process_use(rank.pid) for rank in ranks}
    gpus = _look_at_gpus([rank.order.gpu for rank in ranks if rank.order.gpu])
    accounts = _ask(ranks, board)
    dumps = _dump([rank for rank in ranks if rank not in accounts], stacks)
    time.sleep(max(0.0, begin_s + _CPU_S - time.monotonic()))
    length_s = time.monotonic() - begin_s
    found = []
    for rank in ranks:
        account, now, then = accounts.get(rank), process_use(rank.pid), before[rank.pid]
        if now is None or then is None:  # it has just ended
            continue
        threads = account.threads if account else dumps.get(rank, [])
        note = _why_mute(rank, now, board, has_stacks=bool(threads)) if account is None else None
        found.append(
            RankStacks(
                rank=rank.order.rank,
                pid=rank.pid,
                step=board.read(rank.order.local_rank).step,
                state=now.state,
                cpu_share=(now.cpu_s - then.cpu_s) / length_s,
                rss_bytes=now.rss_bytes,
                gpu=gpus.get(rank.order.gpu or ""),
                threads=threads,
                note=note,
                collectives=account.collectives if account else None,
            )
        )
    return NodeStacks(host=ranks[0].order.host if ranks else "", ranks=merge_stacks(found))


def _ask(ranks: Sequence[LivingRank], board: ProgressBoard) -> Mapping[LivingRank, Account]:
    """Return the accounts of themselves that ranks give which have a thread that answers."""
    desks = {rank: board.desk(rank.order.local_rank) for rank in ranks}
    asked = {rank: desk for rank, desk in desks.items() if desk.is_attended}
    for desk in asked.values():
        desk.ask()
    poll(
        lambda: all(desk.answer() is not None for desk in asked.values()) or None,
        interval_s=_POLL_S,
        limit_s=_ANSWER_S,
    )
    accounts = {rank: desk.account() for rank, desk in asked.items()}
    return {rank: account for rank, account in accounts.items() if account is not None}


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


def _look_at_gpus(uuids: Sequence[str]) -> Mapping[str, GpuUse]:
    """Return what GPUs do now. A thread asks, since a driver may keep it."""
    found: dict[str, GpuUse] = {}

    def look() -> None:
        for uuid in dict.fromkeys(uuids):
            reader = GpuReader([uuid])
            for sample in reader.sample(0.0):
                found[uuid] = GpuUse(
                    utilization=sample.get("utilization"), memory_bytes=sample.get("memory_bytes")
                )
            reader.close()

    if uuids:
        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        thread.join(_GPU_S)
    return found


def _report_profiles(
    request: WantProfile, ranks: Sequence[LivingRank], watch: RankWatch
) -> NodeProfiles:
    """Wish for a profile of each rank's next steps, and wait for the reports."""
    board = watch.board
    desks = {rank: board.desk(rank.order.local_rank) for rank in ranks}
    before = {rank: board.read(rank.order.local_rank).step or 0 for rank in ranks}
    wishes = {rank: desk.wish_for(request.steps) for rank, desk in desks.items()}

    def reports() -> dict[LivingRank, StepReport]:
        found = {rank: desk.report_on(wishes[rank]) for rank, desk in desks.items()}
        return {rank: report for rank, report in found.items() if report is not None}

    def is_over() -> bool | None:
        done, living = reports(), list(watch.pids.values())
        return all(rank in done or rank.pid not in living for rank in ranks) or None

    poll(is_over, interval_s=_STEPS_POLL_S, limit_s=request.wait_s)
    found = reports()
    for rank in ranks:
        if rank not in found:
            desks[rank].wish_for(0)
            step = board.read(rank.order.local_rank).step
            if rank.pid not in list(watch.pids.values()):
                why = "it has ended"
            elif step is None:
                why = f"its loop has told no step within {request.wait_s:g} s, as record.step does"
            else:
                why = f"it made {step - before[rank]} steps within {request.wait_s:g} s (--wait)"
            found[rank] = StepReport(error=why)
    return NodeProfiles(ranks={rank.order.rank: found[rank] for rank in ranks})
