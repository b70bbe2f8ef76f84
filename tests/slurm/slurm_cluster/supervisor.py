"""The process above a cluster's daemons: boots them, obeys, and takes all with it at its end.

Orders come as JSON lines on stdin, one answer each on stdout. It ends when stdin does, or by a
signal that the kernel sends when the process that started it is gone. Step daemons leave their
parents; as a subreaper it inherits them, so that none escapes.
"""

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import sys
import traceback
from pathlib import Path

from made_once import made_once

from slurm_cluster import processes
from slurm_cluster.daemons import BootError, Daemons
from slurm_cluster.namespaces import NamespacedDaemons
from slurm_cluster.ports import claim_ports
from slurm_cluster.spec import ClusterSpec, Ports

_PR_SET_CHILD_SUBREAPER = 36
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_REAP_PERIOD_S = 0.2
FIRST_PORT_IN_NAMESPACES = 6817  # nobody else is there
_SHOWN_CHARACTERS = 2_000  # of each log, when the boot fails


class _Ended(Exception):  # noqa: N818 - no error: a signal asked for it
    """It is time to end."""


def main(spec_json):
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then end us
    for signum in _ENDING:
        signal.signal(signum, _end)
    spec = ClusterSpec.from_json(spec_json)
    try:
        with contextlib.suppress(_Ended):
            _serve(spec)
    finally:
        for signum in _ENDING:
            signal.signal(signum, signal.SIG_IGN)
        processes.kill_all(lambda: processes.descendants(os.getpid()))
        shutil.rmtree(spec.path, ignore_errors=True)


def _end(signum, frame):
    raise _Ended


def _serve(spec):
    with contextlib.ExitStack() as held:
        try:
            daemons = _boot(spec, held)
        except (BootError, OSError):
            _answer(error=traceback.format_exc() + _logs(spec))
            return
        _answer()
        _obey(daemons)


def _boot(spec, held):
    daemons = _daemons(spec, held)
    daemons.write_files()
    if spec.in_namespaces:
        daemons.make_network()
    daemons.start_munge()
    _start_database(daemons, spec.databases)
    daemons.start_controller()
    for node in spec.nodes:
        daemons.start_node(node)
    daemons.wait_until_idle()
    return daemons


def _start_database(daemons, kept):
    if kept is None:
        daemons.make_database()
        return

    def make(folder):
        daemons.make_database()
        daemons.keep_database(folder)

    daemons.take_database(made_once(Path(kept), "slurm-database", make))


def _daemons(spec, held):
    if spec.in_namespaces:
        return NamespacedDaemons(spec, Ports.from_base(FIRST_PORT_IN_NAMESPACES))
    base, claim = claim_ports(spec.num_nodes + 3)
    held.enter_context(claim)
    return Daemons(spec, Ports.from_base(base))


def _obey(daemons):
    orders = {
        "kill_node": daemons.kill_node,
        "kill_daemon": daemons.kill_daemon,
        "revive_node": daemons.start_node,
        "start_ended_nodes": daemons.start_ended_nodes,
        "stop_controller": daemons.stop_controller,
        "start_controller": daemons.start_controller,
        "pause_controller": lambda: daemons.signal("slurmctld", signal.SIGSTOP),
        "resume_controller": lambda: daemons.signal("slurmctld", signal.SIGCONT),
    }
    if isinstance(daemons, NamespacedDaemons):
        orders |= {"cut_link": daemons.cut_link, "mend_link": daemons.mend_link}
    for order, *arguments in _orders(daemons):
        try:
            orders[order](*arguments)
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


def _logs(spec):
    """The end of what each daemon said."""
    files = sorted((spec.path / "log").glob("*"))
    texts = [(file.name, file.read_text(errors="replace")) for file in files]
    return "".join(f"\n== {name}\n{text[-_SHOWN_CHARACTERS:]}" for name, text in texts if text)
