"""Each rank ends in the way that its argument names."""

import atexit
import ctypes
import os
import signal
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


class RaisesAtEnd:
    def __del__(self):
        raise ValueError("in a destructor")


def once_more(argv, **environment):
    if "FOREIGN_EXEC" not in os.environ:
        os.environ.update(FOREIGN_EXEC="1", **environment)
        os.execv(sys.executable, argv)
    open(f"again-{rank}", "w").write(f"{sys.argv[1:]} {hash('a word') if environment else ''}")


def raise_from_another():
    try:
        {}["missing"]
    except KeyError as error:
        raise ValueError("second") from error


def raise_told_to_hook(hook):
    sys.excepthook = hook
    raise ValueError("told to the hook")


def kill_itself(name):
    os.kill(os.getpid(), getattr(signal, name))
    time.sleep(10)


def leave_in_thread():
    threading.Thread(target=os._exit, args=(0,)).start()
    time.sleep(600)


WAYS = {
    "waits": "time.sleep(600)",
    "os._exit(0)": "os._exit(0)",
    "os._exit(9)": "os._exit(9)",
    "exec": "once_more([sys.executable, *sys.argv], PYTHONHASHSEED='0')",
    "exec of orig_argv": "once_more(sys.orig_argv)",
    "exec of a command": "os.execvp('sh', ['sh', '-c', f'echo from sh > exec-{rank}'])",
    "sys.exit(text)": "sys.exit('a text that says why')",
    "raise": "raise_from_another()",
    "group": "raise ExceptionGroup('several', [ValueError('one'), TypeError('two')])",
    "interrupt": "raise KeyboardInterrupt",
    "abort": "os.abort()",
    "segfault": "ctypes.string_at(0)",
    "exit handler raises": "atexit.register(raise_in_exit_handler)",
    "exit handler exits": "atexit.register(sys.exit, 5)",
    "thread raises": "in_thread(lambda: 1 / 0)",
    "thread exits": "in_thread(lambda: sys.exit(5))",
    "thread leaves": "leave_in_thread()",
    "destructor raises": "kept = RaisesAtEnd()",
    "no stdout": "sys.stdout.close()",
    "stdout is None": "sys.stdout = None; print('nobody reads this')",
    "stderr is None": "sys.stderr = None",
    "no streams": "sys.stdout = sys.stderr = None",
    "descriptors closed": "os.close(1); os.close(2)",
    "descriptors taken": "os.closerange(3, 999); kept = [open(f'{n}-{rank}', 'w') for n in range(8)]"
    "; [file.write('its own') for file in kept]",
    "stdout is devnull": "sys.stdout = open(os.devnull, 'w'); print('nobody reads this')",
    "hook": "raise_told_to_hook(lambda *told: open(f'hook-{rank}', 'w').write(str(told[0])))",
    "hook exits": "raise_told_to_hook(lambda *_: sys.exit(3))",
    "stdout deleted": "del sys.stdout, sys.stderr",
    "many threads": "[threading.Thread(target=time.sleep, args=(0.05,)).start() for _ in range(20)]",
    "recursion": "end()",
    "syntax": "x = = 1",
}


def end():
    if way.startswith("SIG"):
        kill_itself(way)
    exec(WAYS.get(way, way), globals())  # sys.exit(75) is its own name


end()
