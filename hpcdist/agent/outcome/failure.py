"""From how the ranks ended to the verdict: which rank failed first, and which are its victims.

A rank whose collective broke because a peer was gone is a victim, although its exception may come
before the death of its peer is seen. Of the others, the earliest is the cause.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from hpcdist.base.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_STOPPED, HpcdistError
from hpcdist.base.text import listed, number_of
from hpcdist.machine.process import MORE_DESCRIPTORS
from hpcdist.rank.lack import is_about_full_disk, is_about_memory
from hpcdist.runs.paths import log_place
from hpcdist.runs.verdict import ErrorReport, Kind, RankEnd, Verdict

_PEER_IS_GONE = re.compile(
    r"connection closed by peer|connection reset by peer|connection refused|broken pipe"
    r"|gloo/transport|read timeout|timed out waiting|socket timeout"
    r"|remote process exited|ncclremoteerror|ncclinternalerror|nccl communicator was aborted"
    r"|watchdog caught collective operation timeout"
    r"|recvvalue failed|sendbytes failed|failed to recv",
    re.IGNORECASE,
)
"""Messages of gloo, NCCL and the store where a peer is gone (ProcessGroupGloo, ProcessGroupNCCL and
TCPStore of torch 2.6 to 2.15)."""

_SIZES_DIFFER = re.compile(
    r"preamble\.length|received data size doesn't match|collective mismatch", re.IGNORECASE
)
"""Messages of gloo to a rank that got more from a peer than it has room for."""

_OWN_ERRORS = f"{HpcdistError.__module__}."
_LONGEST_TEXT = 300  # of an exception in a sentence; verdict.json has all of it
_TRACEBACK = "Traceback (most recent call last):"
_TORCH_NETWORK_ERRORS = ("DistBackendError", "DistNetworkError", "DistStoreError")


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """The notice that the job will be ended soon."""

    signal: str | None = None
    """Signal by which the scheduler gave it; None: the agents keep the time limit themselves."""
    is_over: bool = False
    """SIGTERM came after an earlier warning: there is no time left."""

    @property
    def kind(self) -> Kind:
        """Return the kind of a verdict after this notice.

        SIGTERM is all that many sites send at a preemption; LSF sends SIGINT before it.
        """
        return "preempted" if self.signal in {"SIGTERM", "SIGINT"} else "time_limit"

    @property
    def before_what(self) -> str:
        """Return the end of a sentence on a run that stopped. `conclude` (agent/outcome/lives.py)
        asks the scheduler later what the signal was for."""
        return f"by {self.signal}" if self.kind == "preempted" else "before the time limit"


def is_failure(end: RankEnd) -> bool:
    """Return True where this end, by itself, means that the run cannot go on."""
    return end.exit_code != 0 or not end.finished


def is_stop(end: RankEnd, notice: Notice) -> bool:
    """Return True where a rank ended because of the notice: in good order, or by a signal that gave
    it.

    After another warning, SIGTERM is the scheduler's last: it may reach ranks before their agent.
    """
    if end.stopped:
        return False
    if end.exit_code == EXIT_STOPPED:
        return True
    if notice.signal == "SIGINT" and end.report.exception == "KeyboardInterrupt":
        return True
    if end.handles_sigterm and notice.signal == "SIGTERM":
        return True  # however it ends then: what was written for torchrun knows no exit code 75
    if notice.signal is None or end.signal is None:
        return False
    return end.signal in {notice.signal, "SIGTERM"}


def is_victim(end: RankEnd) -> bool:
    """Return True where a rank ended only because others did."""
    name, text = end.report.exception, end.report.text
    # NCCL says in an error that is otherwise about other ranks that /dev/shm has no room.
    if is_out_of_memory(end) or (name is not None and is_about_full_disk(text)):
        return False
    if end.stopped:
        return True
    if _SIZES_DIFFER.search(text):
        return False
    if name is not None and name.rpartition(".")[2] in _TORCH_NETWORK_ERRORS:
        return True
    # NCCL's watchdog raises nothing: it logs why, and aborts.
    may_say = end.signal == "SIGABRT" or name in {"RuntimeError", "ConnectionError", "TimeoutError"}
    return may_say and bool(_PEER_IS_GONE.search(text))


def is_own_error(exception: str | None) -> bool:
    """Return True for a type of hpcdist's exceptions: its words say enough without a traceback."""
    return exception is not None and exception.startswith(_OWN_ERRORS)


def is_out_of_memory(end: RankEnd) -> bool:
    """Return True where a rank ended for a lack of memory, on the host or on the GPU."""
    report = end.report
    return report.out_of_memory or (
        report.exception is not None and is_about_memory(report.exception, report.text)
    )


