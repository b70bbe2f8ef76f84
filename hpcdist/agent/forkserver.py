"""The forkserver: imports what ranks need once per node, forks them, reaps them, ends them.

It is forked from the agent before the agent opens any socket, and is the only process of a node
that imports torch before the ranks exist. It never touches CUDA, since CUDA cannot be used in the
children of a process that has. It is one thread; threads that a library starts while it is imported
are told in the agent's log, since a thread that holds a lock during a fork can block the child.
What cannot be imported here is left to the ranks: a script may well do without it.
"""

from __future__ import annotations

import gc
import importlib
import math
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from hpcdist.agent import messages
from hpcdist.agent.messages import (
    FROM_FORKSERVER,
    FROM_RANK,
    TO_FORKSERVER,
    Channel,
    ChannelClosedError,
    FromForkserver,
    ToForkserver,
)
from hpcdist.agent.node import RankOrder
from hpcdist.agent.notices import wake_up_on
from hpcdist.agent.rank_process import STACKS_SIGNAL, become_rank
from hpcdist.agent.stacks import Stacks
from hpcdist.job.spec import JobSpec
from hpcdist.machine.ports import NoFreePortError, listen
from hpcdist.machine.process import (
    adopt_orphans,
    catches,
    children,
    die_with_parent,
    kill_descendants,
    let_trace,
    send_signal,
)
from hpcdist.rank.board import ProgressBoard
from hpcdist.rank.exit import WARNING_SIGNALS

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

_LEAVING_GRACE_S = 3.0
"""Time that a rank which is leaving by itself has to end in order, where others are being ended:
shorter than what the coordinator allows."""
_DEAF_GRACE_S = 0.5
"""Time after a signal that a rank ignores: it may be writing why it ends by itself."""
_STRAYS_GRACE_S = 0.3
"""Time that processes which a rank left behind have to end by themselves."""

_AGENT_IS_GONE = signal.SIGUSR1
_DECIDED_BY_AGENT = (*WARNING_SIGNALS, signal.SIGHUP, _AGENT_IS_GONE)
_IDLE_S = 3600.0
_BUSY_S = 0.01


def start_forkserver(
    job: JobSpec, board: ProgressBoard, stacks: Stacks, preload: Callable[[], list[str]]
) -> tuple[int, Channel[FromForkserver]]:
    """Fork the forkserver from the calling agent; return its pid and the agent's end."""
    agent_end, server_end = socket.socketpair()
    agent_pid = os.getpid()
    pid = os.fork()
    if pid:
        server_end.close()
        return pid, Channel(agent_end, FROM_FORKSERVER)
    agent_end.close()
    code = 1
    try:
        adopt_orphans()
        # The decision is the agent's: a Ctrl-C or a scheduler's signal to all processes must not
        # end the ranks before it does.
        for signum in _DECIDED_BY_AGENT:
            signal.signal(signum, signal.SIG_IGN)
        _outlive_agent_briefly(agent_pid)
        Forkserver(job, board, stacks, Channel(server_end, TO_FORKSERVER)).serve(preload)
    except ChannelClosedError:
        code = 0
    except BaseException:  # noqa: BLE001 - the copy of the agent must not run on above this frame
        traceback.print_exc()
    finally:
        kill_descendants()
        os._exit(code)


