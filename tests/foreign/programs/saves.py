"""Saves when it is ended: by a handler, and by the exception that Ctrl-C raises.

Rank 1 fails, or all ranks wait for the signal that the command gets.
"""

import json
import os
import signal
import sys
import time

rank = os.environ["RANK"]
came = []


def save(why):
    came.append(why)
    time.sleep(1.5)
    with open(f"facts-{rank}.json", "w") as file:
        json.dump({"came": came}, file)


def handler(number, frame):
    save(signal.Signals(number).name)
    sys.exit(3)


if sys.argv[1:] == ["peer fails"] and rank == "1":
    while not os.path.exists("waits-0"):
        time.sleep(0.01)
    sys.exit(9)
for name in ("SIGTERM", "SIGHUP"):
    signal.signal(getattr(signal, name), handler)
try:
    open(f"waits-{rank}", "w").close()
    time.sleep(100)
except KeyboardInterrupt:
    save("KeyboardInterrupt")
finally:
    came.append("finally")
