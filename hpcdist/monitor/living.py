"""Asking the agents of a living run; their stacks, put in order; where a rank is, to attach to."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, UserError
from hpcdist.base.progress import poll
from hpcdist.monitor.states import run_conditions
from hpcdist.runs import requests
from hpcdist.runs.events import read_events
from hpcdist.runs.remote import is_remote
from hpcdist.runs.run import Run, check_own
from hpcdist.schedulers import load_scheduler

_BEYOND_S = 10.0
"""Beyond the request's own limit, for node 0's agent to look at the file and to write another."""
_LAUNCHER = "/hpcdist/workloads/rank_process.py"
_STARTERS = ("/hpcdist/agent/", "/hpcdist/workloads/", "runpy.py", "<frozen runpy>")
_LEAST_WAIT_S = 3.0
"""Younger operations say nothing: ranks that step reach them one after the other."""


def ask(
    run: Run, request: requests.Request, *, on_wait: Callable[[float], None] = lambda _: None
) -> requests.Answer:
    """Return the answer of a run's agents. `on_wait` is called with the seconds so far.

    Raises UserError where the run is not running, and HpcdistError where nobody answers.
    """
    check_own(run.path, "profile" if request.profiled_steps else "stacks")
    check_living(run, request.ranks or ())
    begin_s = time.monotonic()

    def look() -> requests.Answer | None:
        on_wait(time.monotonic() - begin_s)
        if (answer := requests.take_answer(run, request)) is None:
            _check_verdict(run)
        return answer

    try:
        requests.send(run, request)
        answer = poll(look, interval_s=0.2, limit_s=request.limit_s + _BEYOND_S)
    except OSError as error:
        raise HpcdistError(f"run {run.id} cannot be asked: {files.reason(error)}") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise HpcdistError(f"the answer is not what an agent writes: {error}") from None
    finally:
        run.answer_file(request.id).unlink(missing_ok=True)
    if answer is None:
        waited_s = time.monotonic() - begin_s
        raise _silence(run, f"the agent of node 0 did not answer within {waited_s:.0f} s")
    if answer.refusal is not None:
        raise UserError(
            f"run {run.id} cannot answer now: {answer.refusal}", hint="try again in some seconds"
        )
    return answer


def check_living(run: Run, ranks: Sequence[int]) -> None:
    """Raise UserError where a run is not running, or not where this machine sees its files, or has
    not all of these ranks."""
    _check_verdict(run)
    scheduler = run.read_scheduler()
    if is_remote(run) or (scheduler and not load_scheduler(scheduler).shares_files):
        raise UserError(
            f"run {run.id} cannot be asked from here: its nodes have no files in common with this "
            "machine",
            hint="hpcdist logs and hpcdist summary fetch what it has published",
        )
    if not run.has_started():
        raise UserError(_silence(run, "its agents have not started yet").message)
    num_ranks = run.spec.outline.num_ranks
    if too_large := [rank for rank in ranks if rank >= num_ranks]:
        raise UserError(f"run {run.id} has no rank {too_large[0]}: its last is {num_ranks - 1}")


def _check_verdict(run: Run) -> None:
    if files.is_there(run.verdict_file):
        verdict = run.read_verdict()
        how = f": {verdict.message}" if verdict and verdict.message else ""
        raise UserError(f"run {run.id} is not running, it has ended{how}")


def _silence(run: Run, what: str) -> HpcdistError:
    """Return the reason why nobody answers, as far as the scheduler knows it."""
    condition = run_conditions([run])[run.id]
    why = f": {condition.reason}" if condition.reason else ""
    if condition.state not in ("running", "unknown"):
        return UserError(f"run {run.id} is not running, it is {condition.state}{why}")
    return HpcdistError(
        f"run {run.id} is {condition.state}{why}; {what}",
        hint=f"a node may be stopped, or its file system stall; see {run.logs_folder}",
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


def find_living_rank(run: Run, rank: int) -> RankStart:
    """Return where a rank of a living run is. Raises UserError where there is none."""
    check_living(run, [rank])
    return find_rank(run, rank, max(0, run.newest_attempt()))


def find_rank(run: Run, rank: int, attempt: int) -> RankStart:
    """Return where a rank of a run is. Raises UserError where it has not started."""
    try:
        return msgspec.convert(read_events(run.event_file(rank, attempt))[0], RankStart)
    except (OSError, IndexError, msgspec.ValidationError):
        raise UserError(f"rank {rank} of run {run.id} has not started yet") from None


_Stack = tuple[str | None, tuple[requests.Frame, ...], str | None]
"""Name of a thread, its frames, and why there are no others."""


class RankView(msgspec.Struct, frozen=True, kw_only=True):
    """One rank, with its place, and its newest collective operation."""

    node: int
    host: str
    of: requests.RankStacks
    newest: requests.Operation | None = None
    group: str = "0"
    """Name of its process group."""


class StackGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One stack, and the ranks whose thread has it."""

    ranks: list[int]
    thread: str | None = None
    """Name of the thread; None for the main one."""
    frames: list[requests.Frame]
    """Innermost first, without those of how the rank was started."""
    note: str | None = None
    """Why there is none, or less than there should be."""


