"""LSF's face of the stand-in in support/queue_store.py. It holds to the documentation of IBM
Spectrum LSF 10.1.

Its state is in the folder LSF_SITE; lsf_cluster.py is what tests see of it, and has its settings.
"""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from queue_store import ENDED, NEW_JOB, Scheduler, find, marked, signal_all

SITE = Path(os.environ["LSF_SITE"])
HOSTS = (SITE / "hosts").read_text().split()
KILL_INTERVAL_S = LIMIT_GRACE_S = 60.0
"""Between SIGINT, SIGTERM and SIGKILL (10 s on a real site), and from SIGUSR2 at the run limit to
SIGKILL (10 minutes): a test fails if the second signal is needed."""
LOSS_KNOWN_S = 5.0
"""How long a lost host is called ok, and gets jobs; 35 s on a real site."""
RERUN_AFTER_S = 1.0
"""From the loss of a job's first host until LSF queues the job again, if it was submitted with -r;
135 s on a real site."""
FLAGS = {*"rNV"}
WITH_VALUE = {*"noquwJPRW", "gpu"}


def refuse(text):
    print(text, file=sys.stderr)
    sys.exit(255)


def first_host(job):
    return job["places"][0][0] if job["places"] else None


def mark_of(job):
    return {"LSF_SITE": SITE, "LSF_SITE_JOB": f"{job['id']}[{job['index']}].{job['attempts']}"}


def host_variables(host, gpus):
    shown = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else {}
    return {"LSB_SITE_HOST": host} | shown


class Lsf(Scheduler):
    gpus = 2

    def start(self, job):
        of_job = re.compile(r"LSB_|LS_SUBCWD$|LS_JOBPID$|LSF_PM_|LSFUSER$|CUDA_VISIBLE_DEVICES$")
        places = job["places"]
        environment = {
            **{name: value for name, value in os.environ.items() if not of_job.match(name)},
            "LSB_JOBID": str(job["id"]),
            "LSB_JOBINDEX": str(job["index"]),
            "LSB_JOBNAME": job["name"],
            "LSB_SUB_HOST": "login1",
            "LS_SUBCWD": job["cwd"],
            "LSB_MCPU_HOSTS": "".join(f"{host} {slots} " for host, slots, _ in places),
            **host_variables(*places[0][::2]),
            **{name: str(value) for name, value in mark_of(job).items()},
        }
        script = SITE / f"{job['id']}.job"
        shell = [] if script.read_bytes().startswith(b"#!") else ["/bin/sh"]
        cwd = job["cwd"] if os.path.isdir(job["cwd"]) else "/tmp"
        output = SITE / f"{job['id']}-{job['index']}.output"
        return [*shell, str(script)], cwd, output, environment

    def send(self, job, number):
        """A signal, to the process group on the first host."""
        if job["pid"] is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job["pid"], number)

    def end_at_limit(self, job, _known):
        """SIGUSR2, and SIGKILL after the grace."""
        now = time.time()
        job |= {"limit_s": None, "killed_as": "TERM_RUNLIMIT"}
        kill_s = now + LIMIT_GRACE_S
        job["kills"] = [[now, int(signal.SIGUSR2)], [kill_s, int(signal.SIGKILL)]]

    def end(self, job, _known):
        end_tasks(job)
        reason = job["killed_as"] or ("TERM_EXTERNAL_SIGNAL" if job["signal"] else "")
        if job["requeues"]:
            pend_again(job, job["requeues"])
            return
        self.finish(job, "EXIT" if job["exit_code"] else "DONE", reason)

    def orphan(self, job, known):
        """It waits for ever."""

    def down_hosts(self, known):
        """The lost hosts of which LSF knows."""
        late = time.time() - LOSS_KNOWN_S
        return {host for host, since_s in known["lost"].items() if since_s <= late} | {
            *known["down"]
        }

    def follow_loss(self, job, known, process):
        """A job whose first host is lost: RUN, and with -r again from the queue."""
        process.poll()
        if job["state"] in ENDED:  # it was requeued
            return None
        if job["rerunnable"] and time.time() - job["lost_s"] >= RERUN_AFTER_S:
            known["down"].append(first_host(job))
            end_tasks(job)
            pend_again(job, "")
            return None
        return process


site = Lsf(SITE, HOSTS, __file__)


# Submitting.


def read_options(words):
    """The options by their names; others than hpcdist needs are refused."""
    values, rest = {}, list(words)
    while rest:
        name = rest.pop(0).removeprefix("-")
        if name not in (*FLAGS, *WITH_VALUE):
            refuse(f"bsub: illegal option -- {name}\nUsage: bsub [options] command [arguments]")
        value = name in FLAGS or rest.pop(0)
        values[name] = [*values.get(name, ()), value] if name == "R" else value
    return values


def read_request(values):
    """What a job needs of the hosts."""
    slots, text = int(values.get("n", 1)), " ".join(values.get("R", ()))
    spans = dict(re.findall(r"span\s*\[\s*(\w+)\s*=\s*(\w+)", text))
    gpus = re.search(r"num=(\d+)", values.get("gpu", ""))
    return {
        "slots": slots,
        "per_host": slots if "hosts" in spans else int(spans.get("ptile", 0)),
        "gpus": int(gpus[1]) if gpus else 0,
        "excluded": re.findall(r"\bhname\s*!=\s*([\w.-]+)", text),
    }


