"""The program of a zygote: a process that has imported modules, and forks a child for each call.

Called with the number of a socket and the names of modules; `package.*` is all modules below. Each
message on the socket is a call in JSON, with descriptors: a pipe for the answer, and the child's
stdout and stderr. The answer is two numbers, its pid and then its exit code. See harness.py.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path

_SUPPORT = str(Path(__file__).parent)
_MOST_BYTES = 1 << 17
NUMBER_BYTES = 8


def agent(run_path, node, change):
    """Be the agent of a node; `change` ("module:function") is called first."""
    from hpcdist.agent.agent import run_agent
    from hpcdist.schedulers.base import JobPlace

    if change:
        sys.path.insert(0, _SUPPORT)
        pkgutil.resolve_name(change)()
        sys.path.pop(0)
    run_agent(Path(run_path), JobPlace(node_rank=node, host=socket.gethostname()))


def script(path):
    """Be `python PATH`."""
    sys.path.insert(0, os.path.dirname(path))
    runpy.run_path(path, run_name="__main__")


def hpcdist(arguments, folder=None):
    """Be `hpcdist` of a folder of programs, or else `python -m hpcdist`."""
    from hpcdist.cli.main import main

    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.path.insert(0, folder or os.getcwd())
    code = main(arguments)
    threading._shutdown()
    atexit._run_exitfuncs()
    return code


def hpcdist_with_agents(arguments):
    """Be `hpcdist`, and fork the agents of this machine's runs in place of their scripts."""
    from hpcdist.schedulers import local

    local.start_in_background = _fork_agents
    return hpcdist(arguments)


def _fork_agents(argv, log, _environment):
    """Fork the agents of a run; see `start_in_background` of the local scheduler."""
    from hpcdist.machine.process import identify

    sys.stdout.flush()
    agents = []
    for node in range(int(argv[4])):
        agents.append(os.fork())
        if agents[-1] == 0:
            os.setsid()
            with log.open("ab") as output:
                for descriptor in (1, 2):
                    os.dup2(output.fileno(), descriptor)
            os._exit(_agent_of_script(node, log.parent))
        threading.Thread(target=os.waitpid, args=(agents[-1], 0), daemon=True).start()
    return identify(agents[0])


def _agent_of_script(node, folder):
    """Be what the script of a run on this machine executes; return its exit code."""
    from hpcdist.entry import main
    from hpcdist.schedulers.tasks import NODE_VARIABLE

    os.environ[NODE_VARIABLE] = str(node)
    sys.argv[:] = ["-c", str(folder)]
    try:
        main(is_local=True)
    except BaseException:  # noqa: BLE001 - it must not go on as the command
        traceback.print_exc()
        return 1
    return 0


def torchrun(arguments, folder):
    """Be `torchrun` of a folder of programs."""
    sys.path.insert(0, folder)
    importlib.import_module("torch.distributed.run").main(arguments)


def _become(outputs, *, name, arguments, argv, cwd, environment):
    """Be what is called, to the end of this process."""
    code = 1
    try:
        os.setsid()
        for descriptor, place in zip(outputs, (1, 2), strict=True):
            os.dup2(descriptor, place)
        os.closerange(3, 1024)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if cwd:
            os.chdir(cwd)
        if environment is not None:
            os.environ.clear()
            os.environ.update(environment)
        sys.argv[:] = argv
        code = globals()[name](*arguments) or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - told, as by the interpreter
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _import(names):
    sys.path.insert(0, _SUPPORT)
    for name in names:
        package = importlib.import_module(name.removesuffix(".*"))
        if name.endswith(".*"):
            for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                importlib.import_module(module.name)
    sys.path.remove(_SUPPORT)


def _answer(pipe, value):
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it
        os.write(pipe, b"%*d" % (NUMBER_BYTES, value))


def _serve(channel):
    selector = selectors.DefaultSelector()
    selector.register(channel, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not channel:
                pid, pipe = key.data
                _answer(pipe, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                selector.unregister(key.fd)
                os.close(key.fd)
                os.close(pipe)
                continue
            request, descriptors, _, _ = socket.recv_fds(channel, _MOST_BYTES, 3)
            if not request:
                return
            pid = os.fork()
            if pid == 0:
                selector.close()
                channel.close()
                _become(descriptors[1:], **json.loads(request))
            for descriptor in descriptors[1:]:
                os.close(descriptor)
            _answer(descriptors[0], pid)
            ended = os.pidfd_open(pid)
            selector.register(ended, selectors.EVENT_READ, (pid, descriptors[0]))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    del __file__  # as of `python -m`: processes that children spawn have no script to import
    sys.path.pop(0)
    with socket.socket(fileno=int(sys.argv[1])) as line:
        _import(sys.argv[2:])
        gc.freeze()  # or each agent's forkserver looks through all that torch has made
        line.send(b"ready")
        _serve(line)
