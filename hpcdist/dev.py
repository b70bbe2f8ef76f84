"""The program of a dev run, on each node of its allocation: starts the runs that are submitted with
`--in dev`, one after the other.

A dev run is an ordinary run (`hpcdist dev`): it waits, is entered, watched and cancelled as any.
On each node its local rank 0 serves. It has torch imported, and forks the agent of a run, which has
it then: like the forkserver, it is one thread and never touches CUDA. Orders are files in a folder
that only the user can write (`schedulers/dev.py`); no port is opened.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from hpcdist import entry
from hpcdist.base import files
from hpcdist.base.ownership import NotOwnError, read_own
from hpcdist.machine.command import python_command
from hpcdist.machine.process import kill_descendants, send_signal
from hpcdist.runs.run import Run
from hpcdist.schedulers.dev import SCHEDULER_VARIABLE, DevState, Order
from hpcdist.schedulers.request import time_limit_min
from hpcdist.schedulers.tasks import AgentTask
from hpcdist.workloads import load_workload, own_code

_POLL_S = 0.2
_LOOK_S = 2.0
"""Time between two looks for shells, and for the end of the dev run on other nodes."""
_WARNING_S = 60.0
"""Time before the end at which somebody who looks at the log is told."""


def main() -> None:
    """Serve until the dev run is to end: sys.argv has the seconds without a run or a shell after
    which it does."""
    dev = Run(Path(os.environ["HPCDIST_RUN_DIR"]))
    if os.environ["LOCAL_RANK"] != "0":
        while dev.dev_file.exists() or not os.path.lexists(_end_file(dev)):
            time.sleep(_LOOK_S)
        return
    Server(dev, idle_s=float(sys.argv[1])).serve()


def _end_file(dev: Run) -> Path:
    return dev.launch_folder / "dev.ended"


class Server:
    """The state of one node: the run that is under way, and since when there is none."""

    def __init__(self, dev: Run, *, idle_s: float) -> None:
        job, plan, spec = dev.read_launch()
        self._dev, self._idle_s = dev, idle_s
        self._node_rank = int(os.environ["NODE_RANK"])
        # The rank is bound to its share of the CPUs, and its parent to all that the job has.
        os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))
        _have_environment_of_agent(plan.environment)
        os.environ[SCHEDULER_VARIABLE] = str(spec.scheduler)
        limit_min = time_limit_min(job, spec.cluster.profile)
        self._ends_s = None if limit_min is None else time.time() + limit_min * 60
        self._started: set[str] = set()
        self._agent: int | None = None
        """Pid of the agent that is under way."""
        self._used_s = time.monotonic()
        self._is_warned = False
        self._is_ending = False

    def serve(self) -> None:
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGUSR2, self._warn)
        _import("torch", "torch.distributed")
        gc.freeze()  # what the collector does not visit stays in pages that the runs share
        if self._node_rank == 0:
            state = DevState(ends_s=self._ends_s, idle_s=self._idle_s)
            files.write_json(self._dev.dev_file, msgspec.to_builtins(state))
            print("ready: torch is imported", flush=True)
        self._used_s = time.monotonic()
        looked_s = 0.0
        while not (self._is_ending or os.path.lexists(_end_file(self._dev))):
            for path in sorted(self._dev.orders_folder.glob("*.json"))[:1]:
                if path.name not in self._started:
                    self._started.add(path.name)
                    self._carry_out(path)
                    looked_s = 0.0
            if time.monotonic() >= looked_s + _LOOK_S:
                looked_s = time.monotonic()
                self._look_at_time()
            time.sleep(_POLL_S)
        self._dev.dev_file.unlink(missing_ok=True)
        if self._node_rank == 0:
            _end_file(self._dev).touch()

    def _warn(self, *_: object) -> None:
        """The time limit is near: tell the run that is under way, and shells."""
        if self._agent is not None:
            send_signal(self._agent, signal.SIGUSR2)
        self._tell_shells("the time limit is near")

    def _end(self, *_: object) -> None:
        """End, and first the run that is under way."""
        self._is_ending = True
        if self._agent is not None:
            send_signal(self._agent, signal.SIGTERM)

    def _look_at_time(self) -> None:
        """Have the dev run end where nobody has used it for long; warn before."""
        if self._node_rank != 0 or not self._idle_s:
            return
        if any(True for _ in self._shells()):
            self._used_s, self._is_warned = time.monotonic(), False
        left_s = self._used_s + self._idle_s - time.monotonic()
        if left_s <= 0:
            print(f"it ends: {self._idle_s / 60:g} minutes without a run or a shell", flush=True)
            _end_file(self._dev).touch()
        elif left_s <= _WARNING_S and not self._is_warned:
            self._is_warned = True
            print(f"it ends in {left_s:.0f} s unless a run or a shell begins", flush=True)

    def _shells(self) -> Iterator[Path]:
        """Yield the folders in /proc of what `hpcdist attach` started on this node, and below; all
        have this rank's number, which it gets from its own start, too."""
        mark = f"HPCDIST_RANK_PID={os.getpid()}".encode()
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                is_own = place.name == str(os.getpid())
                if not is_own and mark in (place / "environ").read_bytes().split(b"\0"):
                    yield place

    def _tell_shells(self, sentence: str) -> None:
        print(sentence, flush=True)
        for place in self._shells():
            with suppress(OSError):
                if (terminal := os.readlink(place / "fd/0")).startswith("/dev/pts/"):
                    Path(terminal).write_text(f"\r\nhpcdist dev: {sentence}\r\n")

    def _carry_out(self, path: Path) -> None:
        """Start the agent of this node for the run that an order names, and wait for its end."""
        try:
            order = msgspec.json.decode(read_own(path), type=Order)
            run = Run(Path(order.run_path))
            _, plan, _ = run.read_launch()
            if self._node_rank < len(plan.nodes) and not run.verdict_file.exists():
                self._run_agent(order, run)
        except (NotOwnError, OSError, KeyError, msgspec.DecodeError) as error:
            print(f"{path} is not carried out: {error}", flush=True)
        self._used_s, self._is_warned = time.monotonic(), False
        if self._node_rank == 0:
            path.unlink(missing_ok=True)

    def _run_agent(self, order: Order, run: Run) -> None:
        sys.stdout.flush()
        if (pid := os.fork()) == 0:
            _become_agent(order, run, self._node_rank)
        self._agent = pid
        with suppress(ChildProcessError):  # killed, and reaped with the others
            while os.waitpid(pid, os.WNOHANG) == (0, 0):
                if run.kill_file.exists():
                    kill_descendants()
                time.sleep(_POLL_S / 8)
        self._agent = None
        _import(*_preload(run))  # the next run is likely to want the same


