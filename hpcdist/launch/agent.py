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
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from hpcdist import files, workloads
from hpcdist.errors import EXIT_FAILED
from hpcdist.gpus import claim
from hpcdist.launch import failure
from hpcdist.launch.channel import Channel, ChannelClosedError, Message
from hpcdist.launch.coordinator import CANCEL_SIGNALS, Coordinator
from hpcdist.launch.cpus import threads_per_rank, usable_cpus
from hpcdist.launch.ends import close_event_file, rank_end, remove_if_empty
from hpcdist.launch.forkserver import start_forkserver
from hpcdist.launch.meeting import HostedMeeting, join_meeting
from hpcdist.launch.node import LaunchPlan, Meeting, node_environment, rank_orders
from hpcdist.launch.ports import NoFreePortError
from hpcdist.launch.process import (
    adopt_orphans,
    exit_status,
    identify,
    kill_descendants,
    send_signal,
)
from hpcdist.launch.rank_process import STACKS_SIGNAL
from hpcdist.launch.watch import RankWatch
from hpcdist.progress import ProgressBoard
from hpcdist.run import Run
from hpcdist.spec import JobSpec, job_from_dict
from hpcdist.verdict import Kind, Verdict

_TICK_S = 0.5
_STACKS_WAIT_S = 0.5
_EXIT_WAIT_S = 1.0


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
        self._watch = RankWatch(run, job, self._board)
        self._inbox: deque[tuple[int, Message]] = deque()
        self._coordinator: Coordinator | None = None  # of node 0
        self._leader: Channel | None = None  # of the others
        self._server: Channel | None = None
        self._server_is_ready = False
        self._closing = False
        self._attempt = 0
        self._ending_attempt: int | None = None
        self._ending_s: float | None = None
        self._stacks_at: float | None = None
        self._tick_at = time.monotonic() + _TICK_S
        self._clock_offset_s = 0.0
        self._was_silent = False
        self._begin_s = time.monotonic()

    def run_to_end(self) -> None:
        """Take part in the run until it has a verdict, and leave no process behind."""
        try:
            if not self._is_over():
                self._set_up()
            while not self._closing:
                self._turn()
        except CannotLaunchError as error:
            self.verdict = self._own_verdict("launch", str(error))
        except Exception as error:  # noqa: BLE001 - a run must not end without a verdict
            sentence = f"the agent of node {self.node_rank} (host {self.host}) failed: {error!r}"
            self.verdict = self._own_verdict("agent_lost", sentence, traceback.format_exc())
        finally:
            kill_descendants()
        # Last of all: whoever sees a verdict may count on it that the ranks are gone.
        if self.verdict is not None:
            self.run.write_verdict(self.verdict)

    # Set-up.

    def _set_up(self) -> None:
        adopt_orphans()
        variables = node_environment(self.plan, self.node_rank, self._num_threads(), os.environ)
        os.environ.update(variables)
        self._server_pid, self._server = start_forkserver(
            self.job, self._board, lambda: workloads.preload(self.job)
        )
        self._selector = selectors.DefaultSelector()  # not before the fork: it would be shared
        self._watch_signals()
        self._announce()
        self._selector.register(self._server, selectors.EVENT_READ, self._on_server)
        self._claim_gpus()
        if self.node_rank == 0:
            self._lead()
        else:
            self._join()

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
        self._signals, writing = os.pipe()
        os.set_blocking(writing, False)
        os.set_blocking(self._signals, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for signum in CANCEL_SIGNALS:
            signal.signal(signum, lambda *_: None)
        self._selector.register(self._signals, selectors.EVENT_READ, self._on_signals)

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
        self._coordinator = Coordinator(
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
        if len(self.plan.nodes) > 1:
            self._host_meeting(self._coordinator)
        self._tell({"type": "join", "host": self.host})

    def _host_meeting(self, coordinator: Coordinator) -> None:
        try:
            self._meeting = HostedMeeting(
                self.run,
                address=self.address,
                bind_to=self.node.address or "",
                port_range=self.job.launch.port_range,
                selector=self._selector,
                on_message=coordinator.on_message,
                on_lost=coordinator.on_lost,
            )
        except NoFreePortError as error:
            raise CannotLaunchError(f"node 0 (host {self.host}): {error}") from None

    def _join(self) -> None:
        timeout_s = self.job.launch.join_timeout_s
        joined = join_meeting(
            self.run,
            node_rank=self.node_rank,
            host=self.host,
            source=self.node.address,
            timeout_s=timeout_s,
            give_up=self._is_over_while_joining,
        )
        if joined is not None:
            self._leader, self._clock_offset_s = joined
            self._selector.register(self._leader, selectors.EVENT_READ, self._on_leader)
        elif not self._closing:
            raise CannotLaunchError(
                f"node {self.node_rank} (host {self.host}) could not reach the agent of node 0 "
                f"within {timeout_s:g} s"
            )

    def _is_over(self) -> bool:
        """Whether the run has a verdict: cancelled, or told by an agent that could not join."""
        if self.run.verdict_file.exists():
            self._closing = True
        return self._closing

    def _is_over_while_joining(self) -> bool:
        for key, _ in self._selector.select(0):
            if key.fileobj == self._signals:
                self._on_signals()
        return self._is_over()

    # The loop.

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._timeout_s()):
            callback: Callable[[], None] = key.data
            callback()
        now = time.monotonic()
        if self._stacks_at is not None and now >= self._stacks_at:
            self._stacks_at = None
            reports = [msgspec.to_builtins(report) for report in self._watch.hang_reports()]
            self._tell({"type": "stacks", "attempt": self._attempt, "ranks": reports})
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
        if self._is_over():
            return
        if self.plan.enforces_limits:
            self._watch_time()
        if self._ending_attempt is not None:
            return
        if self.plan.enforces_limits:
            self._watch.keep_memory_limit()
        silent = self._watch.most_silent()
        if silent is not None and not self._was_silent:
            self._was_silent = True
            self._tell({"type": "silent", "attempt": self._attempt, "rank": silent})

    def _watch_time(self) -> None:
        limit_min = self.job.resources.time_limit_min
        if limit_min is None or self._coordinator is None:
            return
        if time.monotonic() - self._begin_s > limit_min * 60:
            self._tell({"type": "limit", "limit_min": limit_min})

    def _on_signals(self) -> None:
        for number in os.read(self._signals, 4096):
            if number in CANCEL_SIGNALS:
                self._cancel(signal.Signals(number).name)

    def _cancel(self, signal_name: str) -> None:
        if self._coordinator is not None or self._leader is not None:
            self._tell({"type": "cancel", "signal": signal_name})
            return
        self._closing = True
        self.verdict = failure.cancelled(
            signal_name, attempt=self._attempt, restarts=0, time_s=time.time()
        )

    # Talking to the coordinator, and obeying it.

    def _tell(self, message: Message) -> None:
        """To the coordinator."""
        if self._coordinator is not None:
            self._inbox.append((-1, message))
            return
        assert self._leader is not None
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
        assert self._leader is not None
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
        self._ending_attempt = self._ending_s = None
        self._was_silent = False
        self._watch.begin(orders)
        self._send_to_server({"type": "fork", "orders": msgspec.to_builtins(orders)})

    def _end(self, attempt: int, grace_s: float) -> None:
        self._ending_attempt = attempt
        self._ending_s = time.time()
        if self._server_is_ready:
            self._send_to_server({"type": "end", "grace_s": grace_s})
            return
        # It is still importing and would answer only when that is done; nothing depends on it yet.
        self._drop_server()
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
        if self._server is None:
            return
        try:
            self._server.send(message)
        except ChannelClosedError:
            self._on_server_lost()

    def _on_server(self) -> None:
        if self._server is None:
            return  # dropped by an event of the same moment
        try:
            messages = self._server.receive()
        except ChannelClosedError:
            self._on_server_lost()
            return
        for message in messages:
            handler = getattr(self, f"_on_server_{message['type']}")
            handler(message)

    def _on_server_lost(self) -> None:
        how = self._drop_server()
        self._fail(f"the process that forks the ranks of node {self.node_rank} was lost: {how}")
        if self._ending_attempt is not None:
            self._tell({"type": "gone", "attempt": self._ending_attempt})

    def _drop_server(self) -> str:
        """End the forkserver, and with it its ranks; returns how it ended."""
        if self._server is None:
            return "it had ended"
        self._selector.unregister(self._server)
        self._server.close()
        self._server = None
        self._server_is_ready = False
        send_signal(self._server_pid, signal.SIGKILL)
        status = exit_status(self._server_pid, _EXIT_WAIT_S)
        for local_rank, pid in list(self._watch.pids.items()):  # adopted by this agent now
            send_signal(pid, signal.SIGKILL)
            self._close_rank(local_rank, exit_status(pid, _EXIT_WAIT_S), time.time(), None)
        if os.WIFSIGNALED(status):
            return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
        return f"left with exit code {os.WEXITSTATUS(status)}"

    def _on_server_failed(self, message: Message) -> None:
        self._fail(f"node {self.node_rank} (host {self.host}): {message['message']}")

    def _fail(self, sentence: str) -> None:
        self._tell({"type": "failed", "sentence": sentence})

    def _on_server_ready(self, message: Message) -> None:
        self._server_is_ready = True
        if message["threads"] > 1:
            self._log(f"{message['threads'] - 1} threads were started by imports, before the fork")
        for what in message["not_imported"]:
            self._log(f"left to the ranks to import: {what}")

    def _on_server_store(self, message: Message) -> None:
        assert self._coordinator is not None
        self._coordinator.on_store(self.address, message.get("port"), message.get("error"))

    def _on_server_store_lost(self, _message: Message) -> None:
        self._fail(f"the store at {self.address}, where the ranks meet, was lost")

    def _on_server_started(self, message: Message) -> None:
        self._watch.pids[message["local_rank"]] = message["pid"]

    def _on_server_exited(self, message: Message) -> None:
        self._close_rank(
            message["local_rank"], message["status"], message["time_s"], message["max_rss_bytes"]
        )

    def _close_rank(
        self, local_rank: int, status: int, time_s: float, max_rss_bytes: int | None
    ) -> None:
        """Put together how a rank ended, complete what it recorded, and tell."""
        order = self._watch.remove(local_rank)
        if order is None:
            return
        end = rank_end(
            self.run,
            order,
            self._board.read(local_rank),
            status=status,
            time_s=time_s,
            clock_offset_s=self._clock_offset_s,
            stopped_s=self._ending_s,
            out_of_memory=self._watch.out_of_memory(local_rank, status),
        )
        try:
            close_event_file(self.run, order, end, max_rss_bytes=max_rss_bytes)
            remove_if_empty(self.run.stacks_file(order.rank, order.attempt))
        except OSError as error:
            self._log(f"the events of rank {order.rank} could not be closed: {error}")
        self._tell({"type": "ended", "attempt": order.attempt, "end": msgspec.to_builtins(end)})

    def _on_server_gone(self, _message: Message) -> None:
        self._tell({"type": "gone", "attempt": self._ending_attempt})

    def _own_verdict(self, kind: Kind, sentence: str, trace: str | None = None) -> Verdict:
        return failure.without_rank(
            kind,
            sentence,
            time_s=time.time(),
            attempt=self._attempt,
            node=self.node_rank,
            host=self.host,
            traceback=trace,
        )

    def _log(self, line: str) -> None:
        with self.run.agent_log_file(self.node_rank).open("a") as log:
            print(time.strftime("%H:%M:%S"), line, file=log)


def run_agent(run_path: Path, node_rank: int) -> int:
    """Be the agent of one node; returns the exit code of the run, as far as this node knows it."""
    run = Run(run_path)
    try:
        spec: dict[str, Any] = run.read_spec() or {}
        job = job_from_dict(spec["job"])
        plan = msgspec.convert(spec["plan"], LaunchPlan)
    except (KeyError, msgspec.ValidationError) as error:
        sentence = f"node {node_rank}: {run.spec_file} cannot be read: {error!r}"
        print(sentence, file=sys.stderr)
        run.write_verdict(
            failure.without_rank("launch", sentence, time_s=time.time(), node=node_rank)
        )
        return EXIT_FAILED
    Agent(run, job, plan, node_rank).run_to_end()
    verdict = run.read_verdict()
    return verdict.exit_code_of_run if verdict else EXIT_FAILED
