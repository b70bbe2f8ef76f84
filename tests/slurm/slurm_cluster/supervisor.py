"""The process above a cluster's daemons: boots them, obeys, and takes all with it at its end.

`python -m slurm_cluster.supervisor SPEC`. Orders, methods of Daemons with their arguments, come as
JSON lines on stdin, one answer each on stdout. It ends when stdin does, or by a signal that the
kernel sends when the process that started it is gone. Step daemons leave their parents; as a
subreaper it inherits them, so that none escapes.
"""

import contextlib
import ctypes
import dataclasses
import json
import os
import random
import selectors
import shutil
import signal
import socket
import sys
import traceback

from slurm_cluster import processes
from slurm_cluster.config import ClusterSpec
from slurm_cluster.daemons import BootError, Daemons
from slurm_cluster.namespaces import NamespacedDaemons

_PR_SET_CHILD_SUBREAPER = 36
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_REAP_PERIOD_S = 0.2
_SHOWN_CHARACTERS = 2_000  # of each log, when the boot fails
_PORTS = range(10_000, 20_000)
"""Below the kernel's ephemeral range, and below the ports that hpcdist itself takes."""


class _Ended(Exception):  # noqa: N818 - no error: a signal asked for it
    """It is time to end."""


def main(spec_json):
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then end us
    for signum in _ENDING:
        signal.signal(signum, _end)
    spec = ClusterSpec(**json.loads(spec_json))
    try:
        with contextlib.suppress(_Ended), contextlib.ExitStack() as held:
            _serve(spec, held)
    finally:
        for signum in _ENDING:
            signal.signal(signum, signal.SIG_IGN)
        processes.kill_all(lambda: processes.descendants(os.getpid()))
        shutil.rmtree(spec.path, ignore_errors=True)


def _end(signum, frame):
    raise _Ended


def _serve(spec, held):
    try:
        if spec.in_namespaces:
            daemons = NamespacedDaemons(spec)
        else:
            first_port = _claim_ports(spec.num_ports, held)
            daemons = Daemons(dataclasses.replace(spec, first_port=first_port))
        daemons.boot()
    except (BootError, OSError):
        logs = "".join(
            f"\n== {file.name}\n{file.read_text(errors='replace')[-_SHOWN_CHARACTERS:]}"
            for file in sorted((spec.path / "log").glob("*"))
        )
        _answer(error=traceback.format_exc() + logs)
        return
    _answer()
    for name, *arguments in _orders(daemons):
        try:
            getattr(daemons, name)(*arguments)
        except Exception:  # noqa: BLE001 - whatever it is, the test must hear of it
            _answer(error=traceback.format_exc())
        else:
            _answer()


def _orders(daemons):
    """Until the other end is closed; meanwhile ended processes are collected."""
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            if not selector.select(_REAP_PERIOD_S):
                processes.reap(daemons.popens)
            elif line := sys.stdin.readline():
                yield json.loads(line)
            else:
                return


def _answer(error=None):
    print(json.dumps({"error": error}), flush=True)


def _claim_ports(number, held):
    """The first of so many free consecutive ports.

    Two clusters that boot at once would both find the same ports free. So a block is claimed first,
    by a name that the kernel gives to one process only and takes back however that ends.
    """
    blocks = _PORTS[:-number:number]
    for base in random.sample(blocks, len(blocks)):
        with contextlib.ExitStack() as kept, contextlib.suppress(OSError):
            claim = kept.enter_context(socket.socket(socket.AF_UNIX))
            claim.bind(f"\0hpcdist-test-cluster-{base}")
            for port in range(base, base + number):
                with socket.create_server(("0.0.0.0", port)):
                    pass
            held.push(kept.pop_all())
            return base
    raise OSError(f"no {number} ports in a row are free in {_PORTS}")


if __name__ == "__main__":
    main(sys.argv[1])
