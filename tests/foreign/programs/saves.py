"""Saves when it is ended: by a handler, and by the exception that Ctrl-C raises.

With `peer`, rank 1 fails; else all ranks wait for the signal that the command gets.
"""

import json
import os
import signal
import subprocess
import sys
import time

way, rank = sys.argv[1], os.environ["RANK"]
facts = {"came": [], "child": None}
child = subprocess.Popen(["sleep", "30"])


def write():
    with open(f"facts-{rank}.json", "w") as file:
        json.dump(facts, file)


def save(why):
    facts["came"].append(why)
    time.sleep(1.5)
    facts["child"] = child.poll()
    write()
    child.kill()


def handler(number, frame):
    save(signal.Signals(number).name)
    sys.exit(3)


write()
if way.startswith("peer") and rank == "1":
    while not os.path.exists("waits-0"):
        time.sleep(0.01)
    child.kill()
    sys.exit(9)
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, handler)
try:
    open(f"waits-{rank}", "w").close()
    time.sleep(30)
    save("the end")
except KeyboardInterrupt:
    save("KeyboardInterrupt")
finally:
    facts["came"].append("finally")
