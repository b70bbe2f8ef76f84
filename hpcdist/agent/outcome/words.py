"""The sentences of verdicts, made of what the other modules of this package have decided."""

from __future__ import annotations

import errno
import os
import re
import time
from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from hpcdist.agent.messages import HangReport
from hpcdist.base.errors import EXIT_STOPPED, HpcdistError
from hpcdist.base.text import listed, number_of
from hpcdist.machine.process import MORE_DESCRIPTORS
from hpcdist.runs.verdict import Kind, RankEnd, Verdict

SIZES_DIFFER = re.compile(
    r"preamble\.length|received data size doesn't match|collective mismatch", re.IGNORECASE
)
"""Messages of gloo to a rank that got more from a peer than it has room for."""
GOES_ON = (
    "a script is started again after its limit if it leaves with 75 when record.should_stop() says "
    "so, or if it records its steps and has saved a checkpoint in HPCDIST_RUN_DIR; hpcdist resume "
    "starts it again by hand"
)
GOES_ON_WITH = "the run goes on with "
_NO_GPU = "this node shows no GPU: let the script choose cpu and gloo there, or ask for GPUs"
_HINTS = {
    "EOF when reading a line": "ranks have no keyboard: give the value as an argument, after --",
    "Found no NVIDIA driver": _NO_GPU,
    "Torch not compiled with CUDA": _NO_GPU,
    "No CUDA GPUs are available": _NO_GPU,
    "requires at least one CUDA device": _NO_GPU,
    "only supported with GPUs": _NO_GPU,
}
"""A part of an exception's message -> what to do."""
_OWN_ERRORS = f"{HpcdistError.__module__}."
_LONGEST_TEXT = 300  # of an exception in a sentence; verdict.json has all of it
_TRACEBACK = "Traceback (most recent call last):"


def failed_first(end: RankEnd, kind: Kind, early: Sequence[int], later: Sequence[int]) -> str:
    """Return which rank failed first, and why; `early` are ranks that had ended well, where all
    that failed are victims; `later` failed too."""
    sentence = f"{_place(end)} failed first{_at_step(end)}: {_why(end, kind)}"
    if SIZES_DIFFER.search(end.report.text):
        sentence += (
            "; the ranks put tensors of different sizes or types into one collective operation, "
            "or began different ones"
        )
    if end.report.lack and not end.report.out_of_memory:
        sentence += f"; {end.report.lack}"
    if os.strerror(errno.EMFILE) in end.report.text:
        sentence += f"; {MORE_DESCRIPTORS}"
    if early:
        sentence += (
            f"; {listed(early)} had already ended well, so the ranks do not take part in the same "
            "collectives"
        )
    return sentence + (f"; {listed(sorted(later))} failed too, later" if later else "")


def remark_on(ends: Sequence[RankEnd]) -> str | None:
    """Return which of the ranks that ended well hung or crashed after their workload, or may have
    recorded less than they did."""
    by_signal = {end.rank: end.teardown for end in ends if end.teardown is not None}
    lacks = {end.rank: end.report.lack for end in ends if end.report.lack}
    remarks = []
    for name in sorted(set(by_signal.values())):
        who = listed([rank for rank, one in by_signal.items() if one == name])
        how = "hung" if name == "SIGKILL" else f"crashed ({name})"
        remarks.append(f"hpcdist's end of {who} {how}, after the work was done")
    if lacks:
        remarks.append(f"what {listed([*lacks])} recorded may be cut: {next(iter(lacks.values()))}")
    return ", and ".join(remarks) or None


def done(restarts: int, remark: str | None) -> str:
    again = f" after {number_of(restarts, 'restart')}" if restarts else ""
    return f"every rank ended well{again}" + (f"; {remark}" if remark else "")


def size(num_left: int, num_nodes: int, since_s: float) -> str:
    """Return how many nodes a run has left since when."""
    since = time.strftime("%H:%M", time.localtime(since_s))
    return f"{num_left} of {number_of(num_nodes, 'node')} since {since}"


def has_ended(end: RankEnd) -> str:
    return f"{_place(end)} has ended{_at_step(end)}"


