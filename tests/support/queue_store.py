"""The stand-in for a scheduler that tests/lsf and tests/pbs give two faces: its commands, in the
words of LSF or of PBS. Behind them, jobs really run on this machine.

All of a site is in one folder: its jobs in a file, which one process changes at a time. Each job
has a process of its own, a `mom`, which waits until the job may start, starts it, sends it the
signals of its end when they are due, and notes how it ended. The states are called as by LSF:
PEND, RUN, DONE, EXIT.
"""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ENDED = ("DONE", "EXIT")
POLL_S = 0.03
NEW_JOB = {
    "state": "PEND",
    "pending_reason": "New job is waiting for scheduling",
    "places": [],
    "start_s": None,
    "end_s": None,
    "limit_s": None,
    "lost_s": None,
    "attempts": 0,
    "pid": None,
    "exit_code": None,
    "signal": None,
    "term_reason": "",
    "killed_as": "",
    "kills": [],
    "requeues": "",
}


class Store:
    """What all commands and moms of a site know, in one file of its folder."""

    def __init__(self, folder):
        self.folder = Path(folder)

    @contextlib.contextmanager
    def __call__(self):
        """All of it, to be looked at and changed by one process at a time."""
        with (self.folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = self.folder / "jobs.json"
            begin = {"jobs": {}, "lost": {}, "down": [], "switches": {}}
            before = path.read_text() if path.exists() else json.dumps(begin)
            found = json.loads(before)
            try:
                yield found
            finally:
                if (after := json.dumps(found)) != before:
                    path.with_suffix(".new").write_text(after)
                    path.with_suffix(".new").rename(path)

    def changed_ns(self):
        path = self.folder / "jobs.json"
        return path.stat().st_mtime_ns if path.exists() else 0


def marked(**variables):
    """Processes that were started with these variables."""
    wanted = {f"{name}={value}".encode() for name, value in variables.items()}
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted <= set(path.read_bytes().split(b"\0")):
                yield int(path.parent.name)


def signal_all(signum, **variables):
    """Signal them; returns whether there were any."""
    pids = [pid for pid in marked(**variables) if pid != os.getpid()]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
    return bool(pids)


def write_programs(folder, program, names, variable, site):
    """Put commands of these names into a folder; each knows its site by the variable."""
    folder.mkdir()
    for name in names:
        run = f'exec "{sys.executable}" -I -S "{program}" {name} "$@"'
        (folder / name).write_text(f"#!/bin/sh\nexport {variable}='{site}'\n{run}\n")
        (folder / name).chmod(0o755)


class Scheduler:
    """What both faces have in common; they say how a job is started, signalled and ended."""

    slots, gpus = 4, 0
    """Of each host."""

    def __init__(self, folder, hosts, program):
        self.folder, self.hosts, self.program = Path(folder), hosts, program
        self.store = Store(folder)

    def start_mom(self, key, environment):
        with (self.folder / "moms.log").open("ab") as log:
            subprocess.Popen(
                [sys.executable, "-I", "-S", self.program, "mom", key],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def mom(self, words):
        """Look after a job to its end."""
        (key,) = words
        process = None
        while True:
            with self.store() as known:
                job = known["jobs"].get(key)
                if job is None or (job["state"] in ENDED and process is None):
                    return 0
                if process is None and job["state"] == "PEND":
                    if self.place(job, known):
                        process = self.begin(job)
                elif process is not None and job["lost_s"] is not None:
                    process = self.follow_loss(job, known, process)
                elif process is not None and process.poll() is not None:
                    self.note_end(job, process.returncode, known)
                    process = None
                elif process is not None:
                    self.end_in_time(job, known)
                due_s = self.due_s(job, process)
                looked_at = self.store.changed_ns()
            while True:
                time.sleep(POLL_S)
                has_ended = process is not None and process.poll() is not None
                if has_ended or time.time() >= due_s or self.store.changed_ns() != looked_at:
                    break

    def due_s(self, job, process):
        """When a job is to be looked at, also where nothing changes."""
        if process is None or job["lost_s"] is not None:
            return time.time() + 5 * POLL_S
        ends = [job["limit_s"], *(at_s for at_s, _ in job["kills"])]
        return min((at_s for at_s in ends if at_s is not None), default=float("inf"))

    def begin(self, job):
        job |= {"state": "RUN", "start_s": time.time(), "exit_code": None, "signal": None}
        job |= {"attempts": job["attempts"] + 1, "term_reason": ""}
        if job["run_limit_min"] is not None:
            job["limit_s"] = job["start_s"] + 60 * job["run_limit_min"]
        command, cwd, output, environment = self.start(job)
        with output.open("wb") as said:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        job["pid"] = process.pid
        return process

    def end_in_time(self, job, known):
        """Send the signals that are due."""
        now = time.time()
        if job["state"] == "RUN" and job["limit_s"] is not None and job["limit_s"] <= now:
            self.end_at_limit(job, known)
        while job["kills"] and job["kills"][0][0] <= now:
            self.send(job, job["kills"].pop(0)[1])

    def note_end(self, job, code, known):
        job |= {"exit_code": code if code >= 0 else 128 - code, "signal": max(0, -code)}
        self.end(job, known)

    def finish(self, job, state, reason=""):
        job |= {"state": state, "end_s": time.time(), "term_reason": reason, "pid": None}
        job["kills"] = []

    def free_hosts(self, known):
        """Host -> (slots, GPUs) that running jobs leave."""
        free = {host: [self.slots, [*range(self.gpus)]] for host in self.hosts}
        for job in known["jobs"].values():
            for host, slots, gpus in job["places"] if job["state"] == "RUN" else ():
                free[host][0] -= slots
                free[host][1] = [gpu for gpu in free[host][1] if gpu not in gpus]
        return free

    def down_hosts(self, _known):
        return set()

    def place(self, job, known):
        """Give the job its hosts, or note why it has none."""
        met = [holds(term, job, known) for term in job["condition"]]
        if None in met:
            job["pending_reason"] = "Dependency condition invalid or never satisfied"
            self.orphan(job, known)
            return False
        job["pending_reason"] = self.why_not(job, known, is_met=all(met))
        return not job["pending_reason"]

    def why_not(self, job, known, *, is_met):
        if not is_met:
            return "Job dependency condition not satisfied"
        siblings = [one for one in known["jobs"].values() if one["id"] == job["id"]]
        before = [one for one in siblings if one["state"] == "PEND" and one["index"] < job["index"]]
        num_first = sum(one["state"] == "RUN" for one in siblings) + len(before)
        if job["array_limit"] and num_first >= job["array_limit"]:
            return "The job array has reached its running element limit"
        request, why, places = job["request"], Counter(), []
        down, free = self.down_hosts(known), self.free_hosts(known)
        hosts = [one for one in self.hosts if one not in down and one not in request["excluded"]]
        left, most = request["slots"], request["per_host"] or self.slots
        for host in hosts:
            slots, gpus = free[host]
            if not left:
                break
            if slots < (min(most, left) if request["per_host"] else 1):
                why["Job slot limit reached"] += 1
            elif len(gpus) < request["gpus"]:
                why["Not enough GPUs on the hosts"] += 1
            else:
                places.append([host, min(left, most, slots), gpus[: request["gpus"]]])
                left -= places[-1][1]
        if left:
            why = why or {"Not enough hosts to meet the job's spanning requirement": len(hosts)}
            return "; ".join(f"{reason}: {count} hosts" for reason, count in sorted(why.items()))
        if places[0][0] in known["lost"]:  # its daemon does not answer
            known["down"].append(places[0][0])
            return self.why_not(job, known, is_met=True)
        job["places"] = places
        return ""


def find(word, known):
    """The jobs that `12` or `12[3]` means."""
    number, _, index = word.strip("\"'").rstrip("]").partition("[")
    jobs = [job for job in known["jobs"].values() if str(job["id"]) == number]
    return [job for job in jobs if not index or str(job["index"]) == index]


def holds(term, job, known):
    """Whether a condition (done or ended, id, and index, nothing, or * for the same) is true now:
    True, False, or None where it never will be."""
    function, number, element = term
    wanted = str(job["index"]) if element == "*" else element
    values = []
    for other in find(number, known):
        if wanted in (None, str(other["index"])):
            has_ended, is_done = other["state"] in ENDED, other["state"] == "DONE"
            is_met = has_ended and (function == "ended" or is_done)
            values.append(is_met or (None if has_ended else False))
    return None if None in values or not values else all(values)
