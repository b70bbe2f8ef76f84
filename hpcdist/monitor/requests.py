"""Asking the agents of a living run, and waiting for their answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, UserError
from hpcdist.base.polling import poll
from hpcdist.monitor.states import OPEN_STATES, run_conditions
from hpcdist.runs.events import decode_event, read_lines
from hpcdist.runs.remote import is_remote
from hpcdist.runs.requests import Answer, AnyRequest, send, take_answer, withdraw
from hpcdist.runs.run import Run, check_own
from hpcdist.schedulers import load_scheduler

_POLL_S = 0.2
_BEYOND_S = 10.0
"""Beyond the request's own limit, for node 0's agent to look at the file and to write another."""
_LOOK_AT_RUN_S = 2.0


def check_ranks(run: Run, ranks: Sequence[int] | None) -> None:
    """Raise UserError where a run has not all of these ranks."""
    num_ranks = run.read_outline().num_ranks
    if too_large := [rank for rank in ranks or () if rank >= num_ranks]:
        raise UserError(f"run {run.id} has no rank {too_large[0]}: its last is {num_ranks - 1}")


def ask(
    run: Run, request: AnyRequest, *, on_wait: Callable[[float], None] = lambda _: None
) -> Answer:
    """Return the answer of a run's agents. `on_wait` is called with the seconds so far.

    Raises UserError where the run is not running, and HpcdistError where nobody answers.
    """
    check_own(run.path, str(request.__struct_config__.tag))
    check_living(run)
    check_ranks(run, request.ranks)
    try:
        return _send_and_wait(run, request, on_wait)
    finally:
        withdraw(run, request)


def _send_and_wait(run: Run, request: AnyRequest, on_wait: Callable[[float], None]) -> Answer:
    try:
        send(run, request)
    except OSError as error:
        raise HpcdistError(f"run {run.id} cannot be asked: {files.reason(error)}") from None
    begin_s = time.monotonic()
    looked_s = begin_s

    def look() -> Answer | None:
        nonlocal looked_s
        now_s = time.monotonic()
        on_wait(now_s - begin_s)
        if now_s - looked_s > _LOOK_AT_RUN_S:
            looked_s = now_s
            _check_verdict(run)
        return take_answer(run, request)

    try:
        answer = poll(look, interval_s=_POLL_S, limit_s=request.limit_s + _BEYOND_S)
    except OSError as error:
        raise HpcdistError(f"the answer cannot be read: {files.reason(error)}") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise HpcdistError(f"the answer is not what an agent writes: {error}") from None
    if answer is None:
        raise _silence(run, time.monotonic() - begin_s)
    if answer.refusal is not None:
        raise UserError(
            f"run {run.id} cannot answer now: {answer.refusal}", hint="try again in some seconds"
        )
    return answer


def check_living(run: Run) -> None:
    """Raise UserError where a run is not running, or not where this machine sees its files."""
    _check_verdict(run)
    scheduler = run.read_scheduler()
    if is_remote(run) or (scheduler and not load_scheduler(scheduler).shares_files):
        raise UserError(
            f"run {run.id} cannot be asked from here: its nodes have no files in common with this "
            "machine",
            hint="hpcdist logs and hpcdist summary fetch what it has published",
        )
    if not run.has_started():
        raise _silence(run, None)


def _check_verdict(run: Run) -> None:
    if files.is_there(run.verdict_file):
        verdict = run.read_verdict()
        how = f": {verdict.message}" if verdict and verdict.message else ""
        raise UserError(f"run {run.id} is not running, it has ended{how}")


def _silence(run: Run, waited_s: float | None) -> HpcdistError:
    """Return the reason why nobody answers, as far as the scheduler knows it."""
    condition = run_conditions([run])[run.id]
    why = f": {condition.reason}" if condition.reason else ""
    if condition.state == "pending":
        return UserError(f"run {run.id} is not running, it is pending{why}")
    if condition.state not in OPEN_STATES:
        return UserError(f"run {run.id} is not running, it is {condition.state}{why}")
    if waited_s is None:
        return UserError(f"run {run.id} has not started yet{why}")
    log = run.agent_log_file(0)  # it is there once the agent has had something to say
    where = f"; its log is {log}" if files.is_there(log) else ""
    return HpcdistError(
        f"the agent of node 0 did not answer within {waited_s:.0f} s; run {run.id} is "
        f"{condition.state}{why}",
        hint=f"its node may be stopped, or its file system may stall{where}",
    )


class RankStart(msgspec.Struct, frozen=True, kw_only=True):
    """The first event of a rank, as far as it is of use here."""

    pid: int
    host: str
    """The scheduler's name of its node."""
    node: int
    local_rank: int
    world_size: int
    local_world_size: int


def find_rank(run: Run, rank: int, attempt: int) -> RankStart:
    """Return where a rank of a run is. Raises UserError where it has not started."""
    try:
        lines = next(read_lines(run.event_file(rank, attempt)), b"")
        return msgspec.convert(decode_event(lines.split(b"\n", 1)[0]), RankStart)
    except (OSError, msgspec.ValidationError):
        raise UserError(f"rank {rank} of run {run.id} has not started yet") from None
