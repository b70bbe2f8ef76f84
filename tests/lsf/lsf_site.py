"""LSF's face of the stand-in in support/queue_store.py. It holds to the documentation of IBM
Spectrum LSF 10.1.

Its state is in the folder LSF_SITE; lsf_cluster.py is what tests see of it, and has its settings.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from queue_store import ENDED, NEW_JOB, STARTED, Scheduler, find, marked, signal_all

SITE = Path(os.environ["LSF_SITE"])
CONFIG = json.loads((SITE / "config.json").read_text())
QUEUES = {"normal": None, "gpuv100": 1440, "short": 60, "closed": None}
"""Name -> the longest run limit in minutes; the last one takes no jobs."""
REASONS = {
    "TERM_OWNER": "job killed by owner",
    "TERM_RUNLIMIT": "job killed after reaching LSF run time limit",
    "TERM_REQUEUE_OWNER": "job killed and requeued by owner",
    "TERM_REQUEUE_ADMIN": "job killed and requeued by root or LSF administrator",
    "TERM_PREEMPT": "job killed after preemption",
    "TERM_ORPHAN_SYSTEM": "orphaned job killed automatically by LSF",
    "TERM_ZOMBIE": "job exited while LSF is not available",
    "TERM_EXTERNAL_SIGNAL": "job killed by a signal external to LSF",
}
FLAGS = {*"hxrNBIKHV", "rn", "ti", "Is"}
WITH_VALUE = {*"abcefgijmnopqstuwCDEFGJLMPRSTUWXk", "oo", "eo", "gpu", "app", "cwd", "env"}


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
            "LSB_INTERACTIVE": "N",
            "LS_SUBCWD": job["cwd"],
            "LSB_MCPU_HOSTS": "".join(f"{host} {slots} " for host, slots, _ in places),
            "LSB_HOSTS": " ".join(f"{host} " * slots for host, slots, _ in places),
            "LSB_DJOB_NUMPROC": str(job["request"]["slots"]),
            **host_variables(*places[0][::2]),
            **{name: str(value) for name, value in mark_of(job).items()},
        }
        if job["attempts"] > 1:
            environment["LSB_RESTART"] = "Y"
        script = SITE / f"{job['id']}.job"
        shell = [] if script.read_bytes().startswith(b"#!") else ["/bin/sh"]
        cwd = job["cwd"] if os.path.isdir(job["cwd"]) else "/tmp"
        return [*shell, str(script)], cwd, self.output_of(job), environment

    def output_of(self, job):
        return SITE / f"{job['id']}-{job['index']}.output"

    def send(self, job, number):
        """A signal, to the process group on the first host."""
        if job["pid"] is not None and job["state"] != "UNKWN":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job["pid"], number)
                if job["state"] == "USUSP" and number != signal.SIGTSTP:
                    os.killpg(job["pid"], signal.SIGCONT)

    def end_at_limit(self, job, _known):
        """SIGUSR2, and SIGKILL after the grace."""
        now = time.time()
        job |= {"limit_s": None, "killed_as": "TERM_RUNLIMIT"}
        kill_s = now + CONFIG["limit_grace_s"]
        job["kills"] = [[now, int(signal.SIGUSR2)], [kill_s, int(signal.SIGKILL)]]

    def end(self, job, _known):
        end_tasks(job)
        reason = job["killed_as"] or ("TERM_EXTERNAL_SIGNAL" if job["signal"] else "")
        if job["requeues"]:
            pend_again(job, job["requeues"])
            return
        self.finish(job, "EXIT" if job["exit_code"] else "DONE", reason)
        if job["output"]:
            self.deliver(job)

    def deliver(self, job):
        """Put a report, as a mail, and what the job has written where it belongs."""
        how = f"Exited by signal {job['signal']}."
        if not job["signal"]:
            how = f"Exited with exit code {job['exit_code']}."
        if job["state"] == "DONE":
            how = "Successfully completed."
        reason = job["term_reason"] and f"{job['term_reason']}: {REASONS[job['term_reason']]}.\n"
        head = f"Sender: LSF System <lsfadmin@{first_host(job)}>\nSubject: Job {job['id']}\n\n"
        text = f"{head}{reason}{how}\n\nThe output (if any) follows:\n\n"
        path = job["output"].replace("%J", str(job["id"])).replace("%I", str(job["index"]))
        with contextlib.suppress(OSError), open(os.path.join(job["cwd"], path), "ab") as file:
            file.write(text.encode() + self.output_of(job).read_bytes() + b"\n")

    def orphan(self, job, _known):
        if job["ends_as_orphan"]:
            self.finish(job, "EXIT", "TERM_ORPHAN_SYSTEM")

    def down_hosts(self, known):
        """The lost hosts of which LSF knows."""
        late = time.time() - CONFIG["loss_known_s"]
        return {host for host, since_s in known["lost"].items() if since_s <= late} | {
            *known["down"]
        }

    def follow_loss(self, job, known, process):
        """A job whose first host is lost: RUN, then UNKWN, and with -r again from the queue."""
        process.poll()
        if job["state"] in ENDED:  # the host has come back, or the job was requeued
            return None
        since_s = time.time() - job["lost_s"]
        if job["rerunnable"] and since_s >= CONFIG["rerun_after_s"]:
            known["down"].append(first_host(job))
            end_tasks(job)
            pend_again(job, "")
            return None
        if job["state"] == "RUN" and since_s >= CONFIG["loss_known_s"]:
            job["state"] = "UNKWN"
        return process


site = Lsf(SITE, CONFIG["hosts"], __file__)


# Submitting.


def read_options(words):
    """Options up to the first word that is none, and what comes after."""
    values, rest = {}, list(words)
    while rest and rest[0].startswith("-") and len(rest[0]) > 1:
        name = rest.pop(0)[1:]
        if name in FLAGS:
            values[name] = True
        elif name == "R":
            values.setdefault(name, []).append(rest.pop(0))
        elif name in WITH_VALUE:
            values[name] = rest.pop(0)
        else:
            refuse(f"bsub: illegal option -- {name}\nUsage: bsub [options] command [arguments]")
    return values, rest


def read_request(values):
    """What a job needs of the hosts."""
    slots, text = int(values.get("n", 1)), " ".join(values.get("R", ()))
    spans = dict(re.findall(r"span\s*\[\s*(\w+)\s*=\s*(\w+)", text))
    gpus = re.search(r"num=(\d+)", values.get("gpu", ""))
    return {
        "slots": slots,
        "per_host": slots if "hosts" in spans else int(spans.get("ptile", 0)),
        "gpus": int(gpus[1]) if gpus else 0,
        "wanted": values.get("m", "").split(),
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
    values, _ = read_options(words)
    if "V" in values:
        print("IBM Spectrum LSF 10.1.0.13", file=sys.stderr)
        return
    script = sys.stdin.buffer.read().decode(errors="surrogateescape")
    for line in re.findall(r"^\s*#\s*BSUB\b(.*)$", script, re.MULTILINE):
        found, _ = read_options(shlex.split(line, comments=True))
        found["R"] = values.get("R", []) + found.get("R", [])
        values = found | values | {"R": found["R"]}
    if (queue := values.get("q", "normal")) not in QUEUES:
        refuse(f"{queue}: No such queue. Job not submitted.")
    name = re.fullmatch(r"([^\[\]]*)(?:\[(\d+)-(\d+)\](?:%(\d+))?)?", values.get("J", ""))
    indices = range(int(name[2]), int(name[3]) + 1) if name[2] else [0]
    hours, _, minutes = values["W"].rpartition(":") if "W" in values else (0, 0, None)
    job = NEW_JOB | {
        "array_limit": int(name[4]) if name[4] else None,
        "cwd": os.getcwd(),
        "output": values.get("o"),
        "request": read_request(values),
        "run_limit_min": QUEUES[queue] if minutes is None else int(hours or 0) * 60 + int(minutes),
        "condition": read_condition(values.get("w"), known),
        "ends_as_orphan": "ti" in values,
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
    print(f"Job <{number}> is submitted to queue <{queue}>.")


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
        "exit_reason": f"{reason}: {REASONS[reason]}" if has_failed and reason else None,
        "pend_reason": f"{job['pending_reason']};" if job["state"] == "PEND" else None,
        "pend_time": round((job["start_s"] or now) - job["submit_s"]),
        "max_mem": "256 Mbytes" if job["start_s"] else None,
    }


def bjobs(words, known):
    """As hpcdist calls it: -a -o FIELDS, and ids."""
    _, _, wanted, *ids = words
    names = wanted.replace(" delimiter='|'", "").split()
    some = NEW_JOB | {"id": 0, "name": "", "submit_s": 0}
    for name in names:
        if name not in fields(some):
            refuse(f"<{name.upper()}> in the format string is not a valid field name")
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


def bparams(_words, _known):
    print("Default Queues:  normal\nJob Checking Interval:  7 seconds")


def bqueues(_words, _known):
    """In the long form."""
    for name, limit_min in QUEUES.items():
        status = f"{'Closed' if name == 'closed' else 'Open'}:Active"
        print(f"-----\n\nQUEUE: {name}\n  -- No description provided.\n\nPARAMETERS/STATISTICS")
        print("PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV")
        print(f" 30    0  {status:<15} -    -    -    -     0     0     0     0     0    0")
        if limit_min:
            print(f"\nMAXIMUM LIMITS:\n RUNLIMIT\n {limit_min:.1f} min")
        print("\nSCHEDULING PARAMETERS\n loadSched   -     -\n\nUSERS: all\nHOSTS:  all")


def bhosts(words, known):
    if "-gpu" in words:
        refuse("bhosts: no host has GPUs")
    print("HOST_NAME          STATUS          JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV")
    print(f"{'login1':18} {'ok':14} {'-':>5} {0:6} {0:6} {0:6} {0:6} {0:6} {0:6}")
    for host in CONFIG["hosts"]:
        used = site.slots - site.free_hosts(known)[host][0]
        status = "closed_Full" if used >= site.slots else "ok"
        status = "unavail" if host in site.down_hosts(known) else status
        print(f"{host:18} {status:14} {'-':>5} {site.slots:6} {used:6} {used:6}      0")


# Ending.


def act(words, known, states, do, said):
    """Do it to each job in one of these states; one line per job, 255 where one failed."""
    code = 0
    for word in words:
        jobs = find(word, known)
        fitting = [job for job in jobs if job["state"] in states]
        for job in fitting:
            do(job)
        if fitting:
            print(f"Job <{word}> is being {said}")
            continue
        why = "No matching job found"
        if jobs:
            is_over = jobs[0]["state"] in ENDED
            why = f"Job has {'already finished' if is_over else 'not started yet'}"
        print(f"Job <{word}>: {why}", file=sys.stderr)
        code = 255
    return code


def bkill(words, known):
    return act(words, known, ("PEND", "PSUSP", *STARTED), kill, "terminated")


def bstop(words, known):
    return act(words, known, ("PEND", "RUN"), suspend, "stopped")


def brequeue(words, known):
    if known["switches"].get("brequeue_refused"):
        refuse("".join(f"Job <{word}>: User permission denied\n" for word in words))
    return act(words, known, ("RUN", "USUSP"), requeue, "requeued")


def kill(job):
    """One signal after the other, until the script has ended."""
    if job["state"] in STARTED:
        plan_kill(job, "TERM_OWNER")
        job["requeues"] = ""
    else:
        site.finish(job, "EXIT", "TERM_OWNER")


def suspend(job):
    if job["state"] == "PEND":
        job["state"] = "PSUSP"
    else:
        site.send(job, signal.SIGTSTP)  # as of a parallel job
        job["state"] = "USUSP"


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
        interval_s, now = CONFIG["kill_interval_s"], time.time()
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
    while words[0].startswith("-"):
        flag, *words = words
        if flag == "-z":
            break
    host, *command = words
    key = f"{os.environ.get('LSB_JOBID', '')}[{os.environ.get('LSB_JOBINDEX', '0')}]"
    with site.store() as known:
        jobs = [job for job in find(key, known) if job["state"] == "RUN"]
    if not jobs:
        refuse("blaunch: This command can only be used within an LSF job")
    gpus = {name: gpus for name, _, gpus in jobs[0]["places"]}
    if host not in gpus:
        refuse(f"blaunch: {host}: Host is not in the job's list of allocated hosts")
    environment = os.environ | host_variables(host, gpus[host]) | {"LSF_PM_TASKID": "1"}
    environment |= {name: str(value) for name, value in mark_of(jobs[0]).items()}
    shell = ["/bin/sh", "-c", " ".join(command)]
    return run_there(host, shell, environment | {"LSF_SITE_TASK": "1"}, is_login=False)


def ssh(words):
    """A fresh login on a host: LSF knows nothing of what runs there, and leaves it alone."""
    while words[0].startswith("-"):
        words = words[2:] if words[0] == "-o" else words[1:]
    host, *command = words
    if host not in CONFIG["hosts"]:
        refuse(f"ssh: Could not resolve hostname {host}: Name or service not known")
    environment = CONFIG["login_environment"] | {"LSB_SITE_HOST": host}
    return run_there(host, ["/bin/sh", "-c", " ".join(command)], environment, is_login=True)


def run_there(host, command, environment, *, is_login):
    kept = {name: os.environ[name] for name in ("HPCDIST_TEST_MARK",) if name in os.environ}
    cwd = environment.get("HOME", "/") if is_login else None
    with site.store() as known:
        if host in known["lost"]:
            refuse(f"connect to host {host}: No route to host")
    task = subprocess.Popen(command, cwd=cwd, env=environment | kept, start_new_session=True)
    code = task.wait()
    with site.store() as known:
        if host in known["lost"]:
            refuse(f"Lost connection to host {host}")
    return 128 - code if code < 0 else code


# What a test does to the site.


def lose_host(host):
    """As by a power cut; LSF knows of it later."""
    with site.store() as known:
        known["lost"][host] = time.time()
        for job in known["jobs"].values():
            if job["state"] in STARTED and first_host(job) == host:
                job |= {"kills": [], "limit_s": None, "lost_s": known["lost"][host]}
        while pids := [*marked(LSF_SITE=SITE, LSB_SITE_HOST=host)]:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


def return_host(host):
    """It has booted: what was on it is known to have ended."""
    with site.store() as known:
        del known["lost"][host]
        known["down"] = [one for one in known["down"] if one != host]
        for job in known["jobs"].values():
            if job["lost_s"] is not None and job["state"] in STARTED and first_host(job) == host:
                end_tasks(job)
                job["exit_code"] = 137
                site.finish(job, "EXIT", "TERM_ZOMBIE")


def reach_limit(key):
    with site.store() as known:
        for job in find(key, known):
            site.end_at_limit(job, known)


def requeue_as(key, reason):
    with site.store() as known:
        for job in find(key, known):
            requeue(job, reason)


COMMANDS = (bsub, bjobs, bkill, brequeue, bstop, bqueues, bhosts, bparams)
LAUNCHERS = (blaunch, ssh)
ORDERS = (lose_host, return_host, reach_limit, requeue_as)
BY_NAME = {one.__name__: one for one in (*COMMANDS, *LAUNCHERS, *ORDERS)}


def call(name, words):
    """Answer a command, with the faults that the test wants."""
    with site.store() as known:
        switches = known["switches"]
    if said := switches.get(f"refuse_{name}"):
        refuse(said)
    if BY_NAME[name] in LAUNCHERS:
        return BY_NAME[name](words)
    with site.store() as known:
        known["calls"][name] = known["calls"].get(name, 0) + 1
        if switches.get(f"cut_off_{name}"):
            print('{"COMMAND":"bjobs","JOBS":0,"RECORDS":[]}')
            refuse("System call failed: Network is unreachable")
        return BY_NAME[name](words, known)


def main():
    name, *words = sys.argv[1:]
    if name == "mom":
        site.mom(words)
    elif BY_NAME[name] in ORDERS:
        BY_NAME[name](*words)
    else:
        sys.exit(call(name, words) or 0)


if __name__ == "__main__":
    main()
