"""The program of a dev run, on each node of its allocation: starts the runs that are submitted with
`--in dev`, one after the other.

A dev run is an ordinary run (`hpcdist dev`): it waits, is entered, watched and cancelled as any.
On each node its local rank 0 serves. It has torch imported, and forks the agent of a run, which has
it then: like the forkserver, it is one thread and never touches CUDA. Orders are files in a folder
that only the user can write (`schedulers/held.py`); no port is opened. The first node makes that
folder when it is ready, and renames it at the end.
"""

from __future__ import annotations

import gc
import importlib
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec
from msgspec.structs import replace

from hpcdist import entry
from hpcdist.agent.agent import run_agent
from hpcdist.base import files
from hpcdist.base.ownership import NotOwnError, read_own
from hpcdist.base.progress import poll
from hpcdist.machine.command import python_command
from hpcdist.machine.process import send_signal
from hpcdist.monitor.states import end_verdict
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import cancelled_verdict
from hpcdist.schedulers import load_scheduler
from hpcdist.schedulers.base import Condition
from hpcdist.schedulers.held import Order
from hpcdist.workloads import load_workload, own_code
from hpcdist.workloads.rank_process import redirect_output

_POLL_S = 0.2
_LOOK_S = 2.0
"""Time between two looks for shells."""
_WARNING_S = 60.0
"""Time before the end at which somebody who looks at the log is told."""


def main() -> None:
    """Serve until the dev run is to end: sys.argv has the seconds without a run or a shell after
    which it does."""
    dev = Run(Path(os.environ["HPCDIST_RUN_DIR"]))
    if os.environ["LOCAL_RANK"] == "0":
        Server(dev, idle_s=float(sys.argv[1])).serve()
    while not os.path.lexists(dev.orders_end):
        time.sleep(_LOOK_S)


