"""The forkserver: imports what ranks need once per node, forks them, reaps them, ends them.

It is forked from the agent before the agent opens any connection, and is the only process of a node
that imports torch before the ranks exist. It never touches CUDA, since CUDA cannot be used in the
children of a process that has. It is one thread, since another one that holds a lock during a fork
can block the child.
What cannot be imported here is left to the ranks: a script may well do without it.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import NoReturn

from hpcdist.agent import messages, preflight
from hpcdist.agent.messages import Channel, ChannelClosedError
from hpcdist.base import files
from hpcdist.job.spec import JobSpec
from hpcdist.machine.ports import NoFreePortError, listen
from hpcdist.machine.process import (
    WARNING_SIGNALS,
    adopt_orphans,
    catches,
    children,
    die_with_parent,
    kill_descendants,
    let_trace,
    send_signal,
)
from hpcdist.rank import recorder as _recorder  # noqa: F401 - once, for all ranks
from hpcdist.rank.board import ProgressBoard, make_memory
from hpcdist.rank.context import RankOrder
from hpcdist.workloads import load_workload
from hpcdist.workloads.rank_process import become_rank

_LEAVING_GRACE_S = 3.0
"""Time that a rank which is leaving by itself has to end in order, where others are being ended:
shorter than what the coordinator allows."""
_DEAF_GRACE_S = 0.5
"""Time after a signal that a rank ignores: it may be writing why it ends by itself."""
_STRAYS_GRACE_S = 0.3
"""Time that processes which a rank left behind have to end by themselves."""

_ENDING_POLL_S = 0.01
"""Time between two looks at ranks that are being ended."""


def start_forkserver(
    job: JobSpec, board: ProgressBoard, stacks: StackMemory
) -> tuple[int, Channel[messages.FromForkserver]]:
    """Fork the forkserver from the calling agent; return its pid and the agent's end."""
    agent_end, server_end = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        agent_end.close()
        run_forkserver(job, board, stacks, Channel(server_end, messages.TO_FORKSERVER))
    server_end.close()
    return pid, Channel(agent_end, messages.FROM_FORKSERVER)


