"""Prints in all the ways that programs do, and leaves files open that Python's end must flush."""

import atexit
import concurrent.futures
import csv
import ctypes
import gzip
import logging
import logging.handlers
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import warnings

rank = os.environ["RANK"]


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


class Odd:
    def __del__(self):
        raise ValueError("in a destructor")


def note(text):
    with open(f"order-{rank}.txt", "a") as file:
        file.write(text + "\n")


def later():
    time.sleep(0.2)
    note("thread that is waited for")


# What is printed.
print("an unfinished", end=" ")
print("line", "\u2603", sep="\t")
sys.stdout.buffer.write("bytes \u00e4\n".encode())
sys.stdout.flush()
os.write(1, b"by the system\n")
subprocess.run(["echo", "a child"], check=True)
for done in range(0, 101, 50):
    print(f"\r{done:3d} %", end="", file=sys.stderr, flush=True)
print(file=sys.stderr)
warnings.warn("a warning")
logging.warning("logged at the root")
try:
    1 / 0
except ZeroDivisionError:
    traceback.print_exc()
Odd()
ctypes.CDLL(None).puts(b"by C, kept in its buffer")

# What is open at the end.
sys.stdout = Logger(f"log-{rank}.txt")
print("the last line, without an end", end="")
table = csv.writer(open(f"table-{rank}.csv", "w", newline=""))
table.writerow(["epoch", "loss"])
packed = gzip.open(f"packed-{rank}.gz", "wt")
packed.write("packed\n" * 100)
raw = open(f"raw-{rank}.bin", "wb", buffering=1 << 20)
raw.write(bytes(range(256)))
memory = logging.handlers.MemoryHandler(
    100, target=logging.FileHandler(f"logging-{rank}.txt", delay=True)
)
logging.getLogger("kept").addHandler(memory)
logging.getLogger("kept").propagate = False
logging.getLogger("kept").warning("kept until the end")
folder = tempfile.TemporaryDirectory(dir=".", prefix="temporary-")
open(os.path.join(folder.name, "inside"), "w").write("x")
sys.modules["helper"] = helper = types.ModuleType("helper")
helper.file = open(f"helper-{rank}.txt", "w")
helper.file.write("by a module of the program")
exec("def function(): return file", helper.__dict__)
cycle = Writer("cycle")
cycle.self = cycle
atexit.register(note, "registered first, called last")
atexit.register(note, "registered last, called first")
threading.Thread(target=later).start()
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
pool = concurrent.futures.ThreadPoolExecutor(1)
pool.submit(time.sleep, 0.1)
pool.submit(note, "what the pool still had to do")
