"""Forks, spawns and starts what a training script does; writes what came of it."""

import asyncio
import concurrent.futures
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
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


def by_executor(method):
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
        return [batch.number for batch in executor.map(square, map(Batch, range(3)))]


def by_queue(method):
    context = multiprocessing.get_context(method)
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


def forked(ending):
    pid = os.fork()
    if not pid:
        ending()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


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
    for signum in (signal.SIGUSR1, signal.SIGTERM):
        loop.add_signal_handler(signum, seen.append, signal.Signals(signum).name)
    os.kill(os.getpid(), signal.SIGUSR1)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "print(6 * 7)", stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    slept = await asyncio.to_thread(time.sleep, 0.01)
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        result = await loop.run_in_executor(pool, square, Batch(4))
    return [seen, output.decode(), process.returncode, slept, result.number]


def shells():
    return [
        subprocess.run("echo $RANK; exit 3", shell=True, capture_output=True, text=True).stdout,
        subprocess.call(["sh", "-c", "exit 4"]),
        os.system("exit 5") >> 8,
        os.popen("echo popen").read(),
        subprocess.check_output(["sh", "-c", "ulimit -c; umask; trap"]).decode(),
        subprocess.check_output(["sh", "-c", "ls /proc/self/fd | wc -l"]).decode(),
        subprocess.check_output(["grep", "^SigBlk", "/proc/self/status"]).decode(),
    ]


def zombies():
    """Children that nobody of the script waits for are not its concern, and take none of its own."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None


def exit_of_child():
    print(f"rank {rank} says this once", flush=True)
    pid = os.fork()
    if not pid:
        sys.exit(11)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main():
    began = time.time()
    facts = {"zombies at first": zombies()}
    for method in ("fork", "spawn", "forkserver"):
        if method == "fork" or "all" in sys.argv:
            facts[f"queue of {method}"] = by_queue(method)
        if method != "fork":
            facts[f"pool of {method}"] = in_pool(method)
    facts["executor of spawn"] = by_executor("spawn") if "all" in sys.argv else None
    facts["manager"] = by_manager()
    facts["child raises"] = forked_by(raises)
    facts["child exits"] = forked_by(lambda: sys.exit(3))
    facts["child leaves"] = forked(lambda: os._exit(4))
    facts["another python"] = through_a_child_python()
    facts["asyncio"] = asyncio.run(several())
    facts["shells"] = shells()
    facts["pickled"] = pickle.loads(pickle.dumps(Batch(1))) == Batch(1)
    facts["zombies at last"] = zombies()
    with open(f"facts-{rank}.json", "w") as file:
        json.dump(facts, file)


if __name__ == "__main__":
    main()
