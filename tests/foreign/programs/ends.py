"""Each rank ends in the way that its argument names."""

import atexit
import os
import sys
import threading
import time

rank = int(os.environ["RANK"])
way = sys.argv[1 + rank]


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def raise_in_exit_handler():
    raise ValueError("in an exit handler")


def once_more():
    if "FOREIGN_EXEC" not in os.environ:
        os.environ.update(FOREIGN_EXEC="1", PYTHONHASHSEED="0")
        os.execv(sys.executable, [sys.executable, *sys.argv])
    open(f"again-{rank}", "w").write(f"{sys.argv[1:]} {hash('a word')}")


def raise_from_another():
    global kept
    kept = open(f"kept-{rank}", "w")
    kept.write("not flushed")
    try:
        {}["missing"]
    except KeyError as error:
        raise ValueError("second") from error


WAYS = {
    "waits": "time.sleep(600)",
    "raise": "raise_from_another()",
    "os._exit(0)": "os._exit(0)",
    "exec": "once_more()",
    "exec of a command": "os.execvp('sh', ['sh', '-c', f'echo from sh > exec-{rank}'])",
    "sys.exit(256)": "sys.exit(256)",
    "exit handler raises": "atexit.register(raise_in_exit_handler)",
    "thread raises": "in_thread(lambda: 1 / 0)",
    "thread leaves": "threading.Thread(target=os._exit, args=(0,)).start(); time.sleep(600)",
    "no stdout": "sys.stdout.close()",
    "no streams": "sys.stdout = sys.stderr = None; print('nobody reads this')",
    "descriptors closed": "os.close(1); os.close(2)",
    "descriptors taken": "os.closerange(3, 999); kept = [open(f'{n}-{rank}', 'w') for n in range(8)]"
    "; [file.write('its own') for file in kept]",
}
exec(WAYS[way], globals())
