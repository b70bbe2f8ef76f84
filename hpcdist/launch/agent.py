"""The agent: one per node. Starts, watches and ends the node's ranks.

Node 0's agent also leads: it holds the coordinator, which the others reach over TCP at the address
in launch/meeting.json. An agent is one thread around one `select`; it imports no torch, so it
answers within milliseconds whatever the ranks do.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from hpcdist import files, workloads
from hpcdist.gpus import claim
from hpcdist.launch import failure, memory
from hpcdist.launch.channel import ChannelClosedError, Message
from hpcdist.launch.coordinator import Coordinator, HangReport
from hpcdist.launch.cpus import threads_per_rank, usable_cpus
from hpcdist.launch.ends import close_event_file, living_end, rank_end, remove_if_empty
from hpcdist.launch.forkserver import start_forkserver
from hpcdist.launch.meeting import HostedMeeting, join_meeting
from hpcdist.launch.node import LaunchPlan, Meeting, RankOrder, node_environment, rank_orders
from hpcdist.launch.ports import NoFreePortError
from hpcdist.launch.process import (
    adopt_orphans,
    descendants,
    identify,
    send_signal,
    state_letter,
)
from hpcdist.launch.rank_process import STACKS_SIGNAL
from hpcdist.launch.stacks import whereabouts
from hpcdist.progress import ProgressBoard
from hpcdist.run import Run
from hpcdist.spec import JobSpec, ScriptJob, job_from_dict
from hpcdist.verdict import Verdict

_TICK_S = 0.5
_STACKS_WAIT_S = 0.5
_TRAINER_HANG_TIMEOUT_S = 600.0
_CANCEL_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class CannotLaunchError(Exception):
    """The ranks of this node cannot be started, and why."""


class Agent:
    """See the module; `run_to_end` is its life."""

    def __init__(self, run: Run, job: JobSpec, plan: LaunchPlan, node_rank: int) -> None:
        self.run = run
        self.job = job
        self.plan = plan
        self.node_rank = node_rank
        self.node = plan.nodes[node_rank]
        self.host = socket.gethostname()
        self.address = self.node.address or self.host
        self.verdict: Verdict | None = None

        self._num_ranks = job.resources.gpus
        self._board = ProgressBoard(self._num_ranks)
        self._selector = selectors.DefaultSelector()
        self._inbox: deque[tuple[int, Message]] = deque()
        self._closing = False
        self._ending_attempt: int | None = None
        self._server_is_ready = False
        self._orders: dict[int, RankOrder] = {}  # of the living, by local rank
        self._pids: dict[int, int] = {}
        self._attempt = 0
        self._stacks_at: float | None = None
        self._tick_at = time.monotonic() + _TICK_S
        self._over_memory: dict[int, str] = {}
        self._kernel_kills = memory.kernel_kills()
        self._clock_offset_s = 0.0
        self._was_silent = False
        self._begin_s = time.monotonic()

    def run_to_end(self) -> None:
        """Take part in the run until it has a verdict, and leave no process behind."""
        adopt_orphans()
        os.environ.update(node_environment(self.node, self._num_threads()))
        self._server_pid, self._server = start_forkserver(
            self.job, self._board, lambda: workloads.preload(self.job)
        )
        self._watch_signals()
        self._announce()
        self._selector.register(self._server, selectors.EVENT_READ, self._on_server)
        try:
            self._claim_gpus()
            if self.node_rank == 0:
                self._lead()
            else:
                self._join()
            while not self._closing:
                self._turn()
        except CannotLaunchError as error:
            self.verdict = failure.without_rank(
                "launch", str(error), time_s=time.time(), node=self.node_rank, host=self.host
            )
        finally:
            self._kill_everything()
        # Last of all: whoever sees a verdict may count on it that the ranks are gone.
        if self.verdict is not None:
            self.run.write_verdict(self.verdict)

    # Set-up.

    def _claim_gpus(self) -> None:
        try:
            self._claims = claim(self.node.gpus or [])
        except OSError:
            raise CannotLaunchError(
                f"another run took one of the GPUs chosen for node {self.node_rank} at the same "
                "moment; submit again"
            ) from None

    def _num_threads(self) -> int:
        if self.plan.num_threads is not None:
            return self.plan.num_threads
        return threads_per_rank(
            len(usable_cpus()), self._num_ranks, cpus_per_rank=self.job.resources.cpus_per_gpu
        )

    def _watch_signals(self) -> None:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        os.set_blocking(reading, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for signum in _CANCEL_SIGNALS:
            signal.signal(signum, lambda *_: None)
        self._selector.register(reading, selectors.EVENT_READ, lambda: self._on_signals(reading))

    def _announce(self) -> None:
        files.write_json(
            self.run.agent_file(self.node_rank),
            {
                "node": self.node_rank,
                "host": self.host,
                "address": self.address,
                "process": msgspec.to_builtins(identify(os.getpid())),
            },
        )

    def _lead(self) -> None:
        launch = self.job.launch
        self._coordinator: Coordinator | None = Coordinator(
            num_nodes=len(self.plan.nodes),
            ranks_per_node=self._num_ranks,
            max_restarts=launch.max_restarts,
            grace_s=launch.grace_s,
            join_timeout_s=launch.join_timeout_s,
            send=self._send_to_agent,
            open_store=self._open_store,
            claim_attempt=self.run.claim_attempt,
            finish=self._finish,
            now=time.monotonic,
            unix_now=time.time,
        )
        self._coordinator.begin()
        try:
            self._meeting = HostedMeeting(
                self.run,
                address=self.address,
                bind_to=self.node.address or "",
                port_range=launch.port_range,
                selector=self._selector,
                on_message=self._coordinator.on_message,
                on_lost=self._coordinator.on_lost,
            )
        except NoFreePortError as error:
            raise CannotLaunchError(f"node 0 (host {self.host}): {error}") from None
        self._tell({"type": "join", "host": self.host})

    def _join(self) -> None:
        self._coordinator = None
        joined = join_meeting(
            self.run,
            node_rank=self.node_rank,
            host=self.host,
            source=self.node.address,
            timeout_s=self.job.launch.join_timeout_s,
            give_up=self._poll_signals,
        )
        if joined is None:
            self._closing = True
            return
        self._leader, self._clock_offset_s = joined
        self._selector.register(self._leader, selectors.EVENT_READ, self._on_leader)

    # The loop.

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._timeout_s()):
            callback: Callable[[], None] = key.data
            callback()
        now = time.monotonic()
        if self._stacks_at is not None and now >= self._stacks_at:
            self._stacks_at = None
            self._tell({"type": "stacks", "attempt": self._attempt, "ranks": self._hang_reports()})
        if now >= self._tick_at:
            self._tick_at = now + _TICK_S
            self._tick()
        if self._coordinator is not None:
            self._coordinator.on_time()
        while self._inbox:
            node, message = self._inbox.popleft()
            if node == self.node_rank:
                self._obey(message)
            else:
                assert self._coordinator is not None
                self._coordinator.on_message(0, message)

    def _timeout_s(self) -> float:
        deadlines = [self._tick_at]
        if self._stacks_at is not None:
            deadlines.append(self._stacks_at)
        if self._coordinator is not None and (due := self._coordinator.next_deadline()) is not None:
            deadlines.append(due)
        return 0.0 if self._inbox else max(0.0, min(deadlines) - time.monotonic())

    def _tick(self) -> None:
        if self._ending_attempt is not None or not self._pids:
            return
        self._watch_memory()
        self._watch_time()
        silent = self._most_silent()
        if silent is not None and not self._was_silent:
            self._was_silent = True
            self._tell({"type": "silent", "attempt": self._attempt, "rank": silent})

    # Talking to the coordinator, and obeying it.

    def _tell(self, message: Message) -> None:
        """To the coordinator."""
        if self._coordinator is not None:
            self._inbox.append((-1, message))
            return
        try:
            self._leader.send(message)
        except ChannelClosedError as error:
            self._on_leader_lost(str(error))

    def _send_to_agent(self, node: int, message: Message) -> None:
        if node == 0:
            self._inbox.append((0, message))
        else:
            self._meeting.send(node, message)

    def _on_leader(self) -> None:
        try:
            for message in self._leader.receive():
                self._inbox.append((self.node_rank, message))
        except ChannelClosedError as error:
            self._on_leader_lost(str(error))

    def _on_leader_lost(self, reason: str) -> None:
        """Without the leader nobody would end the ranks, or say why the run ended."""
        if self._closing:
            return
        self._closing = True
        self.verdict = failure.without_rank(
            "agent_lost",
            f"the agent of node 0 was lost: {reason}",
            time_s=time.time(),
            attempt=self._attempt,
            node=0,
        )

    def _obey(self, message: Message) -> None:
        kind = message["type"]
        if kind == "start":
            self._start(msgspec.convert(message["meeting"], Meeting))
        elif kind == "end":
            self._end(message["attempt"], message["grace_s"])
        elif kind == "dump":
            self._send_to_server({"type": "signal", "signal": int(STACKS_SIGNAL)})
            self._stacks_at = time.monotonic() + _STACKS_WAIT_S
        elif kind == "close":
            self._closing = True

    def _start(self, meeting: Meeting) -> None:
        orders = rank_orders(
            run_path=str(self.run.path),
            run_id=self.run.id,
            plan=self.plan,
            node_rank=self.node_rank,
            ranks_per_node=self._num_ranks,
            cpus_per_rank=self.job.resources.cpus_per_gpu,
            num_threads=self._num_threads(),
            max_restarts=self.job.launch.max_restarts,
            host=self.host,
            meeting=meeting,
        )
        self._attempt = meeting.attempt
        self._ending_attempt = None
        self._was_silent = False
        self._over_memory.clear()
        self._board.clear()
        self._orders = {order.local_rank: order for order in orders}
        self._send_to_server({"type": "fork", "orders": msgspec.to_builtins(orders)})

    def _end(self, attempt: int, grace_s: float) -> None:
        self._ending_attempt = attempt
        if self._server_is_ready:
            self._send_to_server({"type": "end", "grace_s": grace_s})
            return
        # It is still importing and would answer only when that is done; nothing depends on it yet.
        self._selector.unregister(self._server)
        send_signal(self._server_pid, signal.SIGKILL)
        self._tell({"type": "gone", "attempt": attempt})

    def _open_store(self) -> None:
        launch = self.job.launch
        self._send_to_server(
            {
                "type": "store",
                "address": self.address,
                "port_range": launch.port_range,
            }
        )

    def _finish(self, verdict: Verdict) -> None:
        newest = self.run.newest_attempt()
        if newest <= verdict.attempt:
            self.verdict = verdict
        else:
            self._log(f"attempt {newest} has begun elsewhere: this one has no say any more")

    # The forkserver and the ranks.

    def _send_to_server(self, message: Message) -> None:
        try:
            self._server.send(message)
        except ChannelClosedError:
            self._on_server_lost()

    def _on_server(self) -> None:
        try:
            messages = self._server.receive()
        except ChannelClosedError:
            self._on_server_lost()
            return
        for message in messages:
            handler = getattr(self, f"_on_server_{message['type']}")
            handler(message)

    def _on_server_lost(self) -> None:
        self._selector.unregister(self._server)
        _, status = os.waitpid(self._server_pid, 0)
        how = (
            f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
            if os.WIFSIGNALED(status)
            else f"left with exit code {os.WEXITSTATUS(status)}"
        )
        self._fail(f"the process that forks the ranks of node {self.node_rank} was {how}")

    def _on_server_failed(self, message: Message) -> None:
        self._log(message["traceback"])
        self._fail(
            f"the modules for the ranks cannot be imported on node {self.node_rank} "
            f"(host {self.host}): {message['message']}",
            traceback=message["traceback"],
        )

    def _fail(self, sentence: str, *, traceback: str | None = None) -> None:
        self._server_is_ready = False
        self._orders.clear()
        self._pids.clear()
        self._tell({"type": "failed", "sentence": sentence, "traceback": traceback})
        if self._ending_attempt is not None:
            self._tell({"type": "gone", "attempt": self._ending_attempt})

    def _on_server_ready(self, message: Message) -> None:
        self._server_is_ready = True
        if message["threads"] > 1:
            self._log(f"{message['threads'] - 1} threads were started by imports, before the fork")

    def _on_server_store(self, message: Message) -> None:
        assert self._coordinator is not None
        self._coordinator.on_store(self.address, message.get("port"), message.get("error"))

    def _on_server_store_lost(self, _message: Message) -> None:
        self._tell(
            {
                "type": "failed",
                "sentence": f"the store at {self.address}, where the ranks meet, was lost",
            }
        )

    def _on_server_started(self, message: Message) -> None:
        self._pids[message["local_rank"]] = message["pid"]

    def _on_server_exited(self, message: Message) -> None:
        local_rank = message["local_rank"]
        self._pids.pop(local_rank, None)
        order = self._orders.pop(local_rank, None)
        if order is None:
            return
        end = rank_end(
            self.run,
            order,
            self._board.read(local_rank),
            status=message["status"],
            time_s=message["time_s"],
            clock_offset_s=self._clock_offset_s,
            stopped=self._ending_attempt is not None,
            out_of_memory=self._out_of_memory(local_rank, message["status"]),
        )
        try:
            close_event_file(self.run, order, end, max_rss_bytes=message["max_rss_bytes"])
            remove_if_empty(self.run.stacks_file(order.rank, order.attempt))
        except OSError as error:
            self._log(f"the events of rank {order.rank} could not be closed: {error}")
        self._tell(
            {"type": "ended", "attempt": order.attempt, "end": msgspec.to_builtins(end)},
        )

    def _on_server_gone(self, _message: Message) -> None:
        self._tell({"type": "gone", "attempt": self._ending_attempt})

    # Watching.

    def _hang_timeout_s(self) -> float:
        timeout_s = self.job.launch.hang_timeout_s
        if timeout_s is None:
            return 0.0 if isinstance(self.job, ScriptJob) else _TRAINER_HANG_TIMEOUT_S
        return timeout_s

    def _silent_s(self, local_rank: int) -> float:
        """Seconds since the rank's last sign of life."""
        alive_s = self._board.read(local_rank).alive_s
        if alive_s == 0.0:
            return 0.0
        silent_s = time.monotonic() - alive_s
        if isinstance(self.job, ScriptJob):
            order = self._orders[local_rank]
            written_s = self.run.log_file(order.rank, order.attempt).stat().st_mtime
            silent_s = min(silent_s, time.time() - written_s)
        return silent_s

    def _most_silent(self) -> int | None:
        """A rank that has been silent for too long; None where none has."""
        timeout_s = self._hang_timeout_s()
        if not timeout_s:
            return None
        silent = {rank: self._silent_s(rank) for rank in self._pids}
        longest = max(silent, key=lambda rank: silent[rank])
        return self._orders[longest].rank if silent[longest] >= timeout_s else None

    def _hang_reports(self) -> list[Any]:
        reports = []
        for local_rank, pid in self._pids.items():
            order = self._orders[local_rank]
            found = whereabouts(_read_text(self.run.stacks_file(order.rank, order.attempt)))
            reports.append(
                HangReport(
                    end=living_end(order, self._board.read(local_rank), time_s=time.time()),
                    silent_s=self._silent_s(local_rank),
                    where=found.where if found else None,
                    is_waiting=found.is_waiting if found else False,
                    state=state_letter(pid),
                )
            )
        return [msgspec.to_builtins(report) for report in reports]

    def _watch_memory(self) -> None:
        limit_gb = self.job.resources.mem_gb
        if limit_gb is None or not self.plan.enforces_limits or self._over_memory:
            return
        over = memory.over_limit(self._pids, limit_gb * 1e9)
        if over is not None:
            local_rank, sentence = over
            self._over_memory[local_rank] = sentence
            send_signal(self._pids[local_rank], signal.SIGKILL)

    def _watch_time(self) -> None:
        limit_min = self.job.resources.time_limit_min
        if limit_min is None or not self.plan.enforces_limits or self._coordinator is None:
            return
        if time.monotonic() - self._begin_s > limit_min * 60:
            self._tell({"type": "limit", "limit_min": limit_min})

    def _out_of_memory(self, local_rank: int, status: int) -> str | None:
        if local_rank in self._over_memory:
            return self._over_memory[local_rank]
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            kills = memory.kernel_kills()
            if kills > self._kernel_kills:
                self._kernel_kills = kills
                return "the kernel killed it: the memory limit of its cgroup was reached"
        return None

    # Signals and the end.

    def _on_signals(self, reading: int) -> None:
        for number in os.read(reading, 4096):
            if number in _CANCEL_SIGNALS:
                self._tell({"type": "cancel", "signal": signal.Signals(number).name})

    def _poll_signals(self) -> bool:
        """Whether the run is over before this agent could join: cancelled, or decided by others."""
        for key, _ in self._selector.select(0):
            if key.fileobj is not self._server:
                return True
        return self.run.verdict_file.exists()

    def _kill_everything(self) -> None:
        for _ in range(10):
            left = descendants(os.getpid())
            if not left:
                break
            for pid in left:
                send_signal(pid, signal.SIGKILL)
            _reap_all()

    def _log(self, line: str) -> None:
        with self.run.agent_log_file(self.node_rank).open("a") as log:
            print(time.strftime("%H:%M:%S"), line, file=log)


def run_agent(run_path: Path, node_rank: int) -> int:
    """Be the agent of one node; returns the exit code of the run, as far as this node knows it."""
    run = Run(run_path)
    spec = run.read_spec()
    if spec is None:
        print(f"{run.spec_file}: missing or torn", file=sys.stderr)
        return 1
    agent = Agent(
        run,
        job_from_dict(spec["job"]),
        msgspec.convert(spec["plan"], LaunchPlan),
        node_rank,
    )
    agent.run_to_end()
    verdict = run.read_verdict()
    return verdict.exit_code_of_run if verdict else 1


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _reap_all() -> None:
    deadline = time.monotonic() + 0.2
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(0.005)
