"""An LSF for tests: behind its commands, jobs really run on this machine. It holds to the
documentation of IBM Spectrum LSF 10.1, and can be an older engine that knows less of it.

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
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from queue_store import Store, marked, signal_all

SITE = Path(os.environ["LSF_SITE"])
CONFIG = json.loads((SITE / "config.json").read_text())
QUEUES = {queue["name"]: queue for queue in CONFIG["queues"]}
STRICT = CONFIG["engine"] == "strict"
POLL_S = 0.03
site = Store(SITE, {"jobs": {}, "lost": {}, "down": [], "switches": {}, "calls": {}, "forgot": []})
OF_PROCESSES = ("LSB_", "LSF_SITE_")
"""Variables by which the processes of a host or a job are known."""
ENDED = ("DONE", "EXIT")
STARTED = ("RUN", "USUSP", "SSUSP", "UNKWN", "ZOMBI")
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


def refuse(text):
    print(text, file=sys.stderr)
    sys.exit(255)


def has_started(job):
    return job["state"] in STARTED


def first_host(job):
    return job["places"][0][0] if job["places"] else None


# Submitting.


FLAGS = set("hxrNBIKHV")
WITH_VALUE = set("abcefgijmnopqstuwCDEFGJLMPRSTUWXk")
if not STRICT:
    FLAGS |= {"rn", "ti", "ul", "Is", "Ne"}
    WITH_VALUE |= {"oo", "eo", "gpu", "We", "nnodes", "app", "sla", "cwd", "env", "Q", "sp"}


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


def read_directives(script):
    """The options of a script's #BSUB lines; words that are no options are passed over."""
    values = {}
    for line in re.findall(r"^\s*#\s*BSUB\b(.*)$", script, re.MULTILINE):
        words = shlex.split(line, comments=True)
        while words:
            found, rest = read_options(words)
            found["R"] = values.get("R", []) + found.get("R", [])
            values, words = values | found, rest[1:]
    return values


def read_request(values, queue):
    """What a job needs of the hosts."""
    slots = int(values.get("n", 1))
    text = " ".join(values.get("R", ()))
    spans = dict(re.findall(r"span\s*\[\s*(\w+)\s*=\s*(\w+)", text))
    gpus = re.search(r"num=(\d+)(/task)?", values.get("gpu", ""))
    per_host = int(spans["ptile"]) if "ptile" in spans else None
    per_task = (per_host or slots) if gpus and gpus[2] else 1
    request = {
        "slots": slots,
        "hosts": spans.get("hosts"),
        "per_host": per_host,
        "gpus": int(gpus[1]) * per_task if gpus else 0,
        "wanted": values.get("m", "").split(),
        "excluded": re.findall(r"\bhname\s*!=\s*([\w.-]+)", text),
    }
    if queue["task_limit"] is not None and slots > queue["task_limit"]:
        refuse("Too many processors requested. Job not submitted.")
    if request["gpus"] > CONFIG["gpus"]:
        refuse("GPU requirement cannot be satisfied by any host. Job not submitted.")
    if unknown := [name for name in request["wanted"] if name not in CONFIG["hosts"]]:
        refuse(f"{unknown[0]}: Bad host name, host group name or cluster name. Job not submitted.")
    return request


def read_run_limit_min(text, queue):
    most = queue["run_limit_min"]
    if text is None:
        return queue["default_run_limit_min"] or most
    hours, _, minutes = text.rpartition(":")
    limit_min = int(hours or 0) * 60 + int(minutes)
    if most is not None and limit_min > most:
        refuse("RUNLIMIT: Cannot exceed queue's hard limit(s). Job not submitted.")
    return limit_min


def read_condition(text, known):
    """[(function, id, index or None, or * for the same)]: all must come true."""
    terms = []
    for part in text.split("&&") if text else ():
        term = re.fullmatch(r"(done|ended|exit)\((\d+)(?:\[(\d+|\*)\])?\)", part.strip())
        if not term:
            refuse("Dependency condition syntax error. Job not submitted.")
        if not find(term[2], known):
            refuse(f"{term[2]}: No matching job found. Job not submitted.")
        terms.append(term.groups())
    return terms


def read_queue(names):
    for name in names.split():
        if name not in QUEUES:
            refuse(f"{name}: No such queue. Job not submitted.")
        if QUEUES[name]["is_open"]:
            return QUEUES[name]
    return refuse(f"{names}: Queue has been closed. Job not submitted.")


