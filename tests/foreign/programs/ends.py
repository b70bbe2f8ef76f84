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


def raise_in_exit_handler():
    raise ValueError("in an exit handler")


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


class RaisesAtEnd:
    def __del__(self):
        raise ValueError("in a destructor")


def end():
    if way == "waits":
        time.sleep(600)
    elif way == "os._exit(0)":
        os._exit(0)
    elif way == "os._exit(9)":
        os._exit(9)
    elif way == "exec":
        if "FOREIGN_EXEC" not in os.environ:
            os.environ["FOREIGN_EXEC"] = "1"
            os.environ["PYTHONHASHSEED"] = "0"
            os.execv(sys.executable, [sys.executable, *sys.argv])
        open(f"hash-{rank}", "w").write(str(hash("a word")))
    elif way == "exec of orig_argv":
        if "FOREIGN_EXEC" not in os.environ:
            os.environ["FOREIGN_EXEC"] = "1"
            os.execv(sys.executable, sys.orig_argv)
        open(f"again-{rank}", "w").write(str(sys.argv[1:]))
    elif way == "exec that fails":
        os.execvp("sh", ["sh", "-c", "exit 6"])
    elif way == "exec of a command":
        os.execvp("sh", ["sh", "-c", f"echo from sh > exec-{rank}"])
    elif way == "sys.exit(None)":
        sys.exit()
    elif way == "sys.exit(True)":
        sys.exit(True)
    elif way == "sys.exit(text)":
        sys.exit("a text that says why")
    elif way == "sys.exit(object)":
        sys.exit((1, 2))
    elif way == "sys.exit(-1)":
        sys.exit(-1)
    elif way == "sys.exit(256)":
        sys.exit(256)
    elif way == "sys.exit(75)":
        sys.exit(75)
    elif way == "sys.exit(3)":
        sys.exit(3)
    elif way == "raise":
        try:
            {}["missing"]
        except KeyError as error:
            raise ValueError("second") from error
    elif way == "group":
        raise ExceptionGroup("several", [ValueError("one"), TypeError("two")])
    elif way == "interrupt":
        raise KeyboardInterrupt
    elif way == "SIGINT":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
    elif way.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, way))
        time.sleep(10)
    elif way == "abort":
        os.abort()
    elif way == "segfault":
        ctypes.string_at(0)
    elif way == "exit handler raises":
        atexit.register(raise_in_exit_handler)
    elif way == "exit handler exits":
        atexit.register(sys.exit, 5)
    elif way == "exit handler leaves":
        atexit.register(os._exit, 5)
    elif way == "thread raises":
        in_thread(lambda: 1 / 0)
    elif way == "thread exits":
        in_thread(lambda: sys.exit(5))
    elif way == "destructor raises":
        globals()["kept"] = RaisesAtEnd()
    elif way == "no stdout":
        sys.stdout.close()
    elif way == "stdout is None":
        sys.stdout = None
        print("nobody reads this")
    elif way == "stderr is None":
        sys.stderr = None
    elif way == "no streams":
        sys.stdout = sys.stderr = None
    elif way == "descriptors closed":
        os.close(1)
        os.close(2)
    elif way == "stdout is devnull":
        sys.stdout = open(os.devnull, "w")
        print("nobody reads this")
    elif way == "hook":
        sys.excepthook = lambda kind, value, trace: open(f"hook-{rank}", "w").write(kind.__name__)
        raise ValueError("told to the hook")
    elif way == "hook leaves":
        sys.excepthook = lambda *_: os._exit(8)
        raise ValueError("told to the hook")
    elif way == "hook exits":
        sys.excepthook = lambda *_: sys.exit(3)
        raise ValueError("told to the hook")
    elif way == "thread leaves":
        threading.Thread(target=os._exit, args=(0,)).start()
        time.sleep(600)
    elif way == "stdout without flush":
        sys.stdout = type("Odd", (), {"write": len})()
    elif way == "stdout deleted":
        del sys.stdout, sys.stderr
    elif way == "many threads":
        for _ in range(20):
            threading.Thread(target=time.sleep, args=(0.05,)).start()
    elif way == "recursion":
        end()
    elif way == "syntax":
        exec(compile("x = = 1", "made.py", "exec"))
    elif way == "generator exit":
        raise GeneratorExit
    elif way == "own BaseException":
        raise type("Own", (BaseException,), {})("of its own")
    else:
        raise NotImplementedError(way)


end()