def _is_cut_short(ends: Sequence[RankEnd], notice: Notice) -> bool:
    """Return True where ranks were ended by SIGTERM because they had not stopped in time after a
    notice by another signal: none stopped in good order, and none failed by itself."""
    if notice.signal in {None, "SIGTERM"}:
        return False
    failures = [end for end in ends if is_failure(end)]
    if any(end.exit_code == EXIT_STOPPED and not end.stopped for end in failures):
        return False  # it has saved what there is
    if not all(is_victim(end) or is_stop(end, notice) for end in failures):
        return False
    if any(end.signal == "SIGTERM" and not end.stopped for end in failures):
        return True
    return notice.is_over and (not ends or any(end.stopped for end in ends))


# Verdicts. `numbered` adds the attempt to each, and the time to those that name no rank.


def numbered(verdict: Verdict, *, attempt: int, restarts: int = 0, time_s: float) -> Verdict:
    """Return a verdict with the numbers of its attempt, and `time_s` where it has no time yet."""
    return msgspec.structs.replace(
        verdict,
        attempt=attempt,
        restarts=restarts,
        time_s=time_s if verdict.time_s is None else verdict.time_s,
        log=None if verdict.first is None else log_place(verdict.first.rank, attempt),
    )


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
    failures = sorted(
        (end for end in ends if is_failure(end) or (notice and is_stop(end, notice))),
        key=lambda end: end.time_s,
    )
    if notice is not None:
        if _is_cut_short(ends, notice):
            asked = f"the ranks had been asked to stop by {notice.signal}, and did not"
            sentence = f"ended by SIGTERM; {asked}"
            return without_rank(notice.kind, sentence, signal="SIGTERM", step=_last_step(ends))
        stops = [end for end in failures if is_stop(end, notice)]
        failures = [end for end in failures if end not in stops]
        if stops and all(map(is_victim, failures)):
            return _stopped_by_ranks(ends, notice, saves=saves)
    if not failures:
        return _done(ends, restarts)
    causes = [end for end in failures if not is_victim(end)]
    # All are victims: of a rank, perhaps, that exited with 0 while others still needed it.
    leavers = [end for end in ends if end.left_early and not end.stopped]
    if not causes and leavers:
        causes = [min(leavers, key=lambda end: end.time_s)]
    first = (causes or failures)[0]
    kind, why = _cause(first)
    sentence = f"{place(first)} failed first{at_step(first)}: {why}"
    if first.report.lack and not first.report.out_of_memory:
        sentence += f"; {first.report.lack}"
    if os.strerror(errno.EMFILE) in first.report.text:
        sentence += f"; {MORE_DESCRIPTORS}"
    early = [end.rank for end in ends if not is_failure(end)]
    if early and not causes:
        sentence += (
            f"; {listed(early)} had already ended well, so the ranks do not take part in the same "
            "collectives"
        )
    return verdict_on(
        first,
        kind=kind,
        sentence=sentence,
        victims=[end.rank for end in failures if end is not first and end not in causes[1:]],
        also_failed=[end.rank for end in causes[1:]],
    )


def verdict_on(
    first: RankEnd,
    *,
    kind: Kind,
    sentence: str,
    victims: Sequence[int],
    also_failed: Sequence[int] = (),
) -> Verdict:
    """Return the verdict on a failed run that names one rank."""
    if also_failed:
        sentence += f"; {listed(sorted(also_failed))} failed too, later"
    if victims:
        sentence += f"; {listed(sorted(victims))} ended because of it"
    return Verdict(
        kind=kind,
        state="failed",
        message=sentence,
        exit_code_of_run=EXIT_FAILED,
        first=first,
        victims=sorted(victims),
        time_s=first.time_s,
    )


def _done(ends: Sequence[RankEnd], restarts: int) -> Verdict:
    """Return the verdict on ranks that all ended well, with a remark on those that hung or crashed
    after their workload, or whose records may be cut."""
    hung = sorted(end.rank for end in ends if end.teardown == "SIGKILL")
    crashed = [end for end in ends if end.teardown not in {None, "SIGKILL"}]
    remarks = []
    if hung:
        remarks.append(f"{listed(hung)} hung at the end, after the work was done")
    if crashed:
        who = listed(sorted(end.rank for end in crashed))
        remarks.append(
            f"hpcdist's end of {who} crashed ({crashed[0].teardown}), after the program was done "
            "and its files were written"
        )
    if cut := [end for end in ends if end.report.lack]:
        who = listed([end.rank for end in cut])
        remarks.append(f"what {who} recorded may be cut: {cut[0].report.lack}")
    remark = ", and ".join(remarks) or None
    again = f" after {number_of(restarts, 'restart')}" if restarts else ""
    return Verdict(
        kind="done",
        state="done",
        message=f"every rank ended well{again}" + (f"; {remark}" if remark else ""),
        remark=remark,
        exit_code_of_run=EXIT_DONE,
        exit_code=0,
        time_s=max(end.time_s for end in ends),
    )


