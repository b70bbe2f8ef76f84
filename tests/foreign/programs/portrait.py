"""What a program can see of the process that it runs in, as facts-RANK.json.

introspection.py has what it sees of its own source, and torch_portrait.py what of torch.
"""

import asyncio
import atexit
import codecs
import contextvars
import decimal
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
import tracemalloc
import warnings

began_s = time.process_time()
names_at_first = sorted(name for name in globals() if name.startswith("__"))


class Sample:
    """A class of the main script."""


def kind(fd):
    """What a descriptor is, without numbers that differ each time."""
    target = os.readlink(f"/proc/self/fd/{fd}")
    return target.partition(":")[0] if ":" in target else target


def descriptors():
    """Those that are neither the standard ones nor the folder that is being listed."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2:
                found.append(f"{kind(name)}")
        except OSError:
            pass  # the listing's own
    return sorted(found)


def inheritable_descriptors():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.get_inheritable(int(name)):
                found.append(f"{int(name)}" if int(name) < 3 else kind(name))
        except OSError:
            pass
    return sorted(found)


def dispositions():
    found = {}
    for number in sorted(signal.valid_signals()):
        handler = signal.getsignal(number)
        name = signal.Signals(number).name if number in list(signal.Signals) else str(int(number))
        found[name] = getattr(handler, "name", None) or getattr(
            handler, "__qualname__", str(handler)
        )
    return found


def status_line(name):
    with open("/proc/self/status") as file:
        return next(line.split(":", 1)[1].strip() for line in file if line.startswith(name + ":"))


def stream(value):
    if value is None:
        return None
    return {
        "type": type(value).__name__,
        "name": value.name,
        "mode": value.mode,
        "encoding": value.encoding,
        "errors": value.errors,
        "newlines": str(value.newlines),
        "line_buffering": value.line_buffering,
        "write_through": value.write_through,
        "isatty": value.isatty(),
        "fileno": value.fileno(),
        "buffer": type(value.buffer).__name__,
        "buffer.name": value.buffer.name,
        "buffer.mode": value.buffer.mode,
        "raw": type(getattr(value.buffer, "raw", value.buffer)).__name__,
        "closefd": getattr(getattr(value.buffer, "raw", value.buffer), "closefd", None),
        "dunder": value
        is getattr(sys, f"__{ {0: 'stdin', 1: 'stdout', 2: 'stderr'}[value.fileno()] }__"),
    }


def stdin_is():
    data = os.read(0, 1) if select.select([0], [], [], 0)[0] else None
    return {"read": repr(data), "mode": stat.filemode(os.fstat(0).st_mode)}


def limits():
    return {
        name: resource.getrlimit(getattr(resource, name))
        for name in sorted(dir(resource))
        if name.startswith("RLIMIT_")
    }


def hook_names():
    return {
        name: f"{getattr(sys, name).__module__}.{getattr(sys, name).__qualname__}"
        for name in ("excepthook", "unraisablehook", "displayhook", "breakpointhook")
    } | {"threading": threading.excepthook.__qualname__}


def loggers():
    root = logging.getLogger()
    return {
        "root_level": root.level,
        "root_handlers": [type(handler).__name__ for handler in root.handlers],
        "raise": logging.raiseExceptions,
        "last_resort": type(logging.lastResort).__name__,
        "disabled": logging.root.manager.disable,
        "class": logging.getLoggerClass().__name__,
        "factory": logging.getLogRecordFactory().__name__,
        "names": [name for name in sorted(logging.root.manager.loggerDict) if "torch" not in name],
        "configured": sorted(
            name
            for name, logger in logging.root.manager.loggerDict.items()
            if getattr(logger, "handlers", None) or getattr(logger, "level", 0)
        ),
        "capturing": warnings.showwarning.__module__,
    }


def seen_warnings():
    return sorted(
        name
        for name, module in list(sys.modules.items())
        if len(vars(module).get("__warningregistry__", ())) > 1
    )


def main_module():
    main = sys.modules["__main__"]
    spec = main.__spec__
    return {
        "names": names_at_first,
        "file": main.__file__,
        "package": main.__package__,
        "spec": spec and [spec.name, spec.origin],
        "loader": type(main.__loader__).__name__,
        "loader_name": getattr(main.__loader__, "name", None),
        "loader_path": getattr(main.__loader__, "path", None),
        "cached": main.__cached__,
        "doc": (main.__doc__ or "")[:20],
        "builtins": type(main.__builtins__).__name__,
        "mp_main": "__mp_main__" in sys.modules,
        "is_globals": main.__dict__ is globals(),
        "class": type(main).__name__,
        "code_name": sys._getframe(0).f_code.co_filename,
    }


def caller_of_main():
    frame, names = inspect.currentframe(), []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names[-1]


def depth():
    frame, count = sys._getframe(), 0
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count


def threads():
    return {
        "names": sorted(thread.name for thread in threading.enumerate()),
        "main": threading.main_thread().name,
        "is_main": threading.current_thread() is threading.main_thread(),
        "ident_is_native": threading.get_native_id() == os.getpid(),
        "native_id_kept": threading.main_thread().native_id == os.getpid(),
        "count": len(os.listdir("/proc/self/task")),
        "stack_size": threading.stack_size(),
        "switch_interval": sys.getswitchinterval(),
        "trace": str(sys.gettrace()),
        "profile": str(sys.getprofile()),
    }


def multiprocessing_state():
    current = multiprocessing.current_process()
    return {
        "name": current.name,
        "daemon": current.daemon,
        "pid": current.pid == os.getpid(),
        "parent": multiprocessing.parent_process() is None,
        "children": len(multiprocessing.active_children()),
        "method": multiprocessing.get_start_method(allow_none=True),
        "authkey": len(current.authkey),
        "class": type(current).__name__,
        "executable": multiprocessing.spawn.get_executable() == os.fsencode(sys.executable)
        or multiprocessing.spawn.get_executable() == sys.executable,
        "semaphore_tracker": multiprocessing.resource_tracker._resource_tracker._pid is None,
        "inheriting": getattr(current, "_inheriting", None),
        "config": sorted(current._config),
    }


def environment():
    return {"names": sorted(os.environ), "same": dict(os.environ)}


def process():
    return {
        "leads_session": os.getsid(0) == os.getpid(),
        "leads_group": os.getpgid(0) == os.getpid(),
        "group_is_session": os.getpgid(0) == os.getsid(0),
        "parent_is_python": "python" in os.readlink(f"/proc/{os.getppid()}/exe"),
        "siblings": len(open(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read().split()),
        "nice": os.nice(0),
        "umask": status_line("Umask"),
        "cwd": os.getcwd(),
        "uid": [os.getuid(), os.geteuid(), os.getgid(), os.getgroups()],
        "blocked": status_line("SigBlk"),
        "ignored": status_line("SigIgn"),
        "seccomp": status_line("Seccomp"),
        "no_new_privileges": status_line("NoNewPrivs"),
        "dumpable": os.stat("/proc/self/environ").st_uid == os.getuid(),
        "scheduler": os.sched_getscheduler(0),
        "cpus": len(os.sched_getaffinity(0)),
        "comm": open("/proc/self/comm").read().strip(),
        "oom": open("/proc/self/oom_score_adj").read().strip(),
        "timer_slack": open("/proc/self/timerslack_ns").read().strip()
        if os.path.exists("/proc/self/timerslack_ns")
        else None,
        "ctty": os.ttyname(0) if os.isatty(0) else None,
        "cmdline": open("/proc/self/cmdline").read().split("\0"),
        "environ_of_kernel": "RANK" in open("/proc/self/environ").read(),
        "exe": os.readlink("/proc/self/exe"),
        "subreaper": prctl(37),
        "death_signal": prctl(2),
    }


def prctl(option):
    import ctypes

    value = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(option, ctypes.byref(value), 0, 0, 0)
    return value.value


def collector():
    return {
        "enabled": gc.isenabled(),
        "threshold": gc.get_threshold(),
        "debug": gc.get_debug(),
        "callbacks": len(gc.callbacks),
        "is_frozen": gc.get_freeze_count() > 1000,
    }


def interpreter():
    return {
        "argv": sys.argv[:1],
        "arguments": sys.argv[1:],
        "flags": {
            name: getattr(sys.flags, name)
            for name in dir(sys.flags)
            if name[0] != "_" and not callable(getattr(sys.flags, name))
        },
        "orig_argv": sys.orig_argv,
        "executable": sys.executable,
        "prefix": [sys.prefix, sys.exec_prefix, sys.base_prefix],
        "path": sys.path,
        "path0": sys.path[0],
        "meta_path": [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path],
        "path_hooks": len(sys.path_hooks),
        "warnoptions": sys.warnoptions,
        "xoptions": sys._xoptions,
        "dont_write_bytecode": sys.dont_write_bytecode,
        "pycache_prefix": sys.pycache_prefix,
        "recursion_limit": sys.getrecursionlimit(),
        "int_digits": sys.get_int_max_str_digits(),
        "filters": [[f[0], f[2].__name__, f[4]] for f in warnings.filters],
        "interactive": hasattr(sys, "ps1"),
        "last_type": hasattr(sys, "last_type"),
        "exc_info": str(sys.exc_info()),
        "tracebacklimit": hasattr(sys, "tracebacklimit"),
        "builtins": sorted(
            set(dir(__builtins__))
            & {"exit", "quit", "copyright", "help", "credits", "license", "_"}
        ),
        "filesystem_encoding": sys.getfilesystemencoding(),
        "default_encoding": sys.getdefaultencoding(),
        "site": "site" in sys.modules,
    }


def time_state():
    return {
        "little_cpu_used": began_s < 0.5,
        "tz": time.tzname,
        "locale": [
            locale.getlocale(),
            locale.getpreferredencoding(False),
            locale.setlocale(locale.LC_ALL),
        ],
        "float": float.__repr__(0.1),
        "decimal": repr(decimal.getcontext()),
        "tempdir": tempfile.gettempdir(),
        "tempfile_draws": tempfile._name_sequence is None,
        "tracemalloc": tracemalloc.is_tracing(),
        "faulthandler": faulthandler.is_enabled(),
        "context": len(contextvars.copy_context()),
        "linecache": len(linecache.cache),
        "socket_timeout": socket.getdefaulttimeout(),
        "host": socket.gethostname() == os.uname().nodename,
        "atexit": atexit._ncallbacks(),
        "loop": running_loop(),
        "policy": type(asyncio.get_event_loop_policy()).__name__,
        "codecs": codecs.lookup("utf-8").name,
        "wakeup": signal.set_wakeup_fd(-1),
        "itimer": signal.getitimer(signal.ITIMER_REAL),
        "hash_seed": os.environ.get("PYTHONHASHSEED"),
    }


def running_loop():
    try:
        return str(asyncio.get_running_loop())
    except RuntimeError:
        return None


def sources():
    return {
        "file": inspect.getsourcefile(Sample),
        "mp_spawn_data": spawn_data(),
    }


def spawn_data():
    from multiprocessing import spawn

    data = spawn.get_preparation_data("child")
    return {
        name: str(value)
        for name, value in sorted(data.items())
        if name not in {"authkey", "sys_path", "orig_dir"}
    }


def libraries():
    """Modules that a program did not ask for; some libraries do other things where they find one."""
    watched = "IPython ipykernel google.colab mpi4py pytest submitit cloudpickle msgspec click rich yaml psutil numpy matplotlib pandas"
    return {name: name in sys.modules for name in watched.split()}


def tell():
    facts = {}
    for function in (
        descriptors,
        inheritable_descriptors,
        dispositions,
        stdin_is,
        limits,
        hook_names,
        loggers,
        seen_warnings,
        main_module,
        caller_of_main,
        depth,
        threads,
        multiprocessing_state,
        environment,
        process,
        collector,
        interpreter,
        time_state,
        sources,
        libraries,
    ):
        try:
            facts[function.__name__] = function()
        except Exception as error:
            facts[function.__name__] = f"{type(error).__name__}: {error}"
    facts["streams"] = {name: stream(getattr(sys, name)) for name in ("stdin", "stdout", "stderr")}
    return facts


if __name__ == "__main__":
    with open(f"facts-{os.environ['RANK']}.json", "w") as file:
        json.dump(tell(), file, indent=1, sort_keys=True)