class Server:
    """The state of one node: the run that is under way, and since when there is none."""

    def __init__(self, dev: Run, *, idle_s: float) -> None:
        plan = dev.read_launch()[1]
        self._dev, self._idle_s = dev, idle_s
        self._node_rank = int(os.environ["NODE_RANK"])
        # The rank is bound to its share of the CPUs, and its parent to all that the job has.
        os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))
        # The environment that its parent was started with, and the GPUs that this gave its ranks:
        # what was planned for them besides, each run plans anew.
        lines = map(os.fsdecode, Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0"))
        started = dict(line.split("=", 1) for line in lines if "=" in line)
        gpus = {name: os.environ[name] for name in os.environ if name.endswith("_VISIBLE_DEVICES")}
        kept = {n: text for n, text in started.items() if plan.environment.get(n) != text}
        os.environ.clear()
        os.environ.update(kept | gpus)
        self._agent: int | None = None
        """Pid of the agent that is under way."""
        self._is_ending = False

    def serve(self) -> None:
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, self._take)
        _import("torch", "torch.distributed")
        gc.freeze()  # what the collector does not visit stays in pages that the runs share
        if self._node_rank == 0:
            self._dev.orders_folder.mkdir(mode=files.PRIVATE_FOLDER)
        started, used_s, look_s, before_s = set[Path](), time.monotonic(), 0.0, math.inf
        while not (self._is_ending or os.path.lexists(self._dev.orders_end)):
            time.sleep(_POLL_S)
            orders = self._dev.orders_folder
            if self._node_rank == 0 and (waiting := sorted(orders.glob("*.json"))):
                waiting[0].rename(waiting[0].with_suffix(".begun"))  # by which all nodes go
            for path in {*orders.glob("*.begun")} - started:
                started.add(path)
                self._carry_out(path)
                used_s = time.monotonic()
            if self._node_rank != 0 or not self._idle_s or time.monotonic() < look_s:
                continue
            look_s = time.monotonic() + _LOOK_S
            if any(True for _ in self._shells()):
                used_s = time.monotonic()
            left_s = used_s + self._idle_s - time.monotonic()
            if left_s <= 0:
                idle = f"{self._idle_s / 60:g} minutes"
                print(f"it ends: {idle} without a run or a shell", flush=True)
                self._is_ending = True
            elif left_s <= _WARNING_S < before_s:
                print(f"it ends in {left_s:.0f} s unless a run or a shell begins", flush=True)
            before_s = left_s
        if self._node_rank == 0:
            left = self._dev.orders_folder.rename(self._dev.orders_end)
            for path in left.glob("*.json"):
                self._carry_out(path)

    def _take(self, number: int, _frame: object) -> None:
        """Pass a signal on to the run that is under way. SIGTERM: end after it; SIGUSR2: the time
        limit is near, tell shells, too."""
        self._is_ending |= number == signal.SIGTERM
        if self._agent is not None:
            send_signal(self._agent, signal.Signals(number))
        if number == signal.SIGTERM:
            return
        signal.signal(number, signal.SIG_IGN)  # the scheduler sends it, and this one's agent, too
        print("the time limit is near", flush=True)
        for place in self._shells():
            with suppress(OSError):
                if (terminal := os.readlink(place / "fd/0")).startswith("/dev/pts/"):
                    Path(terminal).write_text("\r\nhpcdist dev: the time limit is near\r\n")

    def _shells(self) -> Iterator[Path]:
        """Yield the folders in /proc of what `hpcdist attach` started on this node, and below; all
        have this rank's number, which it gets from its own start, too."""
        mark = f"HPCDIST_RANK_PID={os.getpid()}".encode()
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                is_own = place.name == str(os.getpid())
                if not is_own and mark in (place / "environ").read_bytes().split(b"\0"):
                    yield place

    def _carry_out(self, path: Path) -> None:
        """Start the agent of this node for the run that an order names, and wait for its end; once
        the dev run is to end, say that the run is not started."""
        run = Run(self._dev.path.parent / path.stem.partition("-")[2])
        try:
            order = msgspec.json.decode(read_own(path), type=Order)
            is_in = self._node_rank < run.spec.outline.resources.nodes
            if is_in and not (self._is_ending or run.verdict_file.exists()):
                self._run_agent(order, run)
        except (NotOwnError, OSError, msgspec.DecodeError) as error:
            print(f"{path} is not carried out: {error}", flush=True)
        if self._node_rank != 0:
            return
        path.unlink(missing_ok=True)
        # A command that has killed it says so in a moment.
        if poll(run.read_verdict, interval_s=_POLL_S, limit_s=1.0) is None:
            verdict = end_verdict(run, Condition(state="lost"))
            if self._is_ending and not run.has_started():
                verdict = cancelled_verdict(f"cancelled: {self._dev.id} ended before it began")
            with suppress(OSError):  # somebody has removed it
                run.write_verdict(verdict)

    def _run_agent(self, order: Order, run: Run) -> None:
        preload = list[str]()
        own_code.read_once.cache_clear()  # files may have been edited since the last run
        with suppress(Exception):  # the ranks will say it
            os.chdir(order.cwd)
            preload = load_workload(run.read_launch()[0]).preload()
        # A script may set variables that torch reads as it is imported: it has a fresh process.
        is_fresh = not any(name.startswith("torch") for name in preload)
        if not is_fresh:
            _import(*preload)  # the runs after it are likely to want the same
        if (pid := os.fork()) == 0:
            _become_agent(order, run, self._node_rank, is_fresh=is_fresh)
        self._agent = pid
        os.waitpid(pid, 0)
        self._agent = None


def _become_agent(order: Order, run: Run, node_rank: int, *, is_fresh: bool) -> NoReturn:
    """Be the agent of a run, in a process that was forked for it, and exit."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # until the agent handles it
        redirect_output(run.submitit_folder / f"dev_{node_rank}_log.out")
        os.chdir(order.cwd)
        os.environ.update(order.environment)
        if is_fresh:
            start = "from hpcdist.dev import be_agent; import sys; be_agent(sys.argv[1])"
            os.execv(sys.executable, python_command(start, str(run.path)))  # noqa: S606
        code = be_agent(str(run.path))
    except BaseException:  # noqa: BLE001 - the copy of the server must not run on above this frame
        traceback.print_exc()
    finally:
        os._exit(code)


def be_agent(run_path: str) -> int:
    """Be this node's agent in a run of the allocation; return the run's exit code."""
    run = Run(Path(run_path))
    place = load_scheduler(str(run.spec.scheduler)).place()
    # The run may be on fewer nodes, and begins now.
    code = run_agent(run.path, replace(place, num_nodes=None, age_s=0.0))
    if place.node_rank == 0:
        entry.keep_figures(run)
    return code


def _import(*modules: str) -> None:
    for module in modules:
        with suppress(Exception):  # the ranks will say it
            importlib.import_module(module)
