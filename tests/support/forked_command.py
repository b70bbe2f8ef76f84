"""The command, forked from a process that has imported it: a process of its own, but for its start.

With `serve` as its first argument this file is that process.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback

_DRAWING = ("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg")
_PACKAGES = ("cli", "submission", "schedulers", "monitor", "summary", "job", "runs", "cluster")
_SUBMITTING = ("psutil", "pynvml", "hpcdist.rank.own_loop")
"""Packages that no module imports before it needs them: two thirds of the CPU time of a submission
that is forked."""
_MOST_BYTES = 1 << 17
_NAMES = (["hpcdist"], [sys.executable, "-m", "hpcdist"])


@contextlib.contextmanager
def command_server(lasting_process, *modules):
    """Start the process, with these modules, too; `lasting_process` is the fixture."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, "serve", str(theirs.fileno()), *modules],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        lasting_process(process.pid)
        theirs.close()
        yield ours
    process.wait(60)


def run_command(server, arguments, *, cwd, environment, limit_s, new_session=False):
    """Run the command as subprocess.run does, which captures its output as text."""
    request = {
        "arguments": arguments,
        "cwd": str(cwd),
        "environment": dict(environment),
        "new_session": new_session,
    }
    pipes = [os.pipe(), os.pipe()]
    socket.send_fds(server, [json.dumps(request).encode()], [write for _, write in pipes])
    for _, write in pipes:
        os.close(write)
    server.settimeout(limit_s)
    pid = json.loads(server.recv(_MOST_BYTES))
    deadline = time.monotonic() + limit_s
    try:
        outputs = _read_all([read for read, _ in pipes], deadline)
        server.settimeout(max(0.1, deadline - time.monotonic()))
        status = json.loads(server.recv(_MOST_BYTES))
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        server.settimeout(limit_s)
        server.recv(_MOST_BYTES)
        raise subprocess.TimeoutExpired(arguments, limit_s) from None
    finally:
        for read, _ in pipes:
            os.close(read)
    texts = (output.decode().replace("\r\n", "\n").replace("\r", "\n") for output in outputs)
    return subprocess.CompletedProcess(arguments, status, *texts)


def run_user_command(server, words, *, timeout, cwd=None, **options):
    """Run what a user types as subprocess.run does; hpcdist itself is forked from the server,
    where there is one and nothing is to be typed into it."""
    name = next((name for name in _NAMES if words[: len(name)] == name), None)
    if server and name and "input" not in options:
        return run_command(
            server,
            words[len(name) :],
            cwd=cwd or os.getcwd(),
            environment=options["env"],
            limit_s=timeout,
        )
    if "input" not in options:
        options["stdin"] = subprocess.DEVNULL
    return subprocess.run(
        words, cwd=cwd, timeout=timeout, capture_output=True, text=True, check=False, **options
    )


def _read_all(pipes, deadline):
    """Return the bytes of each pipe until nobody has it open for writing, as for subprocess.run."""
    outputs = dict.fromkeys(pipes, b"")
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(deadline - time.monotonic())
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                chunk = os.read(key.fd, 1 << 16)
                outputs[key.fd] += chunk
                if not chunk:
                    selector.unregister(key.fd)
    return list(outputs.values())


def _serve(server, modules):
    import hpcdist

    packages = [importlib.import_module(f"hpcdist.{name}") for name in _PACKAGES]
    for package in packages:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    for name in (*_DRAWING, *_SUBMITTING, *modules):
        importlib.import_module(name)
    program = os.path.join(os.path.dirname(hpcdist.__file__), "__main__.py")
    gc.freeze()
    while True:
        request, fds, _, _ = socket.recv_fds(server, _MOST_BYTES, 2)
        if not request:
            return
        pid = os.fork()
        if pid == 0:
            server.close()
            _run(program, fds, **json.loads(request))
        for fd in fds:
            os.close(fd)
        server.send(json.dumps(pid).encode())
        _, status = os.waitpid(pid, 0)
        server.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())


def _run(program, fds, *, arguments, cwd, environment, new_session):
    from hpcdist.cli.main import main

    code = 1
    try:
        for fd, place in zip(fds, (1, 2), strict=True):
            os.dup2(fd, place)
            os.close(fd)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(  # noqa: SIM115
            2, "w", buffering=1, errors="backslashreplace", closefd=False
        )
        if new_session:
            os.setsid()
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environment)
        sys.path[0] = cwd
        sys.argv[:] = [program, *arguments]
        code = main()
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - told, as by the interpreter
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    del __file__  # as of `python -m`: processes that it spawns have no script to import
    with socket.socket(fileno=int(sys.argv[2])) as channel:
        _serve(channel, sys.argv[3:])
