"""What a program can see of the process that it runs in, as facts-RANK.json.

torch_portrait.py has what it sees of torch.
"""

import gc
import json
import logging
import multiprocessing
import os
import resource
import signal
import stat
import sys
import tempfile
import threading

names_at_first = sorted(name for name in globals() if name.startswith("__"))
main = sys.modules["__main__"]
process = multiprocessing.current_process()


def inheritable():
    """Descriptors that children get, but for the folder that is being listed."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.get_inheritable(int(name)):
                found.append(name)
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


def stream(number, name):
    value = getattr(sys, name)
    return {each: str(getattr(value, each)) for each in ("name", "mode", "newlines")} | {
        "type": type(value).__name__,
        "isatty": value.isatty(),
        "fileno": value.fileno() == number,
        "dunder": value is getattr(sys, f"__{name}__"),
    }


FACTS = {
    "inheritable_descriptors": inheritable,
    "dispositions": dispositions,
    "stdin_is": lambda: [os.read(0, 1).decode(), stat.filemode(os.fstat(0).st_mode)],
    "limits": lambda: {
        name: resource.getrlimit(getattr(resource, name))
        for name in dir(resource)
        if name.startswith("RLIMIT_")
    },
    "loggers.root": lambda: [logging.root.level, len(logging.root.handlers)],
    "main_module.names": lambda: names_at_first,
    "main_module.file": lambda: main.__file__,
    "main_module.spec": lambda: main.__spec__ and [main.__spec__.name, main.__spec__.origin],
    "main_module.loader": lambda: type(main.__loader__).__name__,
    "main_module.is_globals": lambda: main.__dict__ is globals(),
    "threads.names": lambda: sorted(thread.name for thread in threading.enumerate()),
    "threads.is_main": lambda: threading.current_thread() is threading.main_thread(),
    "threads.count": lambda: len(os.listdir("/proc/self/task")),
    "multiprocessing.name": lambda: [process.name, process.pid == os.getpid()],
    "multiprocessing.parent": lambda: multiprocessing.parent_process() is None,
    "multiprocessing.children": lambda: len(multiprocessing.active_children()),
    "multiprocessing.method": lambda: multiprocessing.get_start_method(allow_none=True),
    "environment": lambda: dict(os.environ),
    "process.leads": lambda: [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "process.umask": lambda: status_line("Umask"),
    "process.cwd": os.getcwd,
    "process.blocked": lambda: status_line("SigBlk"),
    "collector": lambda: [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)],
    "interpreter.arguments": lambda: sys.argv[1:],
    "interpreter.flags": lambda: str(sys.flags),
    "interpreter.executable": lambda: [sys.executable, sys.prefix],
    "interpreter.path": lambda: sys.path,
    "interpreter.options": lambda: [sys.warnoptions, sys._xoptions, sys.dont_write_bytecode],
    "time_state.tempfile_draws": lambda: tempfile._name_sequence is None,
    "time_state.wakeup": lambda: signal.set_wakeup_fd(-1),
    "streams.stdin": lambda: stream(0, "stdin"),
    "streams.stdout": lambda: stream(1, "stdout"),
    "streams.stderr": lambda: stream(2, "stderr"),
}

if __name__ == "__main__":
    facts = {name: fact() for name, fact in FACTS.items()}
    with open(f"facts-{os.environ['RANK']}.json", "w") as file:
        json.dump(facts, file, indent=1, sort_keys=True)
