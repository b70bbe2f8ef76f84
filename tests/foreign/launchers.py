"""Starts torchrun and hpcdist as their commands do, from a process that has imported both already.

Reads one JSON object per line: {id, command, arguments, folder, environment, output, is_executed}.
A child is forked for each, which is the command, or is replaced by it where it is to be executed;
at its end {id, code} is written as a line. The ranks of both are real: torchrun starts an
interpreter for each, hpcdist an agent that imports what they need.
"""

import json
import os
import resource
import select
import signal
import sys
import traceback

import torch.distributed.run

import hpcdist.cli.main
import hpcdist.cli.submit  # the command imports it when it is called

_MODULES = {"torchrun": "torch.distributed.run", "hpcdist": "hpcdist"}


def _command(name, arguments):
    if name == "torchrun":
        torch.distributed.run.main(arguments)
    else:
        sys.exit(hpcdist.cli.main.main(arguments))


def _become(order):
    os.setsid()
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, source in ((0, nothing), (1, output), (2, output)):
        os.dup2(source, descriptor)
    os.closerange(3, 256)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if order["is_executed"]:
        command = [sys.executable, "-m", _MODULES[order["command"]], *order["arguments"]]
        os.execv(command[0], command)
    sys.argv = [order["command"], *order["arguments"]]
    _command(order["command"], order["arguments"])


def _fork(order):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _become(order)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _tell(**fields):
    print(json.dumps(fields), flush=True)


def _reap(running):
    for pid in list(running):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            _tell(id=running.pop(pid), code=os.waitstatus_to_exitcode(status))


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running = {}
    buffer = b""
    _tell(ready=True)
    while True:
        if select.select([0], [], [], 0.02)[0]:
            chunk = os.read(0, 1 << 16)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = _fork(order)
                running[pid] = order["id"]
                _tell(id=order["id"], pid=pid)
        _reap(running)


if __name__ == "__main__":
    main()
