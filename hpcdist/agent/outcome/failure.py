"""From how the ranks ended to the verdict: which rank failed first, and which are its victims.

A rank whose collective broke because a peer was gone is a victim, although its exception may come
before the death of its peer is seen. Of the others, the earliest is the cause.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from hpcdist.agent.outcome.shortage import parse_shortage, shortage_sentence, tells_of_shortage
from hpcdist.base.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_STOPPED, HpcdistError
from hpcdist.base.text import listed, number_of
from hpcdist.runs.run import rank_log
from hpcdist.runs.verdict import Kind, RankEnd, Verdict

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
        """SIGTERM is all that many sites send at a preemption; LSF sends SIGINT before it."""
        return "preempted" if self.signal in {"SIGTERM", "SIGINT"} else "time_limit"

    @property
    def before_what(self) -> str:
        """For a sentence; what the signal was for, the scheduler is asked at the end."""
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
    if notice.signal == "SIGINT" and end.exception == "KeyboardInterrupt":
        return True
    if notice.signal is None or end.signal is None:
        return False
    return end.signal in {notice.signal, "SIGTERM"}


def is_victim(end: RankEnd) -> bool:
    """Return True where a rank ended only because others did."""
    if is_out_of_memory(end):
        return False
    if end.stopped:
        return True
    if end.signal == "SIGABRT":  # NCCL's watchdog raises nothing: it logs why, and aborts
        return bool(_PEER_IS_GONE.search(end.message or ""))
    if end.exception is None:
        return False
    if end.exception.rpartition(".")[2] in _TORCH_NETWORK_ERRORS:
        return True
    is_runtime_error = end.exception in {"RuntimeError", "ConnectionError", "TimeoutError"}
    return is_runtime_error and bool(_PEER_IS_GONE.search(end.message or ""))


def is_own_error(exception: str | None) -> bool:
    """Return True for a type of hpcdist's exceptions: its words say enough without a traceback."""
    return exception is not None and exception.startswith(_OWN_ERRORS)


def is_cut_short(ends: Sequence[RankEnd], notice: Notice) -> bool:
    """Return True where ranks were ended because they had not stopped in time after the notice:
    none stopped in good order, and none failed by itself."""
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


def decide(
    ends: Sequence[RankEnd],
    *,
    attempt: int,
    restarts: int,
    notice: Notice | None = None,
    saves: bool = False,
) -> Verdict:
    """Return the verdict on an attempt from how all its ranks ended.

    `notice` had been given before; `saves`: a rank that stops has saved a checkpoint.
    """
    failures = sorted((end for end in ends if is_failure(end)), key=lambda end: end.time_s)
    if notice is not None:
        if _is_stopped(failures, notice):
            return stopped(ends, notice, attempt=attempt, restarts=restarts, saves=saves)
        failures = [end for end in failures if not is_stop(end, notice)]
    if not failures:
        return done(
            attempt=attempt,
            restarts=restarts,
            time_s=max(end.time_s for end in ends),
            remark=_teardown_remark(ends),
        )
    causes = [end for end in failures if not is_victim(end)]
    if not causes and (leaver := _early_leaver(ends)) is not None:
        causes, failures = [leaver], [leaver, *failures]
    first = (causes or failures)[0]
    also_failed = [end.rank for end in causes[1:]]
    victims = sorted(end.rank for end in failures if end is not first and end not in causes[1:])
    early = [end.rank for end in ends if not is_failure(end)] if not causes else []
    return verdict_on(
        first,
        kind=_kind(first),
        sentence=_sentence(first, early),
        victims=victims,
        also_failed=sorted(also_failed),
        attempt=attempt,
        restarts=restarts,
    )


def verdict_on(
    first: RankEnd,
    *,
    kind: Kind,
    sentence: str,
    victims: Sequence[int],
    also_failed: Sequence[int] = (),
    attempt: int,
    restarts: int,
) -> Verdict:
    """Return the verdict on a failed run that names one rank."""
    return Verdict(
        kind=kind,
        state="failed",
        message=sentence + _others(victims, also_failed),
        exit_code_of_run=EXIT_FAILED,
        rank=first.rank,
        local_rank=first.local_rank,
        node=first.node,
        host=first.host,
        exit_code=first.exit_code,
        signal=first.signal,
        exception=first.exception,
        exception_message=first.message,
        traceback=first.traceback,
        step=first.step,
        victims=list(victims),
        also_failed=list(also_failed),
        attempt=attempt,
        restarts=restarts,
        time_s=first.time_s,
        log=rank_log(first.rank, attempt),
    )


