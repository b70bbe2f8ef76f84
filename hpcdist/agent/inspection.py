"""Questions to a node's living ranks: where they are, what their processes do, and what takes the
time in their next steps; for commands, and for the verdict on a run that hangs.

Each takes a thread: a rank that does not answer may not keep the agent from its ranks. A rank is
asked through its own thread, which is safe whatever it does. Only one whose thread does not answer
gets the signal at which faulthandler writes its stacks: then no other thread of it runs Python,
whose stack could change meanwhile.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Mapping, Sequence

from hpcdist.agent import messages
from hpcdist.agent.watch import LivingRank, RankWatch
from hpcdist.base.progress import poll
from hpcdist.machine.process import catches, process_use, send_signal
from hpcdist.rank.pipe import UNRECORDED
from hpcdist.runs import requests
from hpcdist.workloads.rank_process import STACKS_SIGNAL

_ANSWER_S = 1.0
"""A rank that does not answer for so long lets none of its threads run, on a machine that is not
overloaded."""
_DUMP_S = 0.5
_POLL_S = 0.01
_STEPS_POLL_S = 0.1
_STOPPED = ("T", "t")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
_THREAD = re.compile(r"(?:Current thread|Thread) 0x(?P<ident>[0-9a-f]+)(?: \[(?P<name>.*?)\])?")
_ANSWERING = "/hpcdist/rank/pipe.py"


def begin(
    wanted: requests.Request | messages.Dump,
    watch: RankWatch,
    *,
    tell: Callable[[messages.Report | messages.Stacks], None],
    log: Callable[[str], None],
) -> threading.Thread:
    """Answer a request of a command, or the coordinator's order, in a thread of its own, which
    calls `tell`."""
    ranks = watch.living()

    def answer() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the agent's
        try:
            found = _answer(wanted, ranks, watch)
        except Exception as error:  # noqa: BLE001 - what is not known must not end a run
            log(f"a question to the ranks is not answered: {error!r}")
            if isinstance(wanted, messages.Dump):
                found = messages.Stacks(attempt=wanted.attempt, reports=[])
            else:
                found = messages.Report(request=wanted.id, report=str(error))
        tell(found)

    thread = threading.Thread(target=answer, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # the limit of threads
        log(f"a question to the ranks is not asked: {error}")
    return thread


def _answer(
    wanted: requests.Request | messages.Dump, ranks: list[LivingRank], watch: RankWatch
) -> messages.Report | messages.Stacks:
    if isinstance(wanted, messages.Dump):
        reports = []
        for rank, of in _look(ranks, watch).items():
            has_group = watch.board.pipes[rank.order.local_rank].is_attended
            # Without a process group, and so a thread that answers, it has begun nothing.
            collectives = of.collectives if has_group else UNRECORDED
            reports.append(watch.hang_report(rank, of.threads, collectives))
        return messages.Stacks(attempt=wanted.attempt, reports=reports)
    if wanted.ranks is not None:
        ranks = [rank for rank in ranks if rank.order.rank in wanted.ranks]
    if wanted.profiled_steps:
        return messages.Report(request=wanted.id, report=_profile(wanted, ranks, watch))
    host = ranks[0].order.host if ranks else ""
    report = requests.NodeStacks(host=host, ranks=list(_look(ranks, watch).values()))
    for rank in ranks:
        watch.stacks.skip(rank.order.local_rank)
    return messages.Report(request=wanted.id, report=report)


def _look(ranks: Sequence[LivingRank], watch: RankWatch) -> dict[LivingRank, requests.RankStacks]:
    """Return where ranks are, by their own thread, else by what faulthandler writes at a signal,
    and what their processes do; without those that have just ended."""
    pipes = {rank: watch.board.pipes[rank.order.local_rank] for rank in ranks}
    begins = {rank: watch.stacks.num_bytes(rank.order.local_rank) for rank in ranks}
    attended = {rank for rank in ranks if pipes[rank].is_attended}
    for rank in attended:
        pipes[rank].ask()
    poll(
        lambda: all(pipes[rank].account() is not None for rank in attended) or None,
        interval_s=_POLL_S,
        limit_s=_ANSWER_S,
    )
    accounts = {rank: pipes[rank].account() if rank in attended else None for rank in ranks}
    uses = {rank: use for rank in ranks if (use := process_use(rank.pid)) is not None}
    stopped = {rank for rank, use in uses.items() if use.state in _STOPPED}
    # What has no handler for the signal would be ended by it: a program that is not Python's.
    silent = {rank for rank in uses if accounts[rank] is None} - stopped
    dumping = [rank for rank in silent if catches(rank.pid, STACKS_SIGNAL)]
    for rank in dumping:
        send_signal(rank.pid, STACKS_SIGNAL)
    texts: dict[LivingRank, str] = {}

    def is_whole() -> bool | None:
        """Return True where no rank writes any more."""
        now = {rank: watch.stacks.read(rank.order.local_rank, begins[rank]) for rank in ranks}
        is_same = now == texts and all(now[rank] for rank in dumping)
        texts.update(now)
        return is_same or None

    poll(is_whole, interval_s=_POLL_S, limit_s=_DUMP_S)
    found = {}
    for rank, use in uses.items():
        account, note = accounts[rank], None
        threads = parse(texts[rank], account.names if account else {})
        if account is None and rank in stopped:
            note = "it is stopped (SIGSTOP?), or a debugger holds it"
        elif account is None and rank in attended:
            note = "C code holds Python's lock (the GIL), so that no thread can answer"
        elif not threads and rank in dumping:
            note = "it does not answer"
        elif not threads:
            note = "it is not a Python program, or it handles SIGQUIT itself"
        found[rank] = requests.RankStacks(
            rank=rank.order.rank,
            pid=rank.pid,
            step=watch.board.read(rank.order.local_rank).step,
            state=use.state,
            rss_bytes=use.rss_bytes,
            threads=threads,
            note=note,
            collectives=account.collectives if account else None,
        )
    return found


def parse(dump: str, names: Mapping[str, str]) -> list[requests.ThreadStack]:
    """Return the threads that faulthandler has dumped, of several dumps by the newest, without the
    one that answers the agent. Dumps have the main thread last; it is the first here."""
    threads: dict[str, list[requests.Frame]] = {}
    frames: list[requests.Frame] = []
    all_names = dict(names)
    for line in dump.splitlines():
        if match := _THREAD.match(line):
            ident = str(int(match["ident"], 16))
            threads.pop(ident, None)
            frames = threads[ident] = []
            all_names.setdefault(ident, match["name"])
        elif match := _FRAME.match(line):
            frames.append(requests.Frame(match["file"], int(match["line"]), match["function"]))
    return [
        requests.ThreadStack(name=all_names[ident], frames=frames)
        for ident, frames in reversed(threads.items())
        if not (frames and frames[-1].file.endswith(_ANSWERING))
    ]


def _profile(
    request: requests.Request, ranks: Sequence[LivingRank], watch: RankWatch
) -> requests.NodeProfiles:
    """Wish for a profile of each rank's next steps, and wait for the reports."""
    board, found = watch.board, dict[int, requests.StepReport]()
    before = {rank: board.read(rank.order.local_rank).step or 0 for rank in ranks}
    wishes = {rank: board.wish_for(rank.order.local_rank, request.profiled_steps) for rank in ranks}

    def is_over() -> bool | None:
        for rank, wish in wishes.items():
            if (report := board.pipes[rank.order.local_rank].report_on(wish)) is not None:
                found[rank.order.rank] = report
        living = set(watch.pids.values())
        return all(one.order.rank in found or one.pid not in living for one in ranks) or None

    poll(is_over, interval_s=_STEPS_POLL_S, limit_s=request.wait_s)
    for rank in ranks:
        if rank.order.rank not in found:
            board.wish_for(rank.order.local_rank, 0)
            step = board.read(rank.order.local_rank).step
            if rank.pid not in set(watch.pids.values()):
                why = "it has ended"
            elif step is None:
                why = f"its loop has told no step within {request.wait_s:g} s, as record.step does"
            else:
                why = f"it made {step - before[rank]} steps within {request.wait_s:g} s (--wait)"
            found[rank.order.rank] = requests.StepReport(error=why)
    return requests.NodeProfiles(ranks=found)
