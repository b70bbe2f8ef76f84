"""Forks, spawns and starts what a training script does; writes what came of it."""

import asyncio
import concurrent.futures
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

rank = os.environ["RANK"]


@dataclass
class Batch:
    """A class of the main script, which workers send and receive."""

    number: int


def square(batch):
    return Batch(batch.number**2)


def put(queue):
    queue.put(Batch(os.getpid() and 5))


def in_pool(method):
    with multiprocessing.get_context(method).Pool(2) as pool:
        return [batch.number for batch in pool.map(square, map(Batch, range(3)))]


def by_queue():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=put, args=(queue,))
    process.start()
    found = queue.get(timeout=150).number
    process.join(30)
    return [found, process.exitcode]


def by_manager():
    with multiprocessing.Manager() as manager:
        shared = manager.dict(a=1)
        shared["b"] = 2
        return dict(shared)


def raises():
    raise ValueError("in a child that was forked")


def forked_by(ending):
    process = multiprocessing.get_context("fork").Process(target=ending)
    process.start()
    process.join(30)
    return process.exitcode


def through_a_child_python():
    """As submitit's and joblib's workers get a function of the script: by its name and file."""
    text = "import pickle, sys; sys.path.insert(0, '.'); import children; print(children.__name__)"
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True).stdout


async def several():
    seen = []
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, seen.append, "SIGUSR1")
    os.kill(os.getpid(), signal.SIGUSR1)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "print(6 * 7)", stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    await asyncio.to_thread(time.sleep, 0.01)
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        result = await loop.run_in_executor(pool, square, Batch(4))
    return [seen, output.decode(), process.returncode, result.number]


def shells():
    commands = ("echo $RANK; exit 3", "ulimit -c; umask; trap", "ls /proc/self/fd | wc -l")
    commands += ("grep ^SigBlk /proc/self/status",)
    done = [subprocess.run(one, shell=True, capture_output=True, text=True) for one in commands]
    return [[one.stdout, one.returncode] for one in done] + [os.system("exit 5") >> 8]


def zombies():
    """Children that nobody of the script waits for are not its concern, and take none of its own."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None


def main():
    facts = {
        "zombies at first": zombies(),
        "queue": by_queue(),
        "pool of spawn": in_pool("spawn"),
        "pool of forkserver": in_pool("forkserver"),
        "manager": by_manager(),
        "child raises": forked_by(raises),
        "child exits": forked_by(lambda: sys.exit(3)),
        "child leaves": forked_by(lambda: os._exit(4)),
        "another python": through_a_child_python(),
        "asyncio": asyncio.run(several()),
        "shells": shells(),
        "zombies at last": zombies(),
    }
    with open(f"facts-{rank}.json", "w") as file:
        json.dump(facts, file)


if __name__ == "__main__":
    main()