def done(*, attempt: int, restarts: int, time_s: float, remark: str | None = None) -> Verdict:
    """Return the verdict on a run whose ranks all ended well."""
    again = f" after {number_of(restarts, 'restart')}" if restarts else ""
    return Verdict(
        kind="done",
        state="done",
        message=f"every rank ended well{again}" + (f"; {remark}" if remark else ""),
        remark=remark,
        exit_code_of_run=EXIT_DONE,
        exit_code=0,
        attempt=attempt,
        restarts=restarts,
        time_s=time_s,
    )


def stopped(
    ends: Sequence[RankEnd], notice: Notice, *, attempt: int, restarts: int, saves: bool
) -> Verdict:
    """Return the verdict on ranks that stopped before their end, as they were asked to."""
    in_order = [end for end in ends if end.exit_code == EXIT_STOPPED]
    steps = [end.step for end in ends if end.step is not None]
    if not in_order:
        what = "ended " + (
            notice.before_what
            if notice.kind == "preempted"
            else f"by {notice.signal}, {notice.before_what}"
        )
    elif steps:
        what = f"stopped at step {max(steps)} {notice.before_what}"
    else:
        what = f"stopped {notice.before_what}"
    return stopped_without_ranks(
        notice,
        what + ("; a checkpoint is saved" if saves and in_order else ""),
        time_s=max(end.time_s for end in ends),
        attempt=attempt,
        restarts=restarts,
        exit_code=EXIT_STOPPED if in_order else None,
        step=max(steps, default=None),
    )


def stopped_without_ranks(
    notice: Notice,
    sentence: str,
    *,
    time_s: float,
    attempt: int,
    restarts: int,
    exit_code: int | None = None,
    step: int | None = None,
) -> Verdict:
    """Return the verdict on a run that was stopped, as `sentence` says, and can go on."""
    return Verdict(
        kind=notice.kind,
        state="preempted",
        message=sentence,
        exit_code_of_run=EXIT_STOPPED,
        exit_code=exit_code,
        signal=notice.signal,
        step=step,
        attempt=attempt,
        restarts=restarts,
        time_s=time_s,
    )


def cut_short(
    ends: Sequence[RankEnd], notice: Notice, *, attempt: int, restarts: int, time_s: float
) -> Verdict:
    """Return the verdict on ranks that were warned and did not stop, until SIGTERM came."""
    return Verdict(
        kind=notice.kind,
        state="failed",
        message=(
            f"ended by SIGTERM; the ranks had been asked to stop by {notice.signal}, and did not"
        ),
        exit_code_of_run=EXIT_FAILED,
        signal="SIGTERM",
        step=max((end.step for end in ends if end.step is not None), default=None),
        attempt=attempt,
        restarts=restarts,
        time_s=time_s,
    )


def cancelled(signal_name: str, *, attempt: int, restarts: int, time_s: float) -> Verdict:
    """Return the verdict on a run that its user ended."""
    return Verdict(
        kind="cancelled",
        state="cancelled",
        message=f"cancelled ({signal_name})",
        exit_code_of_run=EXIT_INTERRUPTED,
        signal=signal_name,
        attempt=attempt,
        restarts=restarts,
        time_s=time_s,
    )


def without_rank(
    kind: Kind,
    sentence: str,
    *,
    time_s: float,
    attempt: int = 0,
    restarts: int = 0,
    **where: object,
) -> Verdict:
    """Return the verdict on a failed run where no rank is to blame; `where` may give node, host and
    traceback."""
    return Verdict(
        kind=kind,
        state="failed",
        message=sentence,
        exit_code_of_run=EXIT_FAILED,
        attempt=attempt,
        restarts=restarts,
        time_s=time_s,
        **where,  # type: ignore[arg-type]
    )


