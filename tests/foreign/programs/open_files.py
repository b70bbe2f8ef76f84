"""Writes in all the ways that count on the interpreter's end; with an argument, rank 1 fails so."""

import atexit
import concurrent.futures
import contextlib
import csv
import gzip
import logging
import logging.handlers
import os
import sys
import tempfile
import threading
import time
import types
import weakref
from collections.abc import Mapping

rank = os.environ["RANK"]
how = sys.argv[1] if len(sys.argv) > 1 else "ends"


class Logger:
    """What many training scripts put in the place of sys.stdout."""

    def __init__(self, path):
        self.terminal = sys.stdout
        self.log = open(path, "w")

    def write(self, message):
        self.terminal.write(message)
        self.log.write(message)

    def flush(self):
        self.terminal.flush()


class Writer:
    """Writes its last words when it is destroyed."""

    def __init__(self, name):
        self.name = name
        self.file = open(f"{name}-{rank}.txt", "w")

    def __del__(self):
        self.file.write(f"{self.name} is gone\n")


class Closed:
    def __init__(self):
        weakref.finalize(self, note, "finalized")


class Sentinel(type):
    """Has itself as its type, as the sentinels of h11 have."""

    def __new__(cls, name, bases, namespace):
        made = super().__new__(cls, name, bases, namespace)
        made.__class__ = made
        return made


def note(text):
    with open(f"order-{rank}.txt", "a") as file:
        file.write(text + "\n")


def later():
    time.sleep(0.2)
    note("thread that is waited for")


def suspended():
    try:
        yield 1
    finally:
        os.write(out_of_generator, b"generator closed\n")


sys.stdout = Logger(f"log-{rank}.txt")
print("first line")
print("no newline at the end", end="")

DONE = Sentinel("DONE", (Sentinel,), {})
kinds = [type(f"Kind{number}", (), {}) for number in range(300)]
for kind in kinds:
    Mapping.register(kind)
table = csv.writer(open(f"table-{rank}.csv", "w", newline=""))
table.writerow(["epoch", "loss"])
packed = gzip.open(f"packed-{rank}.gz", "wt")
packed.write("packed\n" * 100)
raw = open(f"raw-{rank}.bin", "wb", buffering=1 << 20)
raw.write(bytes(range(256)))
handler = logging.FileHandler(f"logging-{rank}.txt", delay=True)
memory = logging.handlers.MemoryHandler(100, target=handler)
logging.getLogger("kept").addHandler(memory)
logging.getLogger("kept").warning("kept until the end")
folder = tempfile.TemporaryDirectory(dir=".", prefix="temporary-")
open(os.path.join(folder.name, "inside"), "w").write("x")

logging.of_the_program = open(f"kept-by-a-library-{rank}.txt", "w")
logging.of_the_program.write("by a module that was there before")
sys.modules["helper"] = helper = types.ModuleType("helper")
helper.file = open(f"helper-{rank}.txt", "w")
helper.file.write("by a module of the program")
exec("def function(): return file", helper.__dict__)

of_module = Writer("of_module")
cycle = Writer("cycle")
cycle.self = cycle
closed = Closed()
out_of_generator = os.open(f"generator-{rank}.txt", os.O_WRONLY | os.O_CREAT)
generator = suspended()
next(generator)
atexit.register(note, "registered first, called last")
atexit.register(note, "registered last, called first")
threading.Thread(target=later).start()
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
pool = concurrent.futures.ThreadPoolExecutor(1)
pool.submit(time.sleep, 0.1)
pool.submit(note, "what the pool still had to do")

if how != "ends" and rank == "0":
    with open("pid.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename("pid.new", "pid")
    sys.exit(0)
if how != "ends":  # whoever fails ends the others, and rank 0 is to end by itself
    deadline = time.monotonic() + 60
    while not os.path.exists("pid") and time.monotonic() < deadline:
        time.sleep(0.01)
    with open("pid") as file:
        pid = int(file.read())
    os.unlink("pid")
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.kill(pid, 0)
            time.sleep(0.01)
    raise ValueError("as it was told")
