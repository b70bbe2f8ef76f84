"""Prints in all the ways that programs do; what a rank leaves in its log is compared."""

import ctypes
import logging
import os
import subprocess
import sys
import traceback
import warnings

print("a line")
print("two", "words", sep="\t")
print("an unfinished", end=" ")
print("line")
sys.stdout.write("written\n")
sys.stdout.buffer.write("bytes \u00e4\n".encode())
sys.stdout.flush()
os.write(1, b"by the system\n")
os.write(2, b"to the other one\n")
print("snow \u2603, pile \U0001f4a9")
print(ascii("\udcff"))
sys.__stdout__.write("the first stdout\n")
sys.__stderr__.write("the first stderr\n")
print("to stderr", file=sys.stderr)
subprocess.run(["echo", "a child"], check=True)
os.system("echo a shell >&2")
for done in range(0, 101, 25):
    print(f"\r{done:3d} %", end="", file=sys.stderr, flush=True)
print(file=sys.stderr)
warnings.warn("a warning")
warnings.warn("old", DeprecationWarning)
warnings.warn("a warning")
logging.warning("logged at the root")
logging.getLogger("foreign").error("logged below")
logging.getLogger("foreign").info("too little")
try:
    1 / 0
except ZeroDivisionError:
    traceback.print_exc()
    logging.exception("and logged")


class Odd:
    def __del__(self):
        raise ValueError("in a destructor")


Odd()
libc = ctypes.CDLL(None)
libc.printf(b"by C\n")
libc.puts(b"by C, kept in its buffer")
print("the end, and no newline", end="")