def _stopped_by_ranks(ends: Sequence[RankEnd], notice: Notice, *, saves: bool) -> Verdict:
    """Return the verdict on ranks that stopped before their end, as they were asked to."""
    in_order = any(end.exit_code == EXIT_STOPPED for end in ends)
    step = _last_step(ends)
    if in_order:
        what = "stopped" if step is None else f"stopped at step {step}"
    else:
        what = "ended" if notice.kind == "preempted" else f"ended by {notice.signal},"
    return stopped(
        notice,
        f"{what} {notice.before_what}" + ("; a checkpoint is saved" if saves and in_order else ""),
        time_s=max(end.time_s for end in ends),
        exit_code=EXIT_STOPPED if in_order else None,
        step=step,
    )


def stopped(notice: Notice, sentence: str, **fields: Any) -> Verdict:
    """Return the verdict on a run that was stopped, as `sentence` says, and can go on."""
    return Verdict(
        kind=notice.kind,
        state="preempted",
        message=sentence,
        exit_code_of_run=EXIT_STOPPED,
        signal=notice.signal,
        **fields,
    )


def _last_step(ends: Sequence[RankEnd]) -> int | None:
    return max((end.step for end in ends if end.step is not None), default=None)


def cancelled(signal_name: str, **fields: Any) -> Verdict:
    """Return the verdict on a run that its user ended."""
    return Verdict(
        kind="cancelled",
        state="cancelled",
        message=f"cancelled ({signal_name})",
        exit_code_of_run=EXIT_INTERRUPTED,
        signal=signal_name,
        **fields,
    )


def without_rank(kind: Kind, sentence: str, **fields: Any) -> Verdict:
    """Return the verdict on a failed run where no rank is to blame."""
    return Verdict(
        kind=kind, state="failed", message=sentence, exit_code_of_run=EXIT_FAILED, **fields
    )


def after_setup(verdict: Verdict, problem: str | None) -> Verdict:
    """Return a verdict on a failed run with what failed before it, in the profile's setup: the run
    may have failed because of that."""
    if problem is None or verdict.state != "failed":
        return verdict
    message = (
        f"{verdict.message}; before that, a line of the profile's setup had failed ({problem})"
    )
    return msgspec.structs.replace(verdict, message=message)


# Sentences.


def place(end: RankEnd) -> str:
    return f"rank {end.rank} (node {end.node}, host {end.host})"


def at_step(end: RankEnd) -> str:
    return "" if end.step is None else f" after step {end.step}"


def _cause(end: RankEnd) -> tuple[Kind, str]:
    """Return the kind of the verdict on a rank, and why it ended in words."""
    report = end.report
    kind: Kind = "exit"
    if report.out_of_memory:
        kind, why = "out_of_memory", f"out of memory: {report.lack or report.text}"
    elif is_out_of_memory(end):
        kind, why = "out_of_memory", f"out of memory: {_exception(report)}"
    elif end.signal == "SIGKILL":
        kind = "signal"
        why = "killed by SIGKILL, not by hpcdist (by hand, or by the kernel for lack of memory)"
    elif end.signal is not None:
        kind, why = "signal", f"killed by {end.signal}"
    elif report.exception is not None:
        kind, why = "exception", _exception(report)
    elif end.exit_code == 0:
        why = "exited with code 0 before its workload was done (os._exit?)"
    elif end.exit_code == EXIT_STOPPED:
        why = f"exited with code {EXIT_STOPPED}, to stop, without having been asked to"
    else:
        why = f"exited with code {end.exit_code}"
        why += f": {_one_line(report.text)}" if report.text else ""
    if _SIZES_DIFFER.search(report.text):  # it got more from another rank than it has room for
        why += (
            "; the ranks put tensors of different sizes or types into one collective operation, "
            "or began different ones"
        )
    return kind, why


def _exception(report: ErrorReport) -> str:
    text = _one_line(_without_frames(report.text))
    if is_own_error(report.exception):
        return text  # it says in words what is wrong, and what to do
    said = f"{report.exception}: {text}" if text else str(report.exception)
    if report.exception == "bdb.BdbQuit" or text == "EOF when reading a line":
        said += "; ranks have no keyboard: hpcdist submit --debug runs a single one with yours"
    if "in Lightning, but the product" in text:  # it was given another number of ranks
        said += (
            '; write devices=int(os.environ["LOCAL_WORLD_SIZE"]), '
            'num_nodes=int(os.environ["GROUP_WORLD_SIZE"])'
        )
    return said


def _one_line(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "..."


def _without_frames(message: str) -> str:
    """Return a message that has the traceback of another process or thread in it (of a DataLoader's
    worker, of torch.multiprocessing), with that traceback's last words in its place."""
    before, mark, trace = message.partition(_TRACEBACK)
    if not mark:
        return message
    raised = [line for line in trace.splitlines() if line and not line[0].isspace()]
    if not raised:
        return message
    where = before.rstrip().removesuffix("Original").rstrip().rstrip(".:")
    return f"{where}: {raised[-1]}" if where else raised[-1]
