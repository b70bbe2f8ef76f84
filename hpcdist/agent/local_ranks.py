"""The ranks of one node, as their agent sees them: it has the forkserver start and end them, and
puts together how each ended."""

from __future__ import annotations

import os
import select
import selectors
import signal
import threading
import time
from collections.abc import Callable, Sequence

from hpcdist.agent import inspection, messages
from hpcdist.agent.forkserver import StackMemory, start_forkserver
from hpcdist.agent.image import ImageStart
from hpcdist.agent.messages import Channel, ChannelClosedError
from hpcdist.agent.node import OwnNode
from hpcdist.agent.outcome.ends import close_event_file, rank_end
from hpcdist.agent.sampler import UsageSampler
from hpcdist.agent.watch import RankWatch
from hpcdist.base import files
from hpcdist.job.spec import OwnCodeJob
from hpcdist.machine.process import exit_status, send_signal
from hpcdist.rank.board import ProgressBoard
from hpcdist.rank.context import RankOrder
from hpcdist.runs.run import Run

_EXIT_WAIT_S = 1.0
_RECEIVE_WAIT_S = 0.5
_PAUSE_SETTLES_S = 0.01
"""Time after the order to pause in which a rank that had not seen it may pass a last boundary."""


class LocalRanks:
    """The agent's side of its forkserver. Messages for the coordinator are given to `tell`."""

    def __init__(
        self,
        run: Run,
        node: OwnNode,
        *,
        tell: Callable[[messages.ToLeader], None],
        log: Callable[[str], None],
    ) -> None:
        """Start the forkserver, before the agent opens a socket. Raises CannotLaunchError."""
        self.clock_offset_s = 0.0
        """Seconds to add to this host's clock for node 0's."""
        job = node.job
        self._run, self._job = run, job
        self._tell, self._log = tell, log
        self._board = ProgressBoard(job.ranks_per_node)
        stacks = StackMemory(job.ranks_per_node)
        self._usage = UsageSampler(run, every_s=job.record.usage_s, log=log)
        self._watch = RankWatch(run, job, self._board, stacks, lambda: self._usage.gpu_share)
        self.is_ready = False
        """The forkserver can fork ranks."""
        self._attempt = 0
        self._dumping: threading.Thread | None = None
        self._ending_attempt: int | None = None
        self._ending_s: float | None = None
        self._image: ImageStart | None = None
        if node.plan.container is None:
            self._pid, channel = start_forkserver(job, self._board, stacks)
        else:
            self._image = ImageStart(run, node, node.plan.container, self._board, stacks)
            channel = self._image.channel
        self._channel: Channel[messages.FromForkserver] | None = channel
        self.selector = selectors.DefaultSelector()  # not before the fork: it would be shared
        self.selector.register(channel, selectors.EVENT_READ, self._receive)

    # What the agent asks for.

    def check(self, orders: list[RankOrder]) -> None:
        """Check the node before its ranks start; `tell` gets Checked later."""
        self._send(messages.Fork(orders=orders[:1], is_preflight=True))

    def start(self, orders: list[RankOrder], gpus: Sequence[str]) -> None:
        """Start the ranks of an attempt; `gpus` are the UUIDs of theirs."""
        self._attempt = orders[0].attempt
        self._ending_attempt = self._ending_s = None
        self._watch.begin(orders)
        self._send(messages.Fork(orders=orders))
        self._usage.begin(orders, lambda: dict(self._watch.pids), gpus)

    def obey(self, order: messages.ToRanks) -> None:
        """Carry out an order for the ranks, or for their store.

        `tell` gets the answers later: StoreOpened after Begin, Gone after End, when nothing is
        left of ranks and store, Stacks after Dump, Reached after Pause, and Report after Ask.
        """
        match order:
            case messages.Begin():
                self._send(order)
            case messages.Ask():
                inspection.begin(order.request, self._watch, tell=self._tell, log=self._log)
            case messages.End():
                self._ending_attempt = order.attempt
                self._ending_s = time.time()
                if self.is_ready or self._job.launch.min_nodes is not None:
                    self._send(order)  # without a lost node, the next attempt needs it
                else:
                    # It is still importing and would answer only when that is done; nothing depends
                    # on it yet.
                    self._drop_forkserver()
                    self._tell(messages.Gone(attempt=order.attempt))
            case messages.Dump():
                if self._dumping is None or not self._dumping.is_alive():  # else it is on its way
                    watch, tell, log = self._watch, self._tell, self._log
                    self._dumping = inspection.begin(order, watch, tell=tell, log=log)
            case messages.Pause(_, stop_at) if stop_at is not None:
                self._board.stop_at(stop_at)
            case messages.Pause():
                self._board.pause()
                # The user's own code may know nothing of the board: it gets a signal, as from a
                # scheduler.
                if isinstance(self._job, OwnCodeJob):
                    self._send(order)
                time.sleep(_PAUSE_SETTLES_S)
                boundary = self._board.last_boundary()
                self._tell(messages.Reached(attempt=self._attempt, boundary=boundary))

    def end_rest(self, grace_s: float) -> None:
        """End the ranks that are left as the agent leaves: none as a rule, all where the leader
        was lost."""
        self._usage.end()
        if self._watch.pids and self._ending_attempt is None:
            self.obey(messages.End(attempt=self._attempt, signal=signal.SIGTERM, grace_s=grace_s))
        limit_s = time.monotonic() + grace_s + _EXIT_WAIT_S
        while self._watch.pids and self._channel is not None and time.monotonic() < limit_s:
            if select.select([self._channel], [], [], _RECEIVE_WAIT_S)[0]:
                self._receive()

    def look(self, *, enforces_limits: bool) -> None:
        """Keep what Dump has brought, since files may take longer than its answer, and the memory
        limit; tell where no rank has worked for too long."""
        if self._dumping is not None and not self._dumping.is_alive():
            self._dumping = None
            self._keep_stacks()
        if self._ending_attempt is not None:
            return
        if enforces_limits:
            self._watch.keep_memory_limit()
        if (quiet_s := self._watch.look()) is not None:
            self._tell(messages.Quiet(attempt=self._attempt, quiet_s=quiet_s))

    # Messages of the forkserver.

    def _send(self, message: messages.ToForkserver) -> None:
        try:
            if self._channel is not None:
                self._channel.send(message)
        except ChannelClosedError:
            self._on_lost()

    def _receive(self) -> None:
        if self._channel is None:
            return  # dropped by an event of the same moment
        try:
            received = self._channel.receive()
        except ChannelClosedError:
            self._on_lost()
            return
        for message in received:
            match message:
                case messages.Ready():
                    self.is_ready = True
                case messages.Started():
                    self._watch.pids[message.local_rank] = message.pid
                case messages.Exited():
                    self._close_rank(message)
                case _:
                    self._tell(message)

    def _on_lost(self) -> None:
        """Tell the coordinator that the forkserver has ended."""
        has_begun = self.is_ready or self._image is None
        sentence = self._drop_forkserver()
        if has_begun:
            sentence = f"the process that forks the ranks was lost: {sentence}"
        self._tell(messages.Failed(sentence=sentence))
        if self._ending_attempt is not None:
            self._tell(messages.Gone(attempt=self._ending_attempt))

    def _keep_stacks(self) -> None:
        try:
            self._watch.keep_stacks()
        except OSError as error:
            self._log(f"the stacks of ranks are not kept: {files.reason(error)}")

    def _close_rank(self, exited: messages.Exited) -> None:
        """Put together how a rank ended, add that to its event file, and send Ended."""
        self._keep_stacks()
        order = self._watch.remove(exited.local_rank)
        if order is None:
            return
        end = rank_end(
            self._run,
            self._job,
            order,
            self._board.read(exited.local_rank),
            exited,
            clock_offset_s=self.clock_offset_s,
            stopped_s=self._ending_s,
            out_of_memory=self._watch.out_of_memory(exited.local_rank, exited.status),
            unwritten=self._board.pipes[exited.local_rank].unwritten(),
        )
        try:
            close_event_file(self._run, order, end, max_rss_bytes=exited.max_rss_bytes)
        except OSError as error:
            self._log(f"the events of rank {order.rank} could not be closed: {error}")
        self._tell(messages.Ended(attempt=order.attempt, end=end))

    def _drop_forkserver(self) -> str:
        """End the forkserver and its ranks; return how the forkserver ended."""
        if self._channel is None:
            return "it had ended"
        self.selector.unregister(self._channel)
        self._channel.close()
        self._channel = None
        has_begun, self.is_ready = self.is_ready, False
        if self._image is not None:
            sentence = self._image.end(has_begun=has_begun)
        else:
            send_signal(self._pid, signal.SIGKILL)
            own_status = exit_status(self._pid, _EXIT_WAIT_S)
            sentence = f"exited with code {os.WEXITSTATUS(own_status)}"
            if os.WIFSIGNALED(own_status):
                sentence = f"killed by {signal.Signals(os.WTERMSIG(own_status)).name}"
        for local_rank, pid in list(self._watch.pids.items()):  # adopted by the agent now
            send_signal(pid, signal.SIGKILL)
            status = exit_status(pid, _EXIT_WAIT_S)
            exited = messages.Exited(local_rank=local_rank, status=status, time_s=time.time())
            self._close_rank(exited)
        return sentence