class Forkserver:
    """The state of the forkserver: which child is which rank, and what is being ended."""

    def __init__(
        self,
        job: JobSpec,
        board: ProgressBoard,
        stacks: Stacks,
        channel: Channel[ToForkserver],
    ) -> None:
        self._job = job
        self._board = board
        self._stacks = stacks
        self._channel = channel
        self._ranks: dict[int, int] = {}  # pid -> local rank
        self._store_pid: int | None = None
        # Pids of ranks that are being ended -> when they are killed, by the monotonic clock.
        self._kill_at: dict[int, float] = {}
        self._handling: set[int] = set()  # those of them that have a handler for the signal
        self._strays_at: float | None = None  # when what ranks left behind is killed
        self._ending: int | None = None  # the attempt
        # Pids of ranks whose workload is over: its exit code, and when they count as hung, by the
        # monotonic clock.
        self._leaving: dict[int, tuple[int, float]] = {}
        self._reading, self._writing = os.pipe()  # what ranks say of their place and their end
        os.set_blocking(self._reading, False)
        self._said = b""

    def serve(self, preload: Callable[[], list[str]]) -> NoReturn:
        """Import, then answer; ChannelClosedError when the agent is gone."""
        wake_up = wake_up_on([signal.SIGCHLD])
        channel = self._channel.fileno()
        self._import(preload)
        while True:
            timeout_s = _BUSY_S
            if self._ending is None:
                deadlines = (deadline_s for _, deadline_s in self._leaving.values())
                left_s = min(deadlines, default=math.inf) - time.monotonic()
                timeout_s = min(_IDLE_S, max(0.0, left_s))
            ready, _, _ = select.select([channel, wake_up, self._reading], [], [], timeout_s)
            if wake_up in ready:
                os.read(wake_up, 4096)
            if self._reading in ready:
                self._hear_ranks()
            self._reap()
            for pid, (_, deadline_s) in self._leaving.items():
                if time.monotonic() >= min(deadline_s, self._kill_at.get(pid, math.inf)):
                    send_signal(pid, signal.SIGKILL)
            if channel in ready:
                for message in self._channel.receive():
                    self._obey(message)
            if self._ending is not None:
                self._go_on_ending(self._ending)

    def _import(self, preload: Callable[[], list[str]]) -> None:
        gc.disable()  # imports make many objects and no garbage: looking for some is a fifth of it
        modules: list[str] = []
        with suppress(Exception):  # the script is in a zip file, or has changed meanwhile
            modules = preload()
        for module in modules:
            with suppress(
                BaseException
            ):  # also what a module raises to exit: the ranks will say it
                importlib.import_module(module)
        # Objects that the collector never visits again stay in pages that the ranks share. To look
        # for garbage first takes 0.3 s after torch, and frees only holes in those pages.
        gc.freeze()
        gc.enable()
        threads = len(os.listdir("/proc/self/task"))
        self._channel.send(messages.Ready(threads=threads))

    def _obey(self, message: ToForkserver) -> None:
        try:
            match message:
                case messages.Fork():
                    for order in message.orders:
                        self._fork_rank(order)
                case messages.OpenStore():
                    self._fork_store(message)
                case messages.End():
                    self._begin_ending(message)
                case messages.SignalRanks():
                    for pid, local_rank in self._ranks.items():
                        # A program that the rank has become would be ended by it.
                        if message.signal != STACKS_SIGNAL or catches(pid, STACKS_SIGNAL):
                            is_for_sigterm = message.or_sigterm and self._knows_sigterm_alone(
                                pid, local_rank
                            )
                            send_signal(pid, signal.SIGTERM if is_for_sigterm else message.signal)
        except OSError as error:  # the limit of processes, or of memory
            sentence = f"a process cannot be forked: {error.strerror}"
            self._channel.send(messages.Failed(sentence=sentence))

    def _knows_sigterm_alone(self, pid: int, local_rank: int) -> bool:
        """Return True for a program that was written for torchrun, which passes SIGTERM on; one
        that asks at its boundaries stops there, whatever its libraries make of SIGTERM."""
        asks = self._board.read(local_rank).boundary > 0
        return not asks and catches(pid, signal.SIGTERM) and not catches(pid, signal.SIGUSR2)

    def _hear_ranks(self) -> None:
        """Read what ranks wrote: each line in one call, shorter than what a pipe takes at once."""
        try:
            said = os.read(self._reading, 1 << 16)
        except BlockingIOError:
            return
        *lines, self._said = (self._said + said).split(b"\n")
        for line in lines:
            message = FROM_RANK.decode(line)
            if isinstance(message, messages.Leaving):
                self._leaving[message.pid] = message.code, time.monotonic() + message.limit_s
            else:
                self._channel.send(message)

    def _fork_rank(self, order: RankOrder) -> None:
        slot = self._board.slot(order.local_rank)
        parent = os.getpid()

        def child() -> NoReturn:
            os.close(self._reading)
            let_trace()  # `hpcdist attach RUN -- py-spy` is no parent of it
            stacks = self._stacks.only(order.local_rank)
            become_rank(order, slot, parent, self._job, say_to=self._writing, stacks=stacks)

        pid = self._fork(child)
        self._ranks[pid] = order.local_rank
        self._channel.send(messages.Started(local_rank=order.local_rank, pid=pid))

    def _fork_store(self, wanted: messages.OpenStore) -> None:
        try:
            listener = listen(wanted.bind_to, wanted.port_range)
        except NoFreePortError as error:
            self._channel.send(messages.StoreOpened(error=str(error)))
            return
        port = listener.getsockname()[1]
        parent = os.getpid()
        self._store_pid = self._fork(lambda: _serve_store(listener, wanted.address, parent))
        listener.close()
        self._channel.send(messages.StoreOpened(port=port))

    def _fork(self, child: Callable[[], NoReturn]) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return pid
        try:
            self._channel.close()
            child()
        except BaseException:  # noqa: BLE001 - as above
            traceback.print_exc()
        finally:
            os._exit(1)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            now_s = time.time()
            self._hear_ranks()  # what this one said last
            leaving = self._leaving.pop(pid, None)
            teardown = None
            if leaving is not None and os.WIFSIGNALED(status):  # after the workload
                teardown = signal.Signals(os.WTERMSIG(status)).name
                status = leaving[0] << 8  # in the form of waitpid
            if pid == self._store_pid:
                self._store_pid = None
                if self._ending is None:
                    self._channel.send(messages.StoreLost())
            local_rank = self._ranks.pop(pid, None)
            if local_rank is not None:
                exited = messages.Exited(
                    local_rank=local_rank,
                    status=status,
                    time_s=now_s,
                    max_rss_bytes=usage.ru_maxrss * 1024,
                    teardown=teardown,
                    outlasted=pid in self._handling
                    and time.monotonic() >= self._kill_at[pid]
                    and (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL),
                )
                self._channel.send(exited)

    def _begin_ending(self, wanted: messages.End) -> None:
        self._ending = wanted.attempt
        now = time.monotonic()
        self._strays_at = None
        self._hear_ranks()
        # To the ranks alone: their DataLoader workers end with them, and must not end before.
        for pid, local_rank in self._ranks.items():
            if pid in self._leaving:
                self._kill_at[pid] = now + _LEAVING_GRACE_S
                continue
            # A program may know of SIGTERM only: what it saves then is worth as much at a SIGHUP.
            handled = [one for one in (wanted.signal, signal.SIGTERM) if catches(pid, one)]
            if handled:
                self._handling.add(pid)
            deaf = self._board.read(local_rank).ignores_sigterm
            self._kill_at[pid] = now + (wanted.grace_s if handled else _DEAF_GRACE_S)
            send_signal(pid, [*handled, signal.SIGKILL if deaf else wanted.signal][0])
            send_signal(pid, signal.SIGCONT)

    def _go_on_ending(self, attempt: int) -> None:
        now = time.monotonic()
        if self._ranks:
            for pid in self._ranks:
                if now >= self._kill_at[pid]:
                    send_signal(pid, signal.SIGKILL)
            return
        self._strays_at = self._strays_at or now + _STRAYS_GRACE_S
        if now < self._strays_at and set(children(os.getpid())) - {self._store_pid}:
            return
        kill_descendants()
        self._store_pid = None
        self._ending = None
        self._kill_at.clear()
        self._handling.clear()
        self._channel.send(messages.Gone(attempt=attempt))