def place(end: RankEnd) -> str:
    """Return a rank and its place, for a sentence."""
    return f"rank {end.rank} (node {end.node}, host {end.host})"


def at_step(end: RankEnd) -> str:
    """Return the progress of the rank, for a sentence."""
    return "" if end.step is None else f" after step {end.step}"


def _is_stopped(failures: Sequence[RankEnd], notice: Notice) -> bool:
    """Return True where some ranks stopped, and no other failed by itself."""
    stops = [end for end in failures if is_stop(end, notice)]
    return bool(stops) and all(is_victim(end) for end in failures if end not in stops)


def _early_leaver(ends: Sequence[RankEnd]) -> RankEnd | None:
    """Return the first of the ranks that left with 0 before others could do without them."""
    leavers = [end for end in ends if end.left_early and not end.stopped]
    return min(leavers, key=lambda end: end.time_s, default=None)


def _teardown_remark(ends: Sequence[RankEnd]) -> str | None:
    """Return what happened to ranks after their workload had ended well."""
    hung = sorted(end.rank for end in ends if end.teardown == "SIGKILL")
    crashed = [end for end in ends if end.teardown not in {None, "SIGKILL"}]
    remarks = []
    if hung:
        remarks.append(f"{listed(hung)} hung at the end, after the work was done")
    if crashed:
        who = listed(sorted(end.rank for end in crashed))
        remarks.append(f"{who} crashed at the end ({crashed[0].teardown}), after the work was done")
    return ", and ".join(remarks) or None


def is_out_of_memory(end: RankEnd) -> bool:
    """Return True where a rank ended for a lack of memory, on the host or on the GPU."""
    return end.out_of_memory or _looks_out_of_memory(end)


def _kind(end: RankEnd) -> Kind:
    if is_out_of_memory(end):
        return "out_of_memory"
    if end.signal is not None:
        return "signal"
    return "exit" if end.exception is None else "exception"


def _looks_out_of_memory(end: RankEnd) -> bool:
    return end.exception is not None and tells_of_shortage(end.exception, end.message or "")


def _sentence(first: RankEnd, early: Sequence[int]) -> str:
    what = f"{place(first)} failed first{at_step(first)}: {_cause(first)}"
    if early and is_victim(first):
        what += (
            f"; {listed(early)} had already ended well, so the ranks do not take part in the same "
            "collectives"
        )
    return what


def _cause(end: RankEnd) -> str:
    if end.signal == "SIGKILL":
        return _sigkill(end)
    if end.signal is not None:
        return f"killed by {end.signal}"
    if end.exception is not None:
        return _shortage(end) if is_out_of_memory(end) else _exception(end)
    if end.exit_code == 0:
        return "left with exit code 0 before its workload was done (os._exit?)"
    if end.exit_code == EXIT_STOPPED:
        return f"left with exit code {EXIT_STOPPED}, to stop, without having been asked to"
    said = f": {_one_line(end.message)}" if end.message else ""
    return f"left with exit code {end.exit_code}{said}"


def _exception(end: RankEnd) -> str:
    text = _one_line(_without_frames(end.message or ""))
    if is_own_error(end.exception):
        return text  # it says in words what is wrong, and what to do
    return f"{end.exception}: {text}" if text else str(end.exception)


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


def _shortage(end: RankEnd) -> str:
    found = parse_shortage(end.message or "")
    if found is not None and found.gpu is None and found.free_bytes is None:
        found = msgspec.structs.replace(found, free_bytes=end.free_bytes)
    what = _exception(end) if found is None else shortage_sentence(found)
    return f"out of memory: {what}{_advice(end)}"


def _advice(end: RankEnd) -> str:
    return f"; {end.advice}" if end.advice else ""


def _sigkill(end: RankEnd) -> str:
    if end.out_of_memory:
        return f"out of memory: {end.message or 'killed by the kernel'}{_advice(end)}"
    return "killed by SIGKILL, not by hpcdist (by hand, or by the kernel for lack of memory)"


def _others(victims: Sequence[int], also_failed: Sequence[int]) -> str:
    text = ""
    if also_failed:
        text += f"; {listed(also_failed)} failed too, later"
    if victims:
        text += f"; {listed(victims)} ended because of it"
    return text
