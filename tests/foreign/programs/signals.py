"""Sets handlers, timers and masks, and writes what came."""

import json
import os
import select
import signal
import threading
import time

rank = os.environ["RANK"]
seen = []


def handler(signum, frame):
    seen.append([signal.Signals(signum).name, frame.f_code.co_name])


def main():
    for name in ("SIGUSR1", "SIGUSR2", "SIGTERM", "SIGALRM", "SIGHUP", "SIGCONT", "SIGQUIT"):
        signal.signal(getattr(signal, name), handler)
        os.kill(os.getpid(), getattr(signal, name))
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    signal.pause()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing)
    os.kill(os.getpid(), signal.SIGUSR1)
    woken = bool(select.select([reading], [], [], 5)[0])
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    os.kill(os.getpid(), signal.SIGUSR2)
    pending = signal.SIGUSR2 in signal.sigpending()
    waited = signal.sigwait([signal.SIGUSR2]).name
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)
        interrupted = False
    except KeyboardInterrupt:
        interrupted = True
    try:
        os.write(os.pipe()[1], b"")
        broken = os.pipe()
        os.close(broken[0])
        os.write(broken[1], b"x")
        piped = None
    except OSError as error:
        piped = type(error).__name__
    child = os.fork()
    if not child:
        time.sleep(0.02)
        os._exit(0)
    signal.signal(signal.SIGCHLD, handler)
    os.waitpid(child, 0)
    facts = {
        "seen": seen,
        "before": before,
        "woken": woken,
        "pending": pending,
        "waited": waited,
        "interrupted": interrupted,
        "piped": piped,
        "main": threading.current_thread() is threading.main_thread(),
    }
    with open(f"facts-{rank}.json", "w") as file:
        json.dump(facts, file)


main()
