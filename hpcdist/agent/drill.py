"""The disturbances of a drill, as the agents of its run bring them about.

All are what really happens to a job: signals to its ranks and its agent, the signal by which its
scheduler warns, a limit on what its ranks may write, half a checkpoint cut off. A thread of the
last node's agent brings them, one after the other, each when the ranks have come on since the last;
the agent itself knows nothing of them, and notices and judges them like any others. The agents of
other nodes take part in one alone: a disk is full for all.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hpcdist.agent.local_ranks import LocalRanks
from hpcdist.agent.node import RankOrder
from hpcdist.base import files
from hpcdist.job.spec import JobSpec, OwnCodeJob
from hpcdist.machine.process import catches, descendants, send_signal, state_letter
from hpcdist.runs.drill import (
    SavedFile,
    find_saved,
    is_listened_for,
    is_newer,
    is_own,
    journal_file,
    largest_part,
    note_listening,
    read_journal,
)
from hpcdist.runs.events import EventWriter
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Disturbance, DrillPlan

_LOOK_S = 0.05
_SCAN_S = 0.25
_SCAN_SHARE = 0.05
"""Share of the time in which folders are searched, at most."""
_SETTLE_S = 0.4
"""Work between a new checkpoint and the disturbance: something is to be lost."""
_STEPS_AFTER = 2
_IMPATIENCE = 0.35
"""Share of the patience with ranks that have not saved anything for a whole one."""
_STOPPED_S, _RUNNING_S = 0.09, 0.03
"""A slow rank: stopped for three quarters of the time."""
_DEAF_S = 3.0
"""Patience with ranks that do not listen for the warning."""


@dataclass
class Drill:
    """The drill of one agent, in a run that was made for it."""

    run: Run
    job: JobSpec
    plan: DrillPlan
    ranks: LocalRanks
    warning: signal.Signals
    """The signal by which the scheduler warns the agents."""
    log: Callable[[str], None]
    _stop: threading.Event = field(default_factory=threading.Event)
    _orders: Sequence[RankOrder] = ()
    _over: int = -1
    """The last attempt that was ended on purpose."""
    _thread: threading.Thread | None = None
    _saved: dict[str, SavedFile] = field(default_factory=dict)
    _scan_at: float = 0.0
    _is_saving: bool = True

    def begin(self, orders: Sequence[RankOrder]) -> None:
        """Note that an attempt begins; the first one begins the drill."""
        self._orders = orders
        if self._thread is None:
            self._thread = threading.Thread(target=self._live, daemon=True)
            self._thread.start()

    def end(self) -> None:
        self._stop.set()

    def _live(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the agent's
        self._journal = EventWriter(journal_file(self.run))
        try:
            if self._rank.node_rank == self._rank.num_nodes - 1:
                self._disturb()
            else:
                self._assist()
        except Exception as error:  # noqa: BLE001 - the run goes on, and its user is told
            self.log(f"the drill is over: {error!r}")

    def _disturb(self) -> None:
        for each in self.plan.disturbances:
            self._wait(lambda: self._attempt > self._over and bool(self.ranks.living()))
            self._await_moment(each)
            if not self._stop.is_set() and self.ranks.living():
                self._bring(each)

    # Waiting.

    @property
    def _attempt(self) -> int:
        return self._orders[0].attempt

    @property
    def _rank(self) -> RankOrder:
        """The rank that is disturbed: the last one, which is not the one that saves."""
        return self._orders[-1]

    @property
    def _pid(self) -> int | None:
        return self.ranks.living().get(self._rank.local_rank)

    def _step(self) -> int | None:
        return self.ranks.progress(self._rank.local_rank).step

    def _wait(self, is_over: Callable[[], bool], limit_s: float | None = None) -> bool:
        """Wait until something is over, the drill at the latest; False after the limit."""
        end_s = None if limit_s is None else time.monotonic() + limit_s
        while not self._stop.is_set():
            if is_over():
                return True
            if end_s is not None and time.monotonic() >= end_s:
                return False
            self._stop.wait(_LOOK_S)
        return True

    def _await_moment(self, each: Disturbance) -> None:
        """Wait until the ranks work and, where that counts, have saved a checkpoint since."""
        before = dict(self._look(at_once=True))
        patience_s = self.plan.patience_s * (1 if self._is_saving else _IMPATIENCE)
        start_s = self.plan.start_s or patience_s
        # Until the first step, whatever the start takes.
        self._wait(lambda: self._step() is not None or self._has_saved(before), start_s)
        needs_save = each.name not in {"end", "slow-rank"}
        settle_s = each.hold_s if each.name == "end" else _SETTLE_S
        if self._step() is None and not self._has_saved(before):  # it may record none
            patience_s = 0.0
        ready_s: float | None = None
        least_step: int | None = None

        def is_time() -> bool:
            nonlocal ready_s, least_step
            step, now_s = self._step(), time.monotonic()
            if ready_s is None:
                if needs_save and not self._has_saved(before):
                    return False
                if not needs_save and step is None:
                    return False
                ready_s, least_step = now_s, None if step is None else step + _STEPS_AFTER
            has_stepped = least_step is None or step is None or step >= least_step
            return now_s >= ready_s + settle_s and has_stepped

        is_saving = self._wait(is_time, patience_s + (0 if needs_save else settle_s))
        if needs_save:
            self._is_saving = is_saving

    def _has_saved(self, before: Mapping[str, SavedFile]) -> bool:
        return is_newer(self._look(), before)

    def _look(self, *, at_once: bool = False) -> dict[str, SavedFile]:
        """Return the checkpoints there are, as of a moment ago."""
        begin_s = time.monotonic()
        if at_once or begin_s >= self._scan_at:
            self._saved = find_saved(self.run, self.plan)
            took_s = time.monotonic() - begin_s
            self._scan_at = begin_s + max(_SCAN_S, took_s / _SCAN_SHARE)
        return self._saved

    # Disturbing.

    def _bring(self, each: Disturbance) -> None:
        table: dict[str, Callable[[Disturbance], None]] = {
            "kill-rank": self._kill_rank,
            "slow-rank": self._slow_rank,
            "stop-rank": self._stop_rank,
            "fill-disk": self._fill_disk,
            "warning": self._warn,
            "kill-agent": self._kill_agent,
            "damage": self._damage,
            "end": self._note,
        }
        table[each.name](each)

    def _note(self, each: Disturbance, **fields: Any) -> None:
        self._journal.write(
            "disturb",
            name=each.name,
            attempt=self._attempt,
            node=self._rank.node_rank,
            rank=self._rank.rank,
            step=self._step(),
            saved=msgspec.to_builtins(self._look(at_once=True)),
            **fields,
        )

    def _note_over(self, each: Disturbance, outcome: str) -> None:
        self._journal.write("over", name=each.name, attempt=self._attempt, outcome=outcome)

    def _kill_rank(self, each: Disturbance) -> None:
        self._note(each)
        self._kill()

    def _kill(self) -> None:
        self._over = self._attempt
        if (pid := self._pid) is not None:
            send_signal(pid, signal.SIGKILL)

    def _slow_rank(self, each: Disturbance) -> None:
        self._note(each)
        attempt, end_s = self._attempt, time.monotonic() + each.hold_s
        while time.monotonic() < end_s and self._attempt == attempt and not self._stop.is_set():
            if (pid := self._pid) is None:
                break
            send_signal(pid, signal.SIGSTOP)
            time.sleep(_STOPPED_S)
            self._let_go_on(pid)
            time.sleep(_RUNNING_S)
        self._note_over(each, "went on")

    def _stop_rank(self, each: Disturbance) -> None:
        attempt, pid = self._attempt, self._pid
        if pid is None:
            return
        self._note(each)
        send_signal(pid, signal.SIGSTOP)
        is_ended = self._wait(lambda: self._attempt > attempt or self._pid != pid, each.hold_s)
        if is_ended:
            self._over = attempt
        else:
            self._let_go_on(pid)
        self._note_over(each, "ended" if is_ended else "went on")

    def _let_go_on(self, pid: int) -> None:
        if state_letter(pid) == "T" and pid == self._pid:
            send_signal(pid, signal.SIGCONT)

    def _fill_disk(self, each: Disturbance) -> None:
        """Let no file of any rank grow beyond half of the newest checkpoint, for a while."""
        saved = self._look(at_once=True)
        if not saved:
            return
        limit = max(1, largest_part(list(saved)[-1]).stat().st_size // 2)
        attempt, pids = self._attempt, self.ranks.living()
        self._note(each, limit_bytes=limit)
        self._limit_files(limit)
        is_ended = self._wait(lambda: self.ranks.living() != pids, each.hold_s)
        if is_ended:
            self._over = attempt
        else:
            self._limit_files(resource.RLIM_INFINITY)
        self._note_over(each, "ended" if is_ended else "went on")

    def _listens(self) -> bool:
        """Return whether a rank of this node listens for the warning."""
        return not isinstance(self.job, OwnCodeJob) or any(
            self.ranks.progress(local_rank).ignores_sigterm or catches(pid, signal.SIGUSR2)
            for local_rank, pid in self.ranks.living().items()
        )

    def _assist(self) -> None:
        """Tell the last node's agent whether ranks of this node listen for the warning, and limit
        them as that does its own."""
        limited, noted = False, -1
        while not self._stop.wait(_SCAN_S):
            if noted != self._attempt and self._listens():
                noted = self._attempt
                note_listening(self.run, noted, self._rank.node_rank)
            files.refresh(self.run.events_folder)
            entries = [
                entry
                for entry in read_journal(self.run)
                if entry.name == "fill-disk" and entry.attempt == self._attempt
            ]
            if entries and (entries[-1].event == "disturb") != limited:
                limited = not limited
                limit = entries[-1].limit_bytes if limited else None
                self._limit_files(limit or resource.RLIM_INFINITY)

    def _limit_files(self, limit: int) -> None:
        for pid in self.ranks.living().values():
            for each in (pid, *descendants(pid)):
                try:
                    _, hard = resource.prlimit(each, resource.RLIMIT_FSIZE)
                    most = hard if limit == resource.RLIM_INFINITY else limit
                    resource.prlimit(each, resource.RLIMIT_FSIZE, (most, hard))
                except (OSError, ValueError) as error:  # it has ended, or is another user's
                    self.log(f"process {each} is not limited: {error}")

    def _warn(self, each: Disturbance) -> None:
        """Warn as the scheduler does, and then end the job as it does."""
        is_heeded = self._listens() or is_listened_for(self.run, self._attempt)
        self._note(each, is_heeded=is_heeded)
        self._over = self._attempt
        os.kill(os.getpid(), self.warning)
        limit_s = each.hold_s if is_heeded else min(each.hold_s, _DEAF_S)
        if not self._wait(lambda: not self.ranks.living(), limit_s):
            self._note_over(each, "unheeded")
            os.kill(os.getpid(), signal.SIGTERM)

    def _kill_agent(self, each: Disturbance) -> None:
        self._note(each)
        os.kill(os.getpid(), signal.SIGKILL)

    def _damage(self, each: Disturbance) -> None:
        """Cut off half of the newest checkpoint, and kill a rank: as if it died while it saved."""
        newest = next(reversed(self._look(at_once=True)), None)
        if newest is None or not is_own(self.run, self.plan, newest):
            return
        largest = largest_part(newest)
        self._note(each, damaged=newest)
        os.truncate(largest, largest.stat().st_size // 2)
        self._kill()