def read_condition(text, known):
    terms = []
    for part in text.split("&&") if text else ():
        term = re.fullmatch(r"(done|ended)\((\d+)(?:\[(\d+|\*)\])?\)", part.strip())
        if not term:
            refuse("Dependency condition syntax error. Job not submitted.")
        if not find(term[2], known):
            refuse(f"{term[2]}: No matching job found. Job not submitted.")
        terms.append(term.groups())
    return terms


def bsub(words, known):
    """A job's script comes on standard input; bsub reads its #BSUB lines."""
    values = read_options(words)
    if "V" in values:
        print("IBM Spectrum LSF 10.1.0.13", file=sys.stderr)
        return
    script = sys.stdin.buffer.read().decode(errors="surrogateescape")
    for line in re.findall(r"^\s*#\s*BSUB\b(.*)$", script, re.MULTILINE):
        found = read_options(shlex.split(line, comments=True))
        found["R"] = values.get("R", []) + found.get("R", [])
        values = found | values | {"R": found["R"]}
    name = re.fullmatch(r"([^\[\]]*)(?:\[(\d+)-(\d+)\](?:%(\d+))?)?", values.get("J", ""))
    indices = range(int(name[2]), int(name[3]) + 1) if name[2] else [0]
    hours, _, minutes = values["W"].rpartition(":") if "W" in values else (0, 0, None)
    job = NEW_JOB | {
        "array_limit": int(name[4]) if name[4] else None,
        "cwd": os.getcwd(),
        "request": read_request(values),
        "run_limit_min": None if minutes is None else int(hours or 0) * 60 + int(minutes),
        "condition": read_condition(values.get("w"), known),
        "rerunnable": "r" in values,
        "submit_s": time.time(),
    }
    for _ in range(1 + known["switches"].get("resend_bsub", 0)):
        number = 1001 + len({one["id"] for one in known["jobs"].values()})
        (SITE / f"{number}.job").write_text(script, errors="surrogateescape")
        (SITE / f"{number}.job").chmod(0o755)
        for index in indices:
            key = f"{number}[{index}]" if index else str(number)
            full = f"{name[1]}[{index}]" if index else name[1]
            known["jobs"][key] = job | {"id": number, "index": index, "name": full}
            of_processes = ("LSB_", "LSF_SITE_")
            clean = {k: v for k, v in os.environ.items() if not k.startswith(of_processes)}
            site.start_mom(key, clean)
    print(f"Job <{number}> is submitted to default queue <normal>.")


# Looking.


def short_time(seconds):
    return seconds and time.strftime("%b %e %H:%M", time.localtime(seconds))


def fields(job):
    """The fields of `bjobs -o` that hpcdist asks for; nothing where there is nothing to tell."""
    now, has_ended, has_failed = time.time(), job["state"] in ENDED, job["state"] == "EXIT"
    end, reason = short_time(job["end_s"] if has_ended else job["limit_s"]), job["term_reason"]
    hosts = [f"{slots}*{host}" if slots > 1 else host for host, slots, _ in job["places"]]
    begun_s = (job["end_s"] or now) - job["start_s"] if job["start_s"] else 0
    return {
        "jobid": job["id"],
        "stat": job["state"],
        "job_name": job["name"],
        "exec_host": ":".join(hosts),
        "start_time": short_time(job["start_s"]),
        "finish_time": end and (end if has_ended else f"{end} L"),
        "run_time": f"{begun_s:.0f} second(s)",
        "exit_code": job["exit_code"] if has_failed else None,
        "exit_reason": f"{reason}: job killed" if has_failed and reason else None,
        "pend_reason": f"{job['pending_reason']};" if job["state"] == "PEND" else None,
        "pend_time": round((job["start_s"] or now) - job["submit_s"]),
        "max_mem": "256 Mbytes" if job["start_s"] else None,
    }


def bjobs(words, known):
    """As hpcdist calls it: -a -o FIELDS, and ids."""
    _, _, wanted, *ids = words
    names = wanted.replace(" delimiter='|'", "").split()
    jobs = [job for word in ids for job in find(word, known)] if ids else known["jobs"].values()
    jobs = sorted(jobs, key=lambda job: -(job["end_s"] or float("inf")))  # the last ends first
    if jobs:
        print("|".join(map(str.upper, names)))
    for job in jobs:
        shown = (fields(job)[name] for name in names)
        print("|".join(str(word) if word not in (None, "") else "-" for word in shown))
    missing = [word for word in ids if not find(word, known)]
    for word in missing:
        print(f"Job <{word}> is not found", file=sys.stderr)
    if not ids and not jobs:
        print("No unfinished job found", file=sys.stderr)
    sys.exit(255 if missing or not (ids or jobs) else 0)