def bsub(words, known):
    """A job's script comes on standard input."""
    given, _ = read_options(words)
    if "V" in given:
        version = "LSF-compatible batch system 3.3" if STRICT else "IBM Spectrum LSF 10.1.0.13"
        print(version, file=sys.stderr)
        return
    script = sys.stdin.buffer.read().decode(errors="surrogateescape")
    values = read_directives(script) | given
    queue = read_queue(values.get("q", CONFIG["default_queue"]))
    name = re.fullmatch(r"([^\[\]]*)(?:\[(\d+)-(\d+)\](?:%(\d+))?)?", values.get("J", ""))
    indices = range(int(name[2]), int(name[3]) + 1) if name[2] else [0]
    cwd = os.getcwd()
    job = {
        "stem": name[1],
        "array_limit": int(name[4]) if name[4] else None,
        "array_end": indices[-1],
        "queue": queue["name"],
        "cwd": cwd,
        "run_cwd": os.path.join(cwd, values.get("cwd", "")),
        "output": values.get("oo", values.get("o")),
        "overwrites": "oo" in values,
        "request": read_request(values, queue),
        "run_limit_min": read_run_limit_min(values.get("W"), queue),
        "condition": read_condition(values.get("w"), known),
        "ends_as_orphan": "ti" in values,
        "rerunnable": "r" in values,
        "requeue_values": values.get("Q", queue["requeue_exit_values"]),
        "options": values,
        "state": "PEND",
        "pending_reason": "New job is waiting for scheduling",
        "places": [],
        "submit_s": time.time(),
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
    for _ in range(1 + known["switches"].get("resend_bsub", 0)):
        number = 1001 + len({one["id"] for one in known["jobs"].values()})
        (SITE / f"{number}.job").write_text(script, errors="surrogateescape")
        (SITE / f"{number}.job").chmod(0o755)
        for index in indices:
            key = f"{number}[{index}]" if index else str(number)
            full = f"{name[1]}[{index}]" if index else name[1]
            known["jobs"][key] = job | {"id": number, "index": index, "name": full}
            with (SITE / "moms.log").open("ab") as log:
                subprocess.Popen(
                    [sys.executable, "-I", "-S", __file__, "mom", key],
                    env={k: v for k, v in os.environ.items() if not k.startswith(OF_PROCESSES)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
    print(f"Job <{number}> is submitted to queue <{queue['name']}>.")


# Looking.


def find(word, known):
    """The jobs that `12`, `12[3]` or `12[1-3,5]` means."""
    number, _, inner = word.strip("\"'").rstrip("]").partition("[")
    indices = set()
    for part in filter(None, inner.replace(" ", "").split(",")):
        first, _, last = part.partition("-")
        indices.update(range(int(first), int(last or first) + 1))
    if number in known["forgot"]:
        return []
    jobs = [job for job in known["jobs"].values() if str(job["id"]) == number]
    return [job for job in jobs if not indices or job["index"] in indices]


def short_time(seconds):
    return seconds and time.strftime("%b %e %H:%M", time.localtime(seconds))


def fields(job):
    """The fields of `bjobs -o` that hpcdist asks for; nothing where there is nothing to tell."""
    now, has_ended, has_failed = time.time(), job["state"] in ENDED, job["state"] == "EXIT"
    end, reason = short_time(job["end_s"] if has_ended else job["limit_s"]), job["term_reason"]
    hosts = [f"{slots}*{host}" if slots > 1 else host for host, slots, _ in job["places"]]
    old = {
        "jobid": job["id"],
        "stat": job["state"],
        "job_name": job["name"],
        "exec_host": ":".join(hosts),
        "start_time": short_time(job["start_s"]),
        "finish_time": end and (end if has_ended else f"{end} L"),
    }
    begun_s = (job["end_s"] or now) - job["start_s"] if job["start_s"] else 0
    new = {
        "estimated_start_time": None,
        "run_time": f"{begun_s:.0f} second(s)",
        "exit_code": job["exit_code"] if has_failed else None,
        "exit_reason": f"{reason}: {REASONS[reason]}" if has_failed and reason else None,
        "pend_reason": f"{job['pending_reason']};" if job["state"] == "PEND" else None,
        "pend_time": round((job["start_s"] or now) - job["submit_s"]),
        "max_mem": "256 Mbytes" if job["start_s"] else None,
    }
    return old if STRICT else old | new


def bjobs(words, known):
    shows_ended = "-a" in words
    rest = [word for word in words if word != "-a"]
    place = rest.index("-o")
    wanted, ids = rest[place + 1], rest[:place] + rest[place + 2 :]
    delimiter = re.search(r"delimiter=(['\"])(.*?)\1", wanted)
    names = wanted.replace(delimiter[0], "").split()
    some = {
        "submit_s": 0,
        "start_s": 0,
        "end_s": 0,
        "limit_s": 0,
        "places": [],
        "id": 0,
        "state": "",
        "term_reason": "",
        "name": "",
        "exit_code": 0,
    }
    for name in names:
        if name not in fields(some):
            refuse(f"<{name.upper()}> in the format string is not a valid field name")
    jobs = [job for word in ids for job in find(word, known)]
    if not ids:
        jobs = [job for job in known["jobs"].values() if shows_ended or job["state"] not in ENDED]
    jobs.sort(key=lambda job: -(job["end_s"] or float("inf")))  # the last ends first
    for row in [names, *([fields(job)[name] for name in names] for job in jobs)] if jobs else ():
        words = (str(word) if word not in (None, "") else "-" for word in row)
        print(delimiter[2].join(words if row is not names else map(str.upper, names)))
    missing = [word for word in ids if not find(word, known)]
    for word in missing:
        print(f"Job <{word}> is not found", file=sys.stderr)
    if not ids and not jobs:
        print("No unfinished job found", file=sys.stderr)
    sys.exit((254 if STRICT else 255) if missing or not (ids or jobs) else 0)


def bparams(words, known):
    if "-a" in words and STRICT:
        refuse("bparams: illegal option -- a\nUsage: bparams [-h] [-V] [-l]")
    if words:
        print(f"\nDEFAULT_QUEUE = {CONFIG['default_queue']}\nCLEAN_PERIOD = 3600")
    else:
        print(f"Default Queues:  {CONFIG['default_queue']}\nJob Checking Interval:  7 seconds")


def bqueues(words, known):
    """In the long form."""
    names = [word for word in words if not word.startswith("-")]
    if unknown := [name for name in names if name not in QUEUES]:
        refuse(f"{unknown[0]}: No such queue")
    for name in names or QUEUES:
        queue = QUEUES[name]
        status = f"{'Open' if queue['is_open'] else 'Closed'}:Active"
        print(f"-----\n\nQUEUE: {name}\n  -- No description provided.\n\nPARAMETERS/STATISTICS")
        print("PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV")
        print(f" 30    0  {status:<15} -    -    -    -     0     0     0     0     0    0")
        print("Interval for a host to accept two jobs is 0 seconds")
        if default := queue["default_run_limit_min"]:
            print(f"\nDEFAULT LIMITS:\n RUNLIMIT\n {default:.1f} min\n\nMAXIMUM LIMITS:")
        if queue["run_limit_min"]:
            print(f" RUNLIMIT\n {queue['run_limit_min']:.1f} min")
        if queue["task_limit"]:
            print(f" {'PROCLIMIT' if STRICT else 'TASKLIMIT'}\n {queue['task_limit']}")
        print("\nSCHEDULING PARAMETERS\n loadSched   -     -\n\nUSERS: all\nHOSTS:  all")


def bhosts(words, known):
    if "-gpu" in words and STRICT:
        refuse("bhosts: illegal option -- gpu\nUsage: bhosts [-w | -l] [host_name ...]")
    if "-gpu" in words:
        print("HOST_NAME            ID                MODEL     MUSED      MRSV  NJOBS    RUN")
        for host in CONFIG["hosts"]:
            for gpu in range(CONFIG["gpus"]):
                print(f"{'' if gpu else host:18} {gpu:4}   TeslaV100_SXM2_32GB   0M   0M   0   0")
        return
    print("HOST_NAME          STATUS          JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV")
    print(f"{'login1':18} {'ok':14} {'-':>5} {0:6} {0:6} {0:6} {0:6} {0:6} {0:6}")
    for host in CONFIG["hosts"]:
        used = CONFIG["slots"] - free_hosts(known)[host][0]
        status = "closed_Full" if used >= CONFIG["slots"] else "ok"
        status = "unavail" if host in down_hosts(known) else status
        print(f"{host:18} {status:14} {'-':>5} {CONFIG['slots']:6} {used:6} {used:6}      0")


# Ending.


def act(words, known, fits, do, said):
    """Do it to each job that fits; one line per job, 255 where one failed."""
    code = 0
    for word in words:
        jobs = find(word, known)
        fitting = [job for job in jobs if fits(job)]
        for job in fitting:
            do(job, known)
        if fitting:
            print(f"Job <{word}> is being {said}")
            continue
        why = "No matching job found"
        if jobs:
            why = "already finished" if jobs[0]["state"] in ENDED else "not started yet"
            why = f"Job has {why}"
        print(f"Job <{word}>: {why}", file=sys.stderr)
        code = 255
    return code


def is_unfinished(job):
    return job["state"] not in ENDED


def bkill(words, known):
    return act(words, known, is_unfinished, kill, "terminated")


def bstop(words, known):
    return act(words, known, is_unfinished, suspend, "stopped")


def brequeue(words, known):
    if known["switches"].get("brequeue_refused"):
        refuse("".join(f"Job <{word}>: User permission denied\n" for word in words))
    states = ("RUN", "USUSP")
    ids = [word for word in words if not word.startswith("-")]
    return act(ids, known, lambda job: job["state"] in states, requeue, "requeued")


def kill(job, known):
    """One signal after the other, until the script has ended."""
    if not has_started(job):
        finish(job, "EXIT", "TERM_OWNER")
        return
    plan_kill(job, "TERM_OWNER")
    job["requeues"] = ""


def suspend(job, known):
    if job["state"] == "PEND":
        job["state"] = "PSUSP"
    elif job["state"] == "RUN":
        send(job, signal.SIGTSTP)  # as of a parallel job
        job["state"] = "USUSP"


def requeue(job, known, reason="TERM_REQUEUE_OWNER"):
    """End it as a kill does; then it is pending again, unless its first host is lost."""
    if has_started(job) and job["lost_s"] is not None:
        end_tasks(job)
        finish(job, "EXIT", reason)
    elif has_started(job):
        plan_kill(job, reason)
        job["requeues"] = reason
    else:
        pend_again(job, reason)


def plan_kill(job, reason):
    """A kill that goes on is not begun anew; the grace of the run limit is cut short."""
    goes_on = job["kills"] and job["killed_as"] != "TERM_RUNLIMIT"
    job["killed_as"] = reason
    if not goes_on:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
        interval_s, now = CONFIG["kill_interval_s"], time.time()
        job["kills"] = [[now + n * interval_s, int(one)] for n, one in enumerate(numbers)]


def end_at_limit(job, known):
    """SIGUSR2, and SIGKILL after the grace."""
    now = time.time()
    job |= {"limit_s": None, "killed_as": "TERM_RUNLIMIT"}
    kill_s = now + CONFIG["limit_grace_s"]
    job["kills"] = [[now, int(signal.SIGUSR2)], [kill_s, int(signal.SIGKILL)]]


def send(job, number):
    """A signal, to the process group on the first host."""
    if job["pid"] is not None and job["state"] not in ("UNKWN", "ZOMBI"):
        signal_group(job["pid"], number)
        if job["state"] in ("USUSP", "SSUSP") and number != signal.SIGTSTP:
            signal_group(job["pid"], signal.SIGCONT)


def signal_group(group, number):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def mark_of(job):
    return {"LSF_SITE": SITE, "LSF_SITE_JOB": f"{job['id']}[{job['index']}].{job['attempts']}"}


def end_tasks(job):
    """Kill what a job has on other hosts, because it is over; a process may fork meanwhile."""
    while signal_all(signal.SIGKILL, **mark_of(job), LSF_SITE_TASK="1"):
        time.sleep(0.005)


def finish(job, state, reason=""):
    job |= {"state": state, "end_s": time.time(), "term_reason": reason, "pid": None, "kills": []}


def pend_again(job, reason):
    """The same id, and hosts anew; what it has written so far is lost."""
    job |= {"state": "PEND", "places": [], "start_s": None, "end_s": None, "limit_s": None}
    job |= {"requeues": "", "killed_as": "", "term_reason": reason, "pid": None, "kills": []}
    job |= {"lost_s": None, "pending_reason": "It is waiting for rescheduling"}


# A job.


def mom(words):
    (key,) = words
    process = None
    while True:
        with site() as known:
            job = known["jobs"].get(key)
            if job is None or (job["state"] in ENDED and process is None):
                return
            if process is None and job["state"] == "PEND":
                job["pending_reason"] = place(job, known)
                process = None if job["pending_reason"] else start(job)
            elif process is not None and job["lost_s"] is not None:
                process = follow_loss(job, known, process)
            elif process is not None and process.poll() is not None:
                end(job, process.returncode)
                process = None
            elif process is not None:
                now = time.time()
                if job["state"] == "RUN" and job["limit_s"] is not None and job["limit_s"] <= now:
                    end_at_limit(job, known)
                while job["kills"] and job["kills"][0][0] <= now:
                    send(job, job["kills"].pop(0)[1])
        time.sleep(POLL_S)


def down_hosts(known):
    """The lost hosts of which LSF knows."""
    late = time.time() - CONFIG["loss_known_s"]
    return {host for host, since_s in known["lost"].items() if since_s <= late} | {*known["down"]}


def free_hosts(known):
    """Host -> (slots, GPUs) that running jobs leave."""
    free = {host: [CONFIG["slots"], [*range(CONFIG["gpus"])]] for host in CONFIG["hosts"]}
    for job in filter(has_started, known["jobs"].values()):
        for host, slots, gpus in job["places"]:
            free[host][0] -= slots
            free[host][1] = [gpu for gpu in free[host][1] if gpu not in gpus]
    return free


def holds(term, job, known):
    """Whether a condition is true now: True, False, or None where it never will be."""
    function, number, element = term
    wanted = str(job["index"]) if element == "*" else element
    values = []
    for other in find(number, known):
        if wanted in (None, str(other["index"])):
            has_ended, is_done = other["state"] in ENDED, other["state"] == "DONE"
            is_met = has_ended and (function == "ended" or is_done == (function == "done"))
            values.append(is_met or (None if has_ended else False))
    return None if None in values or not values else all(values)


def place(job, known):
    """Give the job its hosts, or return why it has none."""
    met = [holds(term, job, known) for term in job["condition"]]
    if None in met:
        if job["ends_as_orphan"]:
            finish(job, "EXIT", "TERM_ORPHAN_SYSTEM")
        return "Dependency condition invalid or never satisfied"
    if not all(met):
        return "Job dependency condition not satisfied"
    siblings = [one for one in known["jobs"].values() if one["id"] == job["id"]]
    before = [one for one in siblings if one["state"] == "PEND" and one["index"] < job["index"]]
    num_first = sum(map(has_started, siblings)) + len(before)
    if job["array_limit"] and num_first >= job["array_limit"]:
        return "The job array has reached its running element limit"
    request, why = job["request"], Counter()
    left, places = request["slots"], []
    hosts = [host for host in CONFIG["hosts"] if host not in down_hosts(known)]
    hosts = [host for host in hosts if host not in request["excluded"]]
    free, most = free_hosts(known), request["per_host"] or CONFIG["slots"]
    for host in [one for one in request["wanted"] if one in hosts] or hosts:
        slots, gpus = free[host]
        least = request["slots"] if request["hosts"] else min(most, left)
        if not left:
            break
        if slots < (least if request["per_host"] or request["hosts"] else 1):
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
        return place(job, known)
    job["places"] = places
    return ""


def expand(text, job):
    """A path of -o, with %J and %I, as an absolute one."""
    path = text.replace("%J", str(job["id"])).replace("%I", str(job["index"]))
    path = os.path.join(job["run_cwd"], path)
    return os.path.join(path, f"{job['id']}.out") if os.path.isdir(path) else path


def host_variables(host, gpus):
    shown = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else {}
    return {"LSB_SITE_HOST": host} | shown


def start(job):
    """Start a job that has its hosts."""
    now = time.time()
    job |= {"state": "RUN", "start_s": now, "lost_s": None, "exit_code": None, "signal": None}
    job |= {"attempts": job["attempts"] + 1, "term_reason": ""}
    if job["run_limit_min"] is not None:
        job["limit_s"] = now + 60 * job["run_limit_min"]
    of_job = re.compile(r"LSB_|LS_SUBCWD$|LS_JOBPID$|LSF_PM_|LSFUSER$|CUDA_VISIBLE_DEVICES$")
    listed = "".join(f"{host}\n" * slots for host, slots, _ in job["places"])
    (SITE / f"{job['id']}.hosts").write_text(listed)
    environment = {
        **{name: value for name, value in os.environ.items() if not of_job.match(name)},
        "LSB_JOBID": str(job["id"]),
        "LSB_JOBINDEX": str(job["index"]),
        "LSB_JOBNAME": job["name"],
        "LSB_QUEUE": job["queue"],
        "LSB_SUB_HOST": "login1",
        "LSB_INTERACTIVE": "N",
        "LS_SUBCWD": job["cwd"],
        "LSB_MCPU_HOSTS": "".join(f"{host} {slots} " for host, slots, _ in job["places"]),
        "LSB_HOSTS": " ".join(listed.split()),
        "LSB_DJOB_NUMPROC": str(job["request"]["slots"]),
        "LSB_DJOB_HOSTFILE": str(SITE / f"{job['id']}.hosts"),
        **host_variables(*job["places"][0][::2]),
        **{name: str(value) for name, value in mark_of(job).items()},
    }
    if job["index"]:
        environment["LSB_JOBINDEX_END"] = str(job["array_end"])
    if job["requeue_values"]:
        environment["LSB_EXIT_REQUEUE"] = job["requeue_values"]
    if job["attempts"] > 1 and not STRICT:
        environment["LSB_RESTART"] = "Y"
    script = SITE / f"{job['id']}.job"
    with output_of(job).open("wb") as output:
        process = subprocess.Popen(
            [str(script)] if script.read_bytes().startswith(b"#!") else ["/bin/sh", str(script)],
            cwd=job["run_cwd"] if os.path.isdir(job["run_cwd"]) else "/tmp",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    job["pid"] = process.pid
    return process


def output_of(job):
    return SITE / f"{job['id']}-{job['index']}.output"


def follow_loss(job, known, process):
    """Of a job whose first host is lost: RUN, then UNKWN, and then with -r again from the queue."""
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


def end(job, code):
    end_tasks(job)
    job |= {"exit_code": 128 - code if code < 0 else code, "signal": -code if code < 0 else None}
    reason = job["killed_as"] or ("TERM_EXTERNAL_SIGNAL" if code < 0 else "")
    words = re.sub(r"EXCLUDE\(([^)]*)\)", r"\1", job["requeue_values"]).split()
    named, is_out = {str(job["exit_code"]), "all"} & {*words}, f"~{job['exit_code']}" in words
    if job["requeues"] or (code and named and not is_out):
        pend_again(job, job["requeues"])
        return
    finish(job, "EXIT" if code else "DONE", reason)
    if job["output"]:
        deliver(job)


def deliver(job):
    """Put a report, as a mail, and what the job has written where it belongs."""
    how = f"Exited with exit code {job['exit_code']}."
    if job["signal"]:
        how = f"Exited by signal {job['signal']}."
    if job["state"] == "DONE":
        how = "Successfully completed."
    reason = job["term_reason"] and f"{job['term_reason']}: {REASONS[job['term_reason']]}.\n"
    head = f"Sender: LSF System <lsfadmin@{first_host(job)}>\nSubject: Job {job['id']}\n\n"
    text = f"{head}{reason}{how}\n\nThe output (if any) follows:\n\n"
    path = expand(job["output"], job)
    with contextlib.suppress(OSError), open(path, "wb" if job["overwrites"] else "ab") as file:
        file.write(text.encode() + output_of(job).read_bytes() + b"\n")


# On other hosts.


def blaunch(words):
    """Start a command on a host of the job; it is below the daemon there, not below this."""
    left, flags = list(words), set()
    while left[0].startswith("-"):
        flag = left.pop(0)
        if flag == "-z":
            break
        flags.add(flag)  # what rsh and ssh have besides is passed over in silence
    host = left.pop(0)
    index = os.environ.get("LSB_JOBINDEX", "0")
    with site() as known:
        found = find(os.environ.get("LSB_JOBID", ""), known)
        jobs = [job for job in found if str(job["index"]) == index and job["state"] == "RUN"]
        gpus = {name: gpus for job in jobs for name, _, gpus in job["places"]}
    if not jobs:
        refuse("blaunch: This command can only be used within an LSF job")
    if host not in gpus:
        refuse(f"blaunch: {host}: Host is not in the job's list of allocated hosts")
    known_there = CONFIG["login_environment"] if STRICT else os.environ
    environment = known_there | host_variables(host, gpus[host]) | {"LSF_PM_TASKID": "1"}
    environment |= {name: str(value) for name, value in mark_of(jobs[0]).items()}
    command = left if "-no-shell" in flags else ["/bin/sh", "-c", " ".join(left)]
    return run_there(host, command, environment | {"LSF_SITE_TASK": "1"}, is_login=STRICT)


def ssh(words):
    """A fresh login on a host: LSF knows nothing of what runs there, and leaves it alone."""
    left = list(words)
    while left and left[0].startswith("-"):
        if left.pop(0)[1:] in {*"bcDEeFIiJLlmOopQRSWw"}:
            left.pop(0)
    host = left.pop(0)
    if host not in CONFIG["hosts"]:
        refuse(f"ssh: Could not resolve hostname {host}: Name or service not known")
    environment = CONFIG["login_environment"] | {"LSB_SITE_HOST": host}
    return run_there(host, ["/bin/sh", "-c", " ".join(left)], environment, is_login=True)


def run_there(host, command, environment, *, is_login):
    kept = {name: os.environ[name] for name in ("HPCDIST_TEST_MARK",) if name in os.environ}
    cwd = environment.get("HOME", "/") if is_login else None
    with site() as known:
        if host in known["lost"]:
            refuse(f"connect to host {host}: No route to host")
    task = subprocess.Popen(command, cwd=cwd, env=environment | kept, start_new_session=True)
    code = task.wait()
    with site() as known:
        if host in known["lost"]:
            refuse(f"Lost connection to host {host}")
    return 128 - code if code < 0 else code


# What a test does to the site.


def lose_host(host):
    """As by a power cut; LSF knows of it later."""
    with site() as known:
        known["lost"][host] = time.time()
        for job in known["jobs"].values():
            if has_started(job) and first_host(job) == host:
                job |= {"kills": [], "limit_s": None, "lost_s": known["lost"][host]}
        while pids := [*marked(LSF_SITE=SITE, LSB_SITE_HOST=host)]:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


def return_host(host):
    """It has booted: what was on it is known to have ended."""
    with site() as known:
        del known["lost"][host]
        known["down"] = [one for one in known["down"] if one != host]
        for job in known["jobs"].values():
            if job["lost_s"] is not None and has_started(job) and first_host(job) == host:
                end_tasks(job)
                job["exit_code"] = 137
                finish(job, "EXIT", "TERM_ZOMBIE")


def change(action, key, *arguments):
    with site() as known:
        for job in find(key, known):
            {"limit": end_at_limit, "requeue": requeue}[action](job, known, *arguments)


COMMANDS = {one.__name__: one for one in (bsub, bjobs, bkill, brequeue, bstop)}
COMMANDS |= {one.__name__: one for one in (bqueues, bhosts, bparams)}
OTHERS = {one.__name__: one for one in (mom, blaunch, ssh)}
ORDERS = {one.__name__: one for one in (lose_host, return_host, change)}


def call(name, words):
    """Answer a command, with the faults that the test wants."""
    with site() as known:
        switches = known["switches"]
    if switches.get("silent"):
        print("LSF is down. Please wait ...", file=sys.stderr, flush=True)
    while switches.get("silent"):
        time.sleep(0.1)
        with site() as known:
            switches = known["switches"]
    with site() as known:
        known["calls"][name] = known["calls"].get(name, 0) + 1
        if said := known["switches"].get(f"refuse_{name}"):
            refuse(said)
        if known["switches"].get(f"cut_off_{name}"):
            print('{"COMMAND":"bjobs","JOBS":0,"RECORDS":[]}')
            refuse("System call failed: Network is unreachable")
        lost = known["switches"].get(f"lose_{name}", 0)
        known["switches"][f"lose_{name}"] = max(0, lost - 1)
        code = COMMANDS[name](words, known)
    if lost:
        sys.stdout = None
        time.sleep(1000)
    return code or 0


def main():
    name, *words = sys.argv[1:]
    if name in ORDERS:
        ORDERS[name](*words)
    elif name in OTHERS:
        with site() as known:
            said = known["switches"].get(f"refuse_{name}")
        if said and name != "mom":
            refuse(said)
        sys.exit(OTHERS[name](words))
    else:
        sys.exit(call(name, words))


if __name__ == "__main__":
    main()
