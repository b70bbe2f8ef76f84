"""What a program can see of the process that it runs in, as facts-RANK.json.

introspection.py has what it sees of its own source, and torch_portrait.py what of torch.
"""

import asyncio
import atexit
import ctypes
import faulthandler
import gc
import inspect
import json
import linecache
import locale
import logging
import multiprocessing.resource_tracker
import multiprocessing.spawn
import os
import resource
import select
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
import warnings

began_s = time.process_time()
names_at_first = sorted(name for name in globals() if name.startswith("__"))


class Sample:
    """A class of the main script."""


def kind(fd):
    """What a descriptor is, without numbers that differ each time."""
    target = os.readlink(f"/proc/self/fd/{fd}")
    return target.partition(":")[0] if ":" in target else target


def descriptors(is_wanted):
    """Those that are wanted, but for the folder that is being listed."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if is_wanted(int(name)):
                found.append(name if int(name) < 3 else kind(name))
        except OSError:
            pass  # the listing's own
    return sorted(found)


def name_of(handler):
    return getattr(handler, "name", None) or getattr(handler, "__qualname__", str(handler))


def dispositions():
    names = {number: signal.Signals(number).name for number in signal.Signals}
    numbers = sorted(signal.valid_signals())
    return {str(names.get(each, int(each))): name_of(signal.getsignal(each)) for each in numbers}


def status_line(name):
    with open("/proc/self/status") as file:
        return next(line.split(":", 1)[1].strip() for line in file if line.startswith(name + ":"))


def read(path):
    with open(path) as file:
        return file.read()


def stream(number, name):
    value = getattr(sys, name)
    text = ("name", "mode", "encoding", "errors", "newlines", "line_buffering", "write_through")
    raw = getattr(value.buffer, "raw", value.buffer)
    return {each: str(getattr(value, each)) for each in text} | {
        "type": type(value).__name__,
        "isatty": value.isatty(),
        "fileno": value.fileno() == number,
        "buffer": type(value.buffer).__name__,
        "buffer.name": value.buffer.name,
        "buffer.mode": value.buffer.mode,
        "raw": type(raw).__name__,
        "closefd": getattr(raw, "closefd", None),
        "dunder": value is getattr(sys, f"__{name}__"),
    }


def stdin_is():
    data = os.read(0, 1) if select.select([0], [], [], 0)[0] else None
    return {"read": repr(data), "mode": stat.filemode(os.fstat(0).st_mode)}


def frames():
    found, frame = [], sys._getframe()
    while frame is not None:
        found.append(frame.f_code.co_name)
        frame = frame.f_back
    return found


def prctl(option):
    value = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(option, ctypes.byref(value), 0, 0, 0)
    return value.value


def flags():
    names = [name for name in dir(sys.flags) if name[0] != "_"]
    return {name: value for name in names if not callable(value := getattr(sys.flags, name))}


def running_loop():
    try:
        return str(asyncio.get_running_loop())
    except RuntimeError:
        return None


def spawn_data():
    data = multiprocessing.spawn.get_preparation_data("child").items()
    return {k: str(v) for k, v in sorted(data) if k not in {"authkey", "sys_path", "orig_dir"}}


HOOKS = ("excepthook", "unraisablehook", "displayhook", "breakpointhook")
WATCHED = "IPython ipykernel google.colab mpi4py pytest submitit cloudpickle msgspec click rich"
WATCHED += " yaml psutil numpy matplotlib pandas"
"""Modules that a program did not ask for; some libraries do other things where they find one."""

main = sys.modules["__main__"]
process = multiprocessing.current_process()
logged = logging.root.manager.loggerDict
FACTS = {
    "descriptors": lambda: descriptors(lambda fd: fd > 2),
    "inheritable_descriptors": lambda: descriptors(os.get_inheritable),
    "dispositions": dispositions,
    "stdin_is": stdin_is,
    "limits": lambda: {
        name: resource.getrlimit(getattr(resource, name))
        for name in dir(resource)
        if name.startswith("RLIMIT_")
    },
    "hooks": lambda: [name_of(getattr(sys, name)) for name in HOOKS],
    "hook_of_threads": lambda: threading.excepthook.__qualname__,
    "loggers.root": lambda: [logging.root.level, len(logging.root.handlers)],
    "loggers.disabled": lambda: [logging.root.manager.disable, logging.raiseExceptions],
    "loggers.names": lambda: [name for name in sorted(logged) if "torch" not in name],
    "loggers.configured": lambda: sorted(
        name
        for name, logger in logged.items()
        if getattr(logger, "handlers", None) or getattr(logger, "level", 0)
    ),
    "loggers.capturing": lambda: warnings.showwarning.__module__,
    "seen_warnings": lambda: sorted(
        name
        for name, module in list(sys.modules.items())
        if len(vars(module).get("__warningregistry__", ())) > 1
    ),
    "main_module.names": lambda: names_at_first,
    "main_module.file": lambda: main.__file__,
    "main_module.package": lambda: main.__package__,
    "main_module.spec": lambda: main.__spec__ and [main.__spec__.name, main.__spec__.origin],
    "main_module.loader": lambda: type(main.__loader__).__name__,
    "main_module.loader_path": lambda: getattr(main.__loader__, "path", None),
    "main_module.cached": lambda: main.__cached__,
    "main_module.doc": lambda: main.__doc__[:20],
    "main_module.builtins": lambda: type(main.__builtins__).__name__,
    "main_module.mp_main": lambda: "__mp_main__" in sys.modules,
    "main_module.is_globals": lambda: main.__dict__ is globals(),
    "main_module.code_name": lambda: sys._getframe(0).f_code.co_filename,
    "caller_of_main": lambda: frames()[-1],
    "depth": lambda: len(frames()),
    "threads.names": lambda: sorted(thread.name for thread in threading.enumerate()),
    "threads.is_main": lambda: threading.current_thread() is threading.main_thread(),
    "threads.ident_is_native": lambda: threading.get_native_id() == os.getpid(),
    "threads.native_id_kept": lambda: threading.main_thread().native_id == os.getpid(),
    "threads.count": lambda: len(os.listdir("/proc/self/task")),
    "threads.switch_interval": sys.getswitchinterval,
    "threads.traced": lambda: [str(sys.gettrace()), str(sys.getprofile())],
    "multiprocessing_state.name": lambda: process.name,
    "multiprocessing_state.pid": lambda: process.pid == os.getpid(),
    "multiprocessing_state.parent": lambda: multiprocessing.parent_process() is None,
    "multiprocessing_state.children": lambda: len(multiprocessing.active_children()),
    "multiprocessing_state.method": lambda: multiprocessing.get_start_method(allow_none=True),
    "multiprocessing_state.class": lambda: [type(process).__name__, len(process.authkey)],
    "multiprocessing_state.semaphore_tracker": lambda: (
        multiprocessing.resource_tracker._resource_tracker._pid is None
    ),
    "multiprocessing_state.config": lambda: sorted(process._config),
    "environment.names": lambda: sorted(os.environ),
    "environment.same": lambda: dict(os.environ),
    "process.leads_session": lambda: os.getsid(0) == os.getpid(),
    "process.leads_group": lambda: os.getpgid(0) == os.getpid(),
    "process.group_is_session": lambda: os.getpgid(0) == os.getsid(0),
    "process.parent_is_python": lambda: "python" in os.readlink(f"/proc/{os.getppid()}/exe"),
    "process.siblings": lambda: len(
        read(f"/proc/{os.getppid()}/task/{os.getppid()}/children").split()
    ),
    "process.nice": lambda: os.nice(0),
    "process.umask": lambda: status_line("Umask"),
    "process.cwd": os.getcwd,
    "process.blocked": lambda: status_line("SigBlk"),
    "process.ignored": lambda: status_line("SigIgn"),
    "process.dumpable": lambda: os.stat("/proc/self/environ").st_uid == os.getuid(),
    "process.scheduler": lambda: os.sched_getscheduler(0),
    "process.cpus": lambda: len(os.sched_getaffinity(0)),
    "process.comm": lambda: read("/proc/self/comm").strip(),
    "process.oom": lambda: read("/proc/self/oom_score_adj").strip(),
    "process.cmdline": lambda: read("/proc/self/cmdline").split("\0"),
    "process.environ_of_kernel": lambda: "RANK" in read("/proc/self/environ"),
    "process.exe": lambda: os.readlink("/proc/self/exe"),
    "process.subreaper": lambda: prctl(37),
    "process.death_signal": lambda: prctl(2),
    "collector.enabled": lambda: [gc.isenabled(), gc.get_threshold(), gc.get_debug()],
    "collector.callbacks": lambda: len(gc.callbacks),
    "collector.is_frozen": lambda: gc.get_freeze_count() > 1000,
    "interpreter.argv": lambda: sys.argv[:1],
    "interpreter.arguments": lambda: sys.argv[1:],
    "interpreter.flags": flags,
    "interpreter.orig_argv": lambda: sys.orig_argv,
    "interpreter.executable": lambda: [sys.executable, sys.prefix],
    "interpreter.path": lambda: sys.path,
    "interpreter.meta_path": lambda: [
        getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path
    ],
    "interpreter.options": lambda: [sys.warnoptions, sys._xoptions, sys.dont_write_bytecode],
    "interpreter.recursion_limit": sys.getrecursionlimit,
    "interpreter.filters": lambda: [[f[0], f[2].__name__, f[4]] for f in warnings.filters],
    "interpreter.exception": lambda: [str(sys.exc_info()), hasattr(sys, "last_type")],
    "time_state.little_cpu_used": lambda: began_s < 0.5,
    "time_state.locale": lambda: [locale.getlocale(), locale.setlocale(locale.LC_ALL)],
    "time_state.tempdir": tempfile.gettempdir,
    "time_state.tempfile_draws": lambda: tempfile._name_sequence is None,
    "time_state.faulthandler": faulthandler.is_enabled,
    "time_state.linecache": lambda: len(linecache.cache),
    "time_state.socket_timeout": socket.getdefaulttimeout,
    "time_state.atexit": atexit._ncallbacks,
    "time_state.loop": running_loop,
    "time_state.wakeup": lambda: signal.set_wakeup_fd(-1),
    "time_state.itimer": lambda: signal.getitimer(signal.ITIMER_REAL),
    "sources.file": lambda: inspect.getsourcefile(Sample),
    "sources.mp_spawn_data": spawn_data,
    "libraries": lambda: {name: name in sys.modules for name in WATCHED.split()},
    "streams.stdin": lambda: stream(0, "stdin"),
    "streams.stdout": lambda: stream(1, "stdout"),
    "streams.stderr": lambda: stream(2, "stderr"),
}


def tell(fact):
    try:
        return fact()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    facts = {name: tell(fact) for name, fact in FACTS.items()}
    with open(f"facts-{os.environ['RANK']}.json", "w") as file:
        json.dump(facts, file, indent=1, sort_keys=True)
