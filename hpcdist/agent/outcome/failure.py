"""From how the ranks ended to the verdict: which rank failed first, and which are its victims.

A rank whose collective broke because a peer was gone is a victim, although its exception may come
before the death of its peer is seen. Of the others, the earliest is the cause;
where all look like victims, the earliest that left with 0 too early, or else the earliest of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from hpcdist.agent.outcome import words
from hpcdist.base import files
from hpcdist.base.errors import EXIT_DONE, EXIT_STOPPED
from hpcdist.base.text import listed
from hpcdist.runs.paths import name_of
from hpcdist.runs.verdict import Kind, RankEnd, Verdict, cancelled_verdict

_MEMORY_ERRORS = {"MemoryError", "_ArrayMemoryError", "OutOfMemoryError"}
_MAY_BE_OF_MEMORY = {"RuntimeError", "OSError", "AcceleratorError", "DistBackendError"}
"""Errors that may be about memory: what CUDA itself says, such as when it starts, is an
AcceleratorError from torch 2.8 on, and NCCL has its own."""
_NO_MEMORY = re.compile(
    r"can't allocate memory|cannot allocate memory|out of memory|std::bad_alloc", re.IGNORECASE
)
_PEER_IS_GONE = re.compile(
    r"connection closed by peer|connection reset by peer|connection refused|broken pipe"
    r"|gloo/transport|read timeout|timed out waiting|socket timeout"
    r"|remote process exited|ncclremoteerror|ncclinternalerror|nccl communicator was aborted"
    r"|watchdog caught collective operation timeout"
    r"|recvvalue failed|sendbytes failed|failed to recv",
    re.IGNORECASE,
)
"""Messages of gloo, NCCL and the store where a peer is gone (ProcessGroupGloo, ProcessGroupNCCL and
TCPStore of torch 2.7 to 2.15)."""
_TORCH_NETWORK_ERRORS = ("DistBackendError", "DistNetworkError", "DistStoreError")


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """The notice that the job will be ended soon."""

    signal: str | None = None
    """Signal by which the scheduler gave it; None: the agents keep the time limit themselves."""
    regrows: bool = False
    """The run itself wants to be started again, for it has lost nodes."""
    is_over: bool = False
    """SIGTERM came after an earlier warning: there is no time left."""

    @property
    def kind(self) -> Kind:
        """Return the kind of a verdict after this notice.

        SIGTERM is all that many sites send at a preemption; LSF sends SIGINT before it.
        """
        is_preempted = self.signal in {"SIGTERM", "SIGINT"} or self._is_own_wish
        return "preempted" if is_preempted else "time_limit"

    @property
    def _is_own_wish(self) -> bool:
        return self.regrows and self.signal is None

    @property
    def before_what(self) -> str:
        """Return the end of a sentence on a run that stopped; `conclude` adds the cause."""
        if self._is_own_wish:
            return "to start again with all nodes"
        return f"by {self.signal}" if self.kind == "preempted" else "before the time limit"


def is_failure(end: RankEnd) -> bool:
    """Return True where this end, by itself, means that the run cannot go on."""
    return end.exit_code != 0 or not end.finished


def is_stop(end: RankEnd, notice: Notice) -> bool:
    """Return True where a rank ended because of the notice: in good order, or by a signal that gave
    it.

    After another warning, SIGTERM is the scheduler's last: it may reach ranks before their agent.
    """
    return not end.stopped and (
        end.exit_code == EXIT_STOPPED
        or (notice.signal == "SIGINT" and end.report.exception == "KeyboardInterrupt")
        # However it ends then: what was written for torchrun knows no exit code 75.
        or (notice.signal == "SIGTERM" and end.handles_sigterm)
        or (notice.signal is not None and end.signal in {notice.signal, "SIGTERM"})
    )


def is_victim(end: RankEnd) -> bool:
    """Return True where a rank ended only because others did."""
    name, text = end.report.exception or "", end.report.text
    # NCCL says in an error that is otherwise about other ranks that /dev/shm has no room.
    is_about_full_disk = any(os.strerror(number) in text for number in files.FULL)
    if _is_out_of_memory(end) or (name and is_about_full_disk):
        return False
    if end.stopped:
        return True
    if words.SIZES_DIFFER.search(text):  # it names the fault itself
        return False
    if name.rpartition(".")[2] in _TORCH_NETWORK_ERRORS:
        return True
    # NCCL's watchdog raises nothing: it logs why, and aborts.
    may_say = end.signal == "SIGABRT" or name in {"RuntimeError", "ConnectionError", "TimeoutError"}
    return may_say and bool(_PEER_IS_GONE.search(text))


def _is_out_of_memory(end: RankEnd) -> bool:
    """Return True where a rank ended for a lack of memory, on the host or on the GPU."""
    name = (end.report.exception or "").rpartition(".")[2]
    is_about_memory = name in _MEMORY_ERRORS or (
        name in _MAY_BE_OF_MEMORY and bool(_NO_MEMORY.search(end.report.text))
    )
    return end.report.out_of_memory or is_about_memory


def _is_cut_short(ends: Sequence[RankEnd], notice: Notice) -> bool:
    """Return True where ranks were ended by SIGTERM because they had not stopped in time after a
    notice by another signal: none stopped in good order, and none failed by itself."""
    failures = [end for end in ends if is_failure(end)]
    has_saved = any(end.exit_code == EXIT_STOPPED and not end.stopped for end in failures)
    if notice.signal in {None, "SIGTERM"} or has_saved:
        return False
    if not all(is_victim(end) or is_stop(end, notice) for end in failures):
        return False
    is_ended = notice.is_over and (not ends or any(end.stopped for end in ends))
    return is_ended or any(end.signal == "SIGTERM" and not end.stopped for end in failures)


def decide(
    ends: Sequence[RankEnd],
    *,
    notice: Notice | None = None,
    saves: bool = False,
    restarts: int = 0,
) -> Verdict:
    """Return the verdict on an attempt from how all its ranks ended.

    `notice` had been given before, if any; with `saves`, a rank that stops has saved a checkpoint;
    `restarts` is the number of attempts before that failed.
    """
    stops = [end for end in ends if notice and is_stop(end, notice)]
    failures = [end for end in ends if is_failure(end) and end not in stops]
    failures.sort(key=lambda end: end.time_s)
    last_s = max((end.time_s for end in ends), default=None)
    step = max((end.step for end in ends if end.step is not None), default=None)
    if notice is not None and _is_cut_short(ends, notice):
        asked = f"the ranks had been asked to stop by {notice.signal}, and did not"
        sentence = f"ended by SIGTERM; {asked}"
        return Verdict(kind=notice.kind, message=sentence, signal="SIGTERM", step=step)
    if notice is not None and stops and all(map(is_victim, failures)):
        in_order = any(end.exit_code == EXIT_STOPPED for end in ends)
        what = "ended" if notice.kind == "preempted" else f"ended by {notice.signal},"
        if in_order:
            what = "stopped" if step is None else f"stopped at step {step}"
        saved = "; a checkpoint is saved" if in_order and saves else ""
        sentence, code = f"{what} {notice.before_what}{saved}", EXIT_STOPPED if in_order else None
        return stopped(notice, sentence, time_s=last_s, exit_code=code, step=step)
    if not failures:
        remark = words.remark_on(ends)
        message = words.done(restarts, remark)
        done = Verdict(kind="done", state="done", message=message, remark=remark, time_s=last_s)
        return replace(done, exit_code_of_run=EXIT_DONE, exit_code=0)
    causes = [end for end in failures if not is_victim(end)]
    early = [] if causes else [end.rank for end in ends if not is_failure(end)]
    # All are victims: of a rank, perhaps, that exited with 0 while others still needed it.
    leavers = [end for end in ends if end.left_early and not end.stopped]
    if not causes and leavers:
        causes, early = [min(leavers, key=lambda end: end.time_s)], []
    first = (causes or failures)[0]
    kind: Kind = "exit" if first.report.exception is None else "exception"
    if _is_out_of_memory(first) or first.signal is not None:
        kind = "out_of_memory" if _is_out_of_memory(first) else "signal"
    victims = [end.rank for end in failures if end is not first and end not in causes[1:]]
    sentence = words.failed_first(first, kind, early, [end.rank for end in causes[1:]])
    return of_rank(first, kind, sentence, victims)


def of_rank(first: RankEnd, kind: Kind, sentence: str, victims: Sequence[int]) -> Verdict:
    """Return the verdict on a failed run that names one rank."""
    sentence += f"; {listed(sorted(victims))} ended because of it" if victims else ""
    victims, time_s = sorted(victims), first.time_s
    return Verdict(kind=kind, message=sentence, first=first, victims=victims, time_s=time_s)


def stopped(notice: Notice, sentence: str, **fields: Any) -> Verdict:
    """Return the verdict on a run that was stopped, as `sentence` says, and can go on."""
    fields |= {"state": "preempted", "exit_code_of_run": EXIT_STOPPED, "signal": notice.signal}
    return Verdict(kind=notice.kind, message=sentence, **fields)


def cancelled(signal_name: str, **fields: Any) -> Verdict:
    """Return the verdict on a run that its user ended."""
    fields = {"signal": signal_name, "time_s": None} | fields
    return cancelled_verdict(f"cancelled ({signal_name})", **fields)


def numbered(verdict: Verdict, *, attempt: int, restarts: int = 0, time_s: float) -> Verdict:
    """Return a verdict with the numbers of its attempt, and `time_s` where it has no time yet."""
    first = verdict.first
    log = first and f"logs/{name_of('rank', '.log', first.rank, attempt)}"
    time_s = time_s if verdict.time_s is None else verdict.time_s
    return replace(verdict, attempt=attempt, restarts=restarts, time_s=time_s, log=log)


def after_setup(verdict: Verdict, problem: str | None) -> Verdict:
    """Return a verdict on a failed run with what failed before it, in the profile's setup: the run
    may have failed because of that."""
    if problem is None or verdict.state != "failed":
        return verdict
    return words.add(verdict, f"before that, a line of the profile's setup had failed ({problem})")