def _have_environment_of_agent(planned: Mapping[str, str]) -> None:
    """Have the environment that the dev run's agent was started with, and the GPUs that this gave
    its ranks: what it planned for them besides, each run plans anew."""
    lines = map(os.fsdecode, Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0"))
    kept = {name: text for name, text in os.environ.items() if name.endswith("_VISIBLE_DEVICES")}
    started = dict(line.split("=", 1) for line in lines if "=" in line)
    os.environ.clear()
    os.environ.update({n: text for n, text in started.items() if planned.get(n) != text} | kept)


def _become_agent(order: Order, run: Run, node_rank: int) -> NoReturn:
    """Be the agent of a run, in a process that was forked for it, and exit."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # until the agent handles it
        log = os.open(
            run.submitit_folder / f"dev_{node_rank}_log.out",
            os.O_WRONLY | os.O_CREAT | os.O_APPEND,
            files.PRIVATE_FILE,
        )
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.chdir(order.cwd)
        os.environ.update(order.environment)
        if "torch" not in _preload(run):  # it may set variables that torch reads as it is imported
            start = "from hpcdist.dev import be_agent; import sys; be_agent(sys.argv[1])"
            os.execv(sys.executable, python_command(start, str(run.path)))  # noqa: S606
        code = be_agent(str(run.path))
    except BaseException:  # noqa: BLE001 - the copy of the server must not run on above this frame
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def be_agent(run_path: str) -> int:
    """Be this node's agent in a run of the allocation; return the run's exit code."""
    run, node_rank, code = entry.be_agent(AgentTask(run_path=run_path, scheduler="dev"))
    if node_rank == 0:
        entry.keep_figures(run)
    return code


def _preload(run: Run) -> list[str]:
    """Return what the run's forkserver imports; nothing where it has to import torch itself."""
    own_code.read_once.cache_clear()  # files may have been edited since the last run
    with suppress(Exception):  # the ranks will say it
        modules = load_workload(run.read_launch()[0]).preload()
        return ["torch", *modules] if any(name.startswith("torch") for name in modules) else []
    return []


def _import(*modules: str) -> None:
    for module in modules:
        with suppress(Exception):  # the ranks will say it
            importlib.import_module(module)