def hangs(
    first: HangReport, others: Sequence[HangReport], finding: str | None, silence: str | None
) -> str:
    """Return where the rank is for which the others wait, and what is found out about them.

    `silence` says since when no rank has worked, for a run that only seems to hang.
    """
    how = "seems to hang" if silence else "hangs"
    sentence = f"{_place(first.end)} {how}{_at_step(first.end)}"
    if silence is None:
        sentence += f": no sign of work for {first.silent_s:.0f} s"
    if first.state == "T":
        sentence += ", and is stopped (SIGSTOP?)"
    elif first.state == "Z":
        sentence += ", has ended, and the process that forks the ranks, which would say how, "
        sentence += "is silent (SIGSTOP?)"
    elif first.where is None:
        sentence += ", and does not answer"
    else:
        sentence += f", in {first.where}"
        sentence += f", in {first.calls}" if first.calls and not first.is_waiting else ""
        if finding is not None and first.collectives is None:  # others have answered
            sentence += ", and none of its threads can run Python (C code holds Python's lock)"
    waiting = [(one.calls, one.where) for one in others if one.is_waiting and one.calls]
    if finding is not None:
        sentence += f"; {finding}"
    elif first.is_waiting:
        sentence += "; all ranks wait for each other (logs/*.stacks has their stacks)"
    elif waiting:
        (calls, where), _ = Counter(waiting).most_common(1)[0]
        there = sorted(one.end.rank for one in others if (one.calls, one.where) == (calls, where))
        verb = "waits" if len(there) == 1 else "wait"
        sentence += f"; {listed(there)} {verb} in {calls} (at {where})"
    return sentence + (f"; {silence}" if silence else "")


def no_progress(attempts: Sequence[int], last: str | None, step: int | None) -> str:
    """Return why a job is not started again; `attempts` began its lives in vain, `step` is that of
    its newest checkpoint, None for a script. docs/terms/exit-codes.md says what helps."""
    missing = "a newly recorded step or a stop with exit code 75"
    if step is not None:
        missing = f"a checkpoint newer than step {step}"
    because = f" (the last: {last})" if last else ""
    return (
        f"no progress in {len(attempts)} starts: those of {listed(attempts, 'attempt')} ended "
        f"without {missing}{because}; it is not started again"
    )


def lost_with_node(node: int | None, host: str | None) -> str:
    """Return why an attempt ended whose agents are gone; None: there were several."""
    by = "its agents" if host is None else f"the agent of node {node} (host {host})"
    return f"no verdict was left by {by} before the job was started again: lost with a node"


def add(verdict: Verdict, sentence: str) -> Verdict:
    return replace(verdict, message=f"{verdict.message}; {sentence}")


def not_requeued(verdict: Verdict, reason: Exception | str) -> Verdict:
    return add(verdict, f"it could not be requeued: {reason}")


def _place(end: RankEnd) -> str:
    return f"rank {end.rank} (node {end.node}, host {end.host})"


def _at_step(end: RankEnd) -> str:
    return "" if end.step is None else f" after step {end.step}"


def _why(end: RankEnd, kind: Kind) -> str:
    report = end.report
    if report.out_of_memory:
        return f"out of memory: {report.lack or report.text}"
    if end.signal is not None:
        by = ", not by hpcdist (by hand, or by the kernel for lack of memory)"
        return f"killed by {end.signal}{by if end.signal == 'SIGKILL' else ''}"
    text = _short(_without_frames(report.text))
    if report.exception is not None:
        # Our own errors say in words what is wrong, and what to do.
        is_own, what = report.exception.startswith(_OWN_ERRORS), report.exception
        said = text if is_own else ": ".join(filter(None, [what, text]))
        said = "; ".join([said, *dict.fromkeys(_HINTS[part] for part in _HINTS if part in text)])
        return f"out of memory: {said}" if kind == "out_of_memory" else said
    if end.exit_code == 0:
        return "exited with code 0 before its workload was done (os._exit?)"
    if end.exit_code == EXIT_STOPPED:
        return f"exited with code {EXIT_STOPPED}, to stop, without having been asked to"
    return f"exited with code {end.exit_code}" + (f": {text}" if text else "")


def _short(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "..."


def _without_frames(message: str) -> str:
    """Return a message that has the traceback of another process or thread in it (of a DataLoader's
    worker, of torch.multiprocessing), with that traceback's last words in its place."""
    before, _, trace = message.partition(_TRACEBACK)
    raised = [line for line in trace.splitlines() if line and not line[0].isspace()]
    if not raised:
        return message
    where = before.rstrip().removesuffix("Original").rstrip().rstrip(".:")
    return f"{where}: {raised[-1]}" if where else raised[-1]