def run_forkserver(
    job: JobSpec, board: ProgressBoard, stacks: StackMemory, channel: Channel[messages.ToForkserver]
) -> NoReturn:
    """Be the forkserver, until the agent at the other end of the channel is gone."""
    code = 1
    try:
        adopt_orphans()
        # A signal to all processes must not end the ranks before the agent decides to.
        for signum in (*WARNING_SIGNALS, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(signum, signal.SIG_IGN)
        Forkserver(job, board, stacks, channel).serve()
    except ChannelClosedError:
        code = 0
    except BaseException:  # noqa: BLE001 - the copy of the agent must not run on above this frame
        traceback.print_exc()
    finally:
        kill_descendants()
        os._exit(code)


class StackMemory:
    """Memory for the stacks of each rank of a node, shared with the processes that are forked.

    A rank that hangs can open no file, and few hang: a file is made once there is something.
    """

    def __init__(self, num_ranks: int, descriptors: Sequence[int] = ()) -> None:
        """`descriptors` are those of another process's."""
        self.descriptors = list(descriptors) or [
            make_memory("hpcdist-stacks") for _ in range(num_ranks)
        ]
        self._num_kept = [0] * num_ranks
        """Bytes that are in a file already, or for nobody else to read."""

    def only(self, local_rank: int) -> int:
        """Return the descriptor that a rank writes to, for that rank's process: it has no other."""
        for other, descriptor in enumerate(self.descriptors):
            if other != local_rank:
                os.close(descriptor)
        return self.descriptors[local_rank]

    def clear(self) -> None:
        """Forget what ranks wrote that are gone, before others are forked."""
        for local_rank, descriptor in enumerate(self.descriptors):
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            self._num_kept[local_rank] = 0

    def num_bytes(self, local_rank: int) -> int:
        """Return how much a rank has written."""
        return os.fstat(self.descriptors[local_rank]).st_size

    def read(self, local_rank: int, begin: int = 0) -> str:
        """Return what a rank has written from a place on."""
        num_bytes = self.num_bytes(local_rank) - begin
        return os.pread(self.descriptors[local_rank], num_bytes, begin).decode(errors="replace")

    def skip(self, local_rank: int) -> None:
        """Keep nothing of what a rank has written until now: it was for who asked."""
        self._num_kept[local_rank] = self.num_bytes(local_rank)

    def keep(self, local_rank: int, path: Path) -> None:
        """Append what a rank has written since the last call to a file. Raises OSError."""
        if text := self.read(local_rank, self._num_kept[local_rank]):
            self.skip(local_rank)
            with open(files.open_to_append(path), "a") as file:
                file.write(text)


class Forkserver:
    """The state of the forkserver: which child is which rank, and what is being ended."""

    def __init__(
        self,
        job: JobSpec,
        board: ProgressBoard,
        stacks: StackMemory,
        channel: Channel[messages.ToForkserver],
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

    def serve(self) -> NoReturn:
        """Import, then answer; ChannelClosedError when the agent is gone."""
        wake_up = wake_up_on([signal.SIGCHLD])
        channel = self._channel.fileno()
        self._import()
        while True:
            timeout_s = None if self._ending is None else _ENDING_POLL_S
            ready, _, _ = select.select([channel, wake_up], [], [], timeout_s)
            if wake_up in ready:
                os.read(wake_up, 4096)
            self._reap()
            if channel in ready:
                for message in self._channel.receive():
                    self._obey(message)
            if self._ending is not None:
                self._go_on_ending(self._ending)

    def _import(self) -> None:
        gc.disable()  # imports make many objects and no garbage: looking for some is a fifth of it
        modules: list[str] = []
        with suppress(Exception):  # the script is in a zip file, or has changed meanwhile
            modules = load_workload(self._job).preload()
        for module in modules:
            with suppress(BaseException):  # SystemExit, too: the ranks will say it
                importlib.import_module(module)
        # Objects that the collector never visits again stay in pages that the ranks share. To look
        # for garbage first takes 0.3 s after torch, and frees only holes in those pages.
        gc.freeze()
        gc.enable()
        self._channel.send(messages.Ready())

    def _obey(self, message: messages.ToForkserver) -> None:
        try:
            match message:
                case messages.Fork(is_preflight=True):
                    fork_check(message.orders[0], self._channel)
                case messages.Fork():
                    for order in message.orders:
                        self._fork_rank(order)
                case messages.Begin():
                    listener = listen(message.meeting.bind_to, message.port_range)
                    port = listener.getsockname()[1]
                    self._store_pid = fork_store(listener, message.meeting.master_addr)
                    self._channel.send(messages.StoreOpened(port=port))
                case messages.End():
                    self._begin_ending(message)
                case messages.Pause():
                    for pid, local_rank in self._ranks.items():
                        # A program may handle SIGTERM, as torchrun sends it, but not SIGUSR2. One
                        # that asks at its step boundaries whether to stop does so there, whatever
                        # its libraries make of SIGTERM.
                        asks = self._board.read(local_rank).boundary > 0
                        knows = catches(pid, signal.SIGTERM) and not catches(pid, signal.SIGUSR2)
                        gets_sigterm = message.signal == "SIGTERM" and knows and not asks
                        send_signal(pid, signal.SIGTERM if gets_sigterm else signal.SIGUSR2)
        except NoFreePortError as error:
            self._channel.send(messages.Failed(sentence=f"no store: {error}"))
        except OSError as error:  # the limit of processes, or of memory
            sentence = f"a process cannot be forked: {error.strerror}"
            self._channel.send(messages.Failed(sentence=sentence))

    def _fork_rank(self, order: RankOrder) -> None:
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        if pid := os.fork():
            self._ranks[pid] = order.local_rank
            self._channel.send(messages.Started(local_rank=order.local_rank, pid=pid))
            return
        try:
            self._channel.close()
            let_trace()  # `hpcdist attach RUN -- py-spy` is no parent of it
            slot = self._board.only(order.local_rank)
            stacks = self._stacks.only(order.local_rank)
            become_rank(order, slot, parent, self._job, stacks=stacks)
        except BaseException:  # noqa: BLE001 - the copy of the forkserver must not run on above
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
            if pid == self._store_pid:
                self._store_pid = None
                if self._ending is None:
                    sentence = "the store where the ranks meet was lost"
                    self._channel.send(messages.Failed(sentence=sentence))
            local_rank = self._ranks.pop(pid, None)
            if local_rank is not None:
                exited = messages.Exited(
                    local_rank=local_rank,
                    status=status,
                    time_s=now_s,
                    max_rss_bytes=usage.ru_maxrss * 1024,
                    outlasted=pid in self._handling
                    and time.monotonic() >= self._kill_at[pid]
                    and (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL),
                )
                self._channel.send(exited)

    def _begin_ending(self, wanted: messages.End) -> None:
        self._ending = wanted.attempt
        now = time.monotonic()
        self._strays_at = None
        # Signals go to the ranks alone: their DataLoader workers end with them, and not before.
        for pid, local_rank in self._ranks.items():
            progress = self._board.read(local_rank)
            if progress.leaves:
                self._kill_at[pid] = now + _LEAVING_GRACE_S
                continue
            # A program may know of SIGTERM only: what it saves then is worth as much at a SIGHUP.
            handled = [one for one in (wanted.signal, signal.SIGTERM) if catches(pid, one)]
            if handled:
                self._handling.add(pid)
            self._kill_at[pid] = now + (wanted.grace_s if handled else _DEAF_GRACE_S)
            unhandled = signal.SIGKILL if progress.ignores_sigterm else wanted.signal
            send_signal(pid, handled[0] if handled else unhandled)
            send_signal(pid, signal.SIGCONT)

    def _go_on_ending(self, attempt: int) -> None:
        """Kill ranks whose time is over, then what they left behind, then send Gone."""
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


def wake_up_on(signals: Iterable[int]) -> int:
    """Return a descriptor that becomes readable, with their numbers, when these signals come."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    os.set_blocking(reading, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for signum in signals:
        signal.signal(signum, lambda *_: None)
    return reading


def fork_check(order: RankOrder, channel: Channel[messages.ToForkserver]) -> None:
    """Fork the process that checks this node, and tells the agent of it."""
    parent = os.getpid()
    if os.fork():
        return
    try:
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        os.environ.update(order.environment)
        figures = preflight.measure(order)
        channel.send(messages.Checked(attempt=order.attempt, figures=figures))
    except ImportError as error:
        channel.send(messages.Failed(sentence=f"launch.preflight needs torch: {error}"))
    except BaseException:  # noqa: BLE001 - the copy of the process must not run on above this frame
        traceback.print_exc()
    finally:
        os._exit(0)


def fork_store(listener: socket.socket, address: str) -> int:
    """Fork the process that serves an attempt's key-value store until it is killed; return its pid.

    The store has threads, so it is a process of its own; there is one per attempt, since a store
    that knew the last attempt's ranks would mislead the next. Where the forkserver has not imported
    torch, the ranks may never connect: the store imports torch when the first one does.
    """
    parent = os.getpid()
    if pid := os.fork():
        listener.close()
        return pid
    try:
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        if "torch" not in sys.modules:
            select.select([listener], [], [])
        from torch._C._distributed_c10d import TCPStore  # torch.distributed exports it untyped

        open_store = partial(
            TCPStore,
            address,
            listener.getsockname()[1],
            world_size=None,
            is_master=True,
            timeout=timedelta(seconds=30),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        try:
            store = open_store()
        except NotImplementedError:  # libuv takes no socket that listens already: torch 2.7
            store = open_store(use_libuv=False)
        while store is not None:
            signal.pause()
    except BaseException:  # noqa: BLE001 - the copy of the process must not run on above this frame
        traceback.print_exc()
    finally:
        os._exit(1)