def _serve_store(listener: socket.socket, address: str, parent_pid: int) -> NoReturn:
    """Serve the attempt's key-value store until killed: a process of its own, since it has threads,
    and one per attempt, since a store that knew the last attempt's ranks would mislead the next.

    Where torch is not imported for the ranks either they may never ask: its import waits for them.
    """
    die_with_parent(parent_pid)
    if "torch" not in sys.modules:
        select.select([listener], [], [])
    signal.set_wakeup_fd(-1)
    signal.signal(_AGENT_IS_GONE, signal.SIG_IGN)
    store = open_store(listener, address)
    while store is not None:
        signal.pause()
    os._exit(0)


def open_store(listener: socket.socket, address: str) -> TCPStore:
    """Return the store of an attempt, which serves in threads while it lives: it needs torch."""
    from datetime import timedelta

    from torch._C._distributed_c10d import TCPStore  # torch.distributed exports it untyped

    return TCPStore(
        address,
        listener.getsockname()[1],
        world_size=None,
        is_master=True,
        timeout=timedelta(seconds=30),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def _outlive_agent_briefly(agent_pid: int) -> None:
    """Kill what the ranks left behind when the agent dies: nobody else would know of it.

    The end of the channel tells of that too, but is not looked at during an import.
    """

    def follow(*_: object) -> None:
        if os.getppid() != agent_pid:  # others may send the signal too
            kill_descendants()
            os._exit(1)

    signal.signal(_AGENT_IS_GONE, follow)
    die_with_parent(agent_pid, _AGENT_IS_GONE)
