"""A PBS of two hosts for tests: behind its commands, jobs really run on this machine. It
does what was seen of OpenPBS 23.06 with the options that hpcdist uses.

Its state is in the folder PBS_SITE; queue_store.py has what it shares with that of LSF.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from queue_store import Store, signal_all

HOSTS = ("127.0.1.1", "127.0.1.2")
CPUS = 4
KILL_DELAY_S = 5.0
PATIENCE_S = 30.0
"""PBS looks at limits every 10 s, and less often after a while."""
POLL_S = 0.05
SITE = Path(os.environ["PBS_SITE"])
jobs = Store(SITE, {})
SERVER = "pbs"


def number(job_id):
    return job_id.partition(".")[0].partition("@")[0]


def ctime():
    return time.ctime()


# Submitting.


def qsub(words):
    if words == ["--version"]:
        print("pbs_version = stand-in")
        return 0
    if words[0] == "-again":  # as by a qsub that asks twice
        with jobs() as known:
            words = known[words[1]]["words"]
    options, command = words[1 : words.index("--")], words[words.index("--") + 1 :]  # without -f
    values = {}
    for key, value in zip(options[::2], options[1::2], strict=True):
        values.setdefault(key, []).append(value)
    select = re.match(r"select=(\d+):ncpus=(\d+)", values["-l"][0])
    limit = next((v[9:] for v in values["-l"] if v.startswith("walltime=")), None)
    depend = next((v[7:] for v in values.get("-W", []) if v.startswith("depend=")), "")
    with jobs() as known:
        new = str(len(known) + 1)
        job = {
            "Job_Name": values["-N"][0],
            "job_state": "Q",
            "ctime": ctime(),
            "etime": ctime(),
            "Rerunable": values["-r"][0],
            "words": words,
            "command": command,
            "output": values["-o"][0],
            "nodes": int(select[1]),
            "cpus": int(select[2]),
            "limit_s": _seconds(limit) if limit else None,
            "depend": {k: ids for k, *ids in (term.split(":") for term in depend.split(",")) if k},
        }
        for kind, ids in job["depend"].items():
            for other in map(number, ids):
                if other not in known:
                    sys.exit("qsub: Unknown Job Id")
                before = known[other]["depend"].setdefault(kind.replace("after", "before"), [])
                before.append(new)
        known[new] = job
    own = {name: value for name, value in os.environ.items() if name != "PBS_JOBCOOKIE"}
    with (SITE / f"{new}.mom").open("wb") as log:
        subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, "mom", new],
            env=own,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    print(f"{new}.{SERVER}")
    return 0


def _seconds(text):
    hours, minutes, seconds = map(int, text.split(":"))
    return hours * 3600 + minutes * 60 + seconds


def _hours(seconds):
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def qalter(words):
    _, value, job_id = words
    with jobs() as known:
        terms = (term.split(":") for term in value.removeprefix("depend=").split(","))
        known[number(job_id)]["depend"] = {kind: ids for kind, *ids in terms}
        for kind, ids in known[number(job_id)]["depend"].items():
            for other in map(number, ids):
                before = known[other]["depend"].setdefault(kind.replace("after", "before"), [])
                before.append(number(job_id))
    return 0


def qdel(words):
    for job_id in map(number, words):
        with jobs() as known:
            if known.get(job_id, {"job_state": "F"})["job_state"] in "FX":
                print(f"qdel: Unknown Job Id {job_id}", file=sys.stderr)
                continue
            known[job_id]["deleted_s"] = time.time()
    return 0


# Looking.


def qselect(words):
    with jobs() as known:
        print("\n".join(f"{one}.{SERVER}" for one in known))
    return 0


def qstat(words):
    if words in (["-Bf"], ["-B"]):
        print(f"Server: {SERVER}\n    job_history_enable = True")
        print("    default_queue = workq\n    pbs_version = stand-in")
    elif words == ["-Qf"]:
        print("Queue: workq\n    enabled = True\n    started = True")
        print("Queue: closed\n    enabled = False\n    started = True")
    else:
        return _show([number(one) for one in words if not one.startswith("-")])
    return 0


def _show(asked):
    shown = ("Job_Name", "job_state", "ctime", "etime", "stime", "mtime", "comment", "substate")
    code = 0
    with jobs() as known:
        for one in asked:
            if one not in known:
                print(f"qstat: Unknown Job Id {one}", file=sys.stderr)
                code = 153
        for job_id, job in known.items():
            if job_id not in asked:
                continue
            print(f"Job Id: {job_id}.{SERVER}")
            if job["limit_s"]:
                print(f"    Resource_List.walltime = {_hours(job['limit_s'])}")
            for key in (
                *shown,
                "exec_host",
                "Hold_Types",
                "Exit_status",
                "resources_used.walltime",
            ):
                if key in job:
                    text = f"    {key} = {job[key]}"
                    print(*(text[at : at + 70] for at in range(0, len(text), 70)), sep="\n\t")
            if job["depend"]:
                terms = (
                    ":".join([k, *(f"{i}.{SERVER}@{SERVER}" for i in ids)])
                    for k, ids in job["depend"].items()
                )
                print(f"    depend = {','.join(terms)}")
            print()
    return code


def pbsnodes(words):
    for host in HOSTS:
        print(f"{host}\n     state = free\n     resources_available.ncpus = {CPUS}")
        print("     resources_available.ngpus = 1\n     resources_available.mem = 8000mb")
        print(f"     resources_available.host = {host}\n")
    return 0


# A job.


def mom(words):
    (job_id,) = words
    while not (chosen := may_start(job_id)):
        time.sleep(POLL_S)
    if chosen != "never":
        run(job_id, chosen)
    return 0


def may_start(job_id):
    """The hosts; "never" for a job that has ended so; None for not yet."""
    with jobs() as known:
        job = known[job_id]
        if "deleted_s" in job or (fate := _dependency(job, known)) == "never":
            note_end(job, known, substate=91 if "deleted_s" in job else 92)
            return "never"
        job["job_state"], job["Hold_Types"] = ("H", "s") if fate == "wait" else ("Q", "n")
        running = [one for one in known.values() if one["job_state"] == "R"]
        used = dict.fromkeys(HOSTS, 0)
        for one in running:
            for host in one["hosts"]:
                used[host] += one["cpus"]
        free = [host for host in HOSTS if used[host] + job["cpus"] <= CPUS]
        if fate == "wait":
            return None
        if len(free) < job["nodes"]:
            job["comment"] = "Not Running: Not enough free nodes available"
            return None
        hosts = free[: job["nodes"]]
        where = "+".join(f"({host}:ncpus={job['cpus']})" for host in hosts)
        job |= {"job_state": "R", "hosts": hosts, "stime": ctime(), "substate": 41}
        job |= {"exec_host": "+".join(f"{host}/0*{job['cpus']}" for host in hosts)}
        job["comment"] = f"Job run at {ctime()} on {where}"
        known[job_id] = job
        return hosts


def _dependency(job, known):
    """ "never" where it cannot come true any more, "wait", or nothing."""
    if job.get("is_dropped"):
        return "never"
    for kind, ids in job["depend"].items():
        for other in (known[number(one)] for one in ids if kind.startswith("after")):
            if other["job_state"] != "F":
                return "wait"
            if kind == "afterok" and other.get("Exit_status") != 0:
                return "never"
    return ""


def run(job_id, hosts):
    with jobs() as known:
        job = known[job_id]
    aux = SITE / "aux"
    aux.mkdir(exist_ok=True)
    (aux / job_id).write_text("".join(f"{host}\n" for host in hosts))
    cookie = f"{SITE}/{job_id}"
    environment = {
        **{name: os.environ[name] for name in ("HOME", "PBS_SITE")},
        "PATH": "/bin:/usr/bin",
        "PBS_JOBID": f"{job_id}.{SERVER}",
        "PBS_JOBCOOKIE": cookie,
        "PBS_NODEFILE": str(aux / job_id),
        "NCPUS": str(job["cpus"]),
        "OMP_NUM_THREADS": str(job["cpus"]),
    }
    with Path(job["output"]).open("wb") as said:
        process = subprocess.Popen(
            job["command"],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    begin_s, told_s = time.time(), None
    while process.poll() is None:
        time.sleep(POLL_S)
        with jobs() as known:
            deleted = "deleted_s" in known[job_id]
        is_late = job["limit_s"] is not None and time.time() - begin_s > job["limit_s"] + PATIENCE_S
        if told_s is None and (deleted or is_late):
            told_s = time.time()
            signal_all(signal.SIGTERM, PBS_JOBCOOKIE=cookie)
        elif told_s is not None and time.time() - told_s > KILL_DELAY_S:
            signal_all(signal.SIGKILL, PBS_JOBCOOKIE=cookie)
    signal_all(signal.SIGKILL, PBS_JOBCOOKIE=cookie)
    code = process.returncode
    with jobs() as known:
        known[job_id]["resources_used.walltime"] = _hours(int(time.time() - begin_s))
        deleted = "deleted_s" in known[job_id]
        known[job_id]["Exit_status"] = 256 - code if code < 0 else code
        end = "terminated by root@pbs" if deleted else "failed" if code else "finished"
        known[job_id]["comment"] += f" and {end}"
        note_end(known[job_id], known, substate=91 if deleted else 93 if code else 92)


def note_end(job, known, *, substate):
    """End a job, and drop what waited for it to end well, whatever that waits for by now."""
    job |= {"job_state": "F", "substate": substate, "mtime": ctime()}
    for other in job["depend"].get("beforeok", ()) if job.get("Exit_status") != 0 else ():
        known[other]["is_dropped"] = True


def pbs_tmrsh(words):
    """Start a command on a host of the job: with the job's environment as PBS knows it."""
    host, *command = words
    if host not in Path(os.environ["PBS_NODEFILE"]).read_text().split():
        sys.exit(255)
    kept = ("PBS_", "HOME", "NCPUS", "OMP_NUM_THREADS")
    environment = {k: v for k, v in os.environ.items() if k.startswith(kept)}
    os.chdir("/")
    os.execvpe(command[0], command, environment | {"PATH": "/bin:/usr/bin"})
    return 255


COMMANDS = {
    one.__name__: one for one in (qsub, qstat, qselect, qdel, qalter, pbsnodes, pbs_tmrsh, mom)
}


def main():
    if (SITE / "silent").exists() and Path(sys.argv[1]).name in ("qstat", "qselect"):
        sys.exit("qstat: cannot connect to server pbs (errno=111)")
    name, words = Path(sys.argv[0]).name, sys.argv[1:]
    if name not in COMMANDS:
        name, *words = words
    sys.exit(COMMANDS[name](words))


if __name__ == "__main__":
    main()