class StacksView(msgspec.Struct, frozen=True, kw_only=True):
    """The whole picture."""

    attempt: int
    time_s: float
    world_size: int
    finding: str | None = None
    """A sentence on how the ranks stand to each other, where some wait for others."""
    blamed: int | None = None
    groups: list[StackGroup] = []
    """First those of main threads: that of the rank to blame, then the rarest ones."""
    ranks: list[RankView] = []
    absent: list[int] = []
    """Ranks that have ended, or not begun."""
    troubles: dict[int, str] = {}
    """Why nodes have told nothing, by node."""


def view_stacks(answer: requests.Answer, wanted: Iterable[int] | None = None) -> StacksView:
    """Return the picture that the agents' answer gives; of these ranks, where only some were
    asked."""
    views = sorted(_views(answer), key=lambda view: view.of.rank)
    expected = set(range(answer.world_size) if wanted is None else wanted)
    nodes = sorted({*answer.reports, *answer.troubles})  # others are lost
    per_node = max(1, answer.world_size // max(1, len(nodes)))
    mute = {place for place, node in enumerate(nodes) if node in answer.troubles}
    silent = {rank for rank in expected if rank // per_node in mute}
    finding, blamed = None, None
    if wanted is None:  # how the ranks stand to each other, and the one to blame
        told = {view.of.rank: view.of.collectives for view in views}
        living = told.keys() | silent
        found = requests.find_standstills(told, range(answer.world_size), living)
        old = [one for one in found if answer.time_s - one.operation.begun_s > _LEAST_WAIT_S]
        places = {view.of.rank: requests.place_of(_main_frames(view))[0] for view in views}
        lines = {rank: where for rank, where in places.items() if where is not None}
        finding = requests.describe(old, lines)
        blamed = requests.to_blame(old)
    stacks: defaultdict[_Stack, set[int]] = defaultdict(set)
    for view in views:
        stacks[None, tuple(_main_frames(view)), view.of.note].add(view.of.rank)
        for thread in view.of.threads[1:]:
            if thread.frames:
                stacks[thread.name or "unnamed", tuple(thread.frames), None].add(view.of.rank)
    groups = [
        StackGroup(ranks=sorted(ranks), thread=name, frames=list(frames), note=note)
        for (name, frames, note), ranks in stacks.items()
    ]
    groups.sort(key=lambda one: (bool(one.thread), blamed not in one.ranks, len(one.ranks)))
    return StacksView(
        attempt=answer.attempt,
        time_s=answer.time_s,
        world_size=answer.world_size,
        finding=finding,
        blamed=blamed,
        groups=groups,
        ranks=views,
        absent=sorted(expected - silent - {view.of.rank for view in views}),
        troubles=answer.troubles,
    )


def _views(answer: requests.Answer) -> Iterable[RankView]:
    there = {n: r for n, r in answer.reports.items() if isinstance(r, requests.NodeStacks)}
    for node, report in there.items():
        for rank in report.ranks:
            recorded = rank.collectives.groups if rank.collectives is not None else []
            begun = [(group.name, one) for group in recorded for one in group.operations]
            begun.sort(key=lambda each: (each[1].begun_s, each[1].number))
            name, newest = begun[-1] if begun else ("0", None)
            yield RankView(node=node, host=report.host, of=rank, newest=newest, group=name)


def _main_frames(view: RankView) -> list[requests.Frame]:
    """Return the calls of a rank's main thread without those of how it was started; all where no
    other is."""
    frames = view.of.threads[0].frames if view.of.threads else []
    end = next((i for i, one in enumerate(frames) if one.file.endswith(_LAUNCHER)), 0)
    while end and any(one in frames[end - 1].file for one in _STARTERS):
        end -= 1
    return frames[:end] or frames