def bhosts(_words, known):
    print("HOST_NAME          STATUS          JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV")
    print(f"{'login1':18} {'ok':14} {'-':>5} {0:6} {0:6} {0:6} {0:6} {0:6} {0:6}")
    for host in HOSTS:
        used = site.slots - site.free_hosts(known)[host][0]
        status = "closed_Full" if used >= site.slots else "ok"
        status = "unavail" if host in site.down_hosts(known) else status
        print(f"{host:18} {status:14} {'-':>5} {site.slots:6} {used:6} {used:6}      0")


# Ending.


def act(words, known, states, do):
    """Do it to each job in one of these states; one line per job, 255 where one failed."""
    code = 0
    for word in words:
        fitting = [job for job in find(word, known) if job["state"] in states]
        for job in fitting:
            do(job)
        if not fitting:
            print(f"Job <{word}>: Job has already finished", file=sys.stderr)
            code = 255
    return code


def bkill(words, known):
    return act(words, known, ("PEND", "RUN"), kill)


def brequeue(words, known):
    return act(words, known, ("RUN",), requeue)


def kill(job):
    """One signal after the other, until the script has ended."""
    if job["state"] == "RUN":
        plan_kill(job, "TERM_OWNER")
        job["requeues"] = ""
    else:
        site.finish(job, "EXIT", "TERM_OWNER")


def requeue(job, reason="TERM_REQUEUE_OWNER"):
    """End it as a kill does; then it is pending again, unless its first host is lost."""
    if job["lost_s"] is not None:
        end_tasks(job)
        site.finish(job, "EXIT", reason)
    else:
        plan_kill(job, reason)
        job["requeues"] = reason


def plan_kill(job, reason):
    """A kill that goes on is not begun anew; the grace of the run limit is cut short."""
    goes_on = job["kills"] and job["killed_as"] != "TERM_RUNLIMIT"
    job["killed_as"] = reason
    if not goes_on:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
        interval_s, now = KILL_INTERVAL_S, time.time()
        job["kills"] = [[now + n * interval_s, int(one)] for n, one in enumerate(numbers)]


def end_tasks(job):
    """Kill what a job has on other hosts, because it is over; a process may fork meanwhile."""
    while signal_all(signal.SIGKILL, **mark_of(job), LSF_SITE_TASK="1"):
        time.sleep(0.005)


def pend_again(job, reason):
    """The same id, and hosts anew; what it has written so far is lost."""
    job |= NEW_JOB | {"attempts": job["attempts"], "term_reason": reason}
    job["pending_reason"] = "It is waiting for rescheduling"


# On other hosts.


def blaunch(words):
    """Start a command on a host of the job; it is below the daemon there, not below this."""
    _, host, *command = words
    key = f"{os.environ.get('LSB_JOBID', '')}[{os.environ.get('LSB_JOBINDEX', '0')}]"
    with site.store() as known:
        jobs = [job for job in find(key, known) if job["state"] == "RUN"]
    gpus = {name: gpus for name, _, gpus in jobs[0]["places"]}
    if host not in gpus:
        refuse(f"blaunch: {host}: Host is not in the job's list of allocated hosts")
    environment = os.environ | host_variables(host, gpus[host]) | {"LSF_PM_TASKID": "1"}
    environment |= {name: str(value) for name, value in mark_of(jobs[0]).items()}
    shell, environment = ["/bin/sh", "-c", " ".join(command)], environment | {"LSF_SITE_TASK": "1"}
    with site.store() as known:
        if host in known["lost"]:
            refuse(f"connect to host {host}: No route to host")
    code = subprocess.Popen(shell, env=environment, start_new_session=True).wait()
    with site.store() as known:
        if host in known["lost"]:
            refuse(f"Lost connection to host {host}")
    return 128 - code if code < 0 else code


# What a test does to the site.


def lose_host(words):
    """As by a power cut; LSF knows of it later."""
    (host,) = words
    with site.store() as known:
        known["lost"][host] = time.time()
        for job in known["jobs"].values():
            if job["state"] == "RUN" and first_host(job) == host:
                job |= {"kills": [], "limit_s": None, "lost_s": known["lost"][host]}
        while pids := [*marked(LSF_SITE=SITE, LSB_SITE_HOST=host)]:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


def reach_limit(words):
    with site.store() as known:
        (job,) = find(words[0], known)
        site.end_at_limit(job, known)


def requeue_as(words):
    """As an administrator."""
    with site.store() as known:
        (job,) = find(words[0], known)
        requeue(job, "TERM_REQUEUE_ADMIN")


COMMANDS = (bsub, bjobs, bkill, brequeue, bhosts)
OTHERS = (blaunch, lose_host, reach_limit, requeue_as, site.mom)


def main():
    """Answer a command, or refuse it as the test wants."""
    name, *words = sys.argv[1:]
    with site.store() as known:
        said = known["switches"].get(f"refuse_{name}")
    if said:
        refuse(said)
    (command,) = (one for one in (*COMMANDS, *OTHERS) if one.__name__ == name)
    if command in OTHERS:
        sys.exit(command(words) or 0)
    with site.store() as known:
        sys.exit(command(words, known) or 0)


if __name__ == "__main__":
    main()
