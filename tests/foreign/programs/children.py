"""Forks, spawns and starts what a training script does; writes what came of it."""

import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
from dataclasses import dataclass


@dataclass
class Batch:
    """A class of the main script, which workers send and receive."""

    number: int


def square(batch):
    return Batch(batch.number**2)


def in_pool(method):
    with multiprocessing.get_context(method).Pool(2) as pool:
        return [batch.number for batch in pool.map(square, map(Batch, range(3)))]


def raises():
    raise ValueError("in a child that was forked")


def forked_by(ending):
    process = multiprocessing.get_context("fork").Process(target=ending)
    process.start()
    process.join(30)
    return process.exitcode


async def started():
    process = await asyncio.create_subprocess_exec("echo", "42", stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return [output.decode(), process.returncode]


def shells():
    commands = ("echo $RANK; exit 3", "ulimit -c; umask; trap", "ls /proc/self/fd | wc -l")
    done = [subprocess.run(one, shell=True, capture_output=True, text=True) for one in commands]
    return [[one.stdout, one.returncode] for one in done]


def zombies():
    """Children that nobody of the script waits for are not its concern, and take none of its own."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None


if __name__ == "__main__":
    facts = {
        "zombies at first": zombies(),
        "pool of forkserver": in_pool("forkserver"),
        "child raises": forked_by(raises),
        "child exits": forked_by(lambda: sys.exit(3)),
        "asyncio": asyncio.run(started()),
        "shells": shells(),
        "zombies at last": zombies(),
    }
    with open(f"facts-{os.environ['RANK']}.json", "w") as file:
        json.dump(facts, file)
