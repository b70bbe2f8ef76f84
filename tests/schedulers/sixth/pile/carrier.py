"""Carries one job: waits for others, starts its nodes, passes signals on, and starts it again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from hpcdist.base import files

ENDS = ("done", "failed", "cancelled")
FITTING = {"afterok": ("done",), "afterany": ENDS, "afternotok": ("failed", "cancelled")}


def note(folder, **changes):
    path = folder / "job.json"
    files.write_json(path, files.read_json(path) | changes)


def wait_for_others(folder, received):
    for kind, ids in files.read_json(folder / "job.json")["after"]:
        for job_id in ids:
            other = folder.parent / job_id / "job.json"
            while (state := files.read_json(other)["state"]) not in ENDS and not received:
                time.sleep(0.05)
            if received or state not in FITTING[kind]:
                return False
    return True


def live(folder, life, received):
    job = files.read_json(folder / "job.json")
    nodes = []
    for node in range(job["nodes"]):
        variables = {"NODE": node, "NODES": job["nodes"], "LIFE": life, "JOB": folder}
        named = {f"PILE_{name}": str(value) for name, value in variables.items()}
        Path(job["logs"]).mkdir(parents=True, exist_ok=True)
        with Path(job["logs"], f"{job['id']}_{node}_log.out").open("ab") as log:
            nodes.append(
                subprocess.Popen(
                    ["/bin/bash", str(folder / "script.sh")],
                    env=os.environ | named,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )
    while any(node.poll() is None for node in nodes):
        while received:
            number = received.pop(0)
            for node in nodes:
                node.send_signal(number)
        time.sleep(0.02)
    return nodes[0].returncode


def main():
    folder = Path(sys.argv[1])
    received = []
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, lambda number, _: received.append(number))
    note(folder, pid=os.getpid())
    if not wait_for_others(folder, received):
        note(folder, state="cancelled", end_s=time.time())
        return
    note(folder, state="running", start_s=time.time())
    life = 0
    while True:
        code = live(folder, life, received)
        if not (folder / "requeue").exists():
            break
        (folder / "requeue").unlink()
        life += 1
    note(folder, state="failed" if code else "done", end_s=time.time())


if __name__ == "__main__":
    main()
