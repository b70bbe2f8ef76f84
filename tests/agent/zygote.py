"""Forks agents from a process that has torch already: real runs without the wait for the import.

Modules that it is called with are imported, too. Reads `<run directory>\\t<node>\\t<what
to call first>` and a zero byte, forks an agent for each, and reaps those that end. In the place of
an agent, `<folder>\\tscript\\t<JSON of argv and environment>` is a script in a process of its own.
"""

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed
from requeuing import TestRequeuer

from hpcdist.agent.agent import run_agent
from hpcdist.cluster.schedulers import SCHEDULERS
from hpcdist.schedulers.base import JobPlace

_SUPPORT = str(Path(__file__).parents[1] / "support")


def fork_agent(run_path, node, change):
    if os.fork():
        return
    os.setsid()
    with Path(run_path, "submitit", f"agent-{node}.out").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    SCHEDULERS["testing"] = "requeuing"
    sys.modules["requeuing"].scheduler = TestRequeuer(Path(run_path))
    try:
        if change:
            sys.path.insert(0, _SUPPORT)
            pkgutil.resolve_name(change)()
            sys.path.pop(0)
        run_agent(Path(run_path), JobPlace(node_rank=int(node), host=socket.gethostname()))
    except Exception:  # noqa: BLE001 - told, and the process ends
        traceback.print_exc()
    finally:
        os._exit(0)


def fork_script(folder, order):
    """Leaves in the folder what it writes, as `output`, and at its end `exit_code`."""
    if os.fork():
        return
    code = 1
    try:
        with Path(folder, "output").open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.chdir(folder)
        sys.argv, environment = json.loads(order)
        for name in [name for name, value in environment.items() if value is None]:
            del environment[name]
            os.environ.pop(name, None)
        os.environ.update(environment)
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as leaving:
        code = leaving.code or 0
    except BaseException:  # noqa: BLE001 - told, as by the interpreter
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        Path("exit_code.new").write_text(str(code))
        Path("exit_code.new").rename("exit_code")
        os._exit(0)


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path.insert(0, _SUPPORT)
    for name in sys.argv[1:]:
        importlib.import_module(name)
    sys.path.pop(0)
    gc.freeze()  # or each agent's forkserver looks through all that torch has made
    print("ready", torch.__version__, flush=True)
    buffer = b""
    while True:
        if select.select([0], [], [], 0.02)[0]:
            chunk = os.read(0, 65536)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\0")
            for line in lines:
                folder, kind, rest = os.fsdecode(line).rsplit("\t", 2)
                if kind == "script":
                    fork_script(folder, rest)
                else:
                    fork_agent(folder, kind, rest)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    sys.path.pop(0)
    del __file__  # as of a real agent, whose ranks' spawned workers have no script to import
    main()
