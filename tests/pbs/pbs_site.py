"""PBS's face of the stand-in in support/queue_store.py: two hosts. It does what was seen of OpenPBS
23.06 with the options that hpcdist uses. Its state is in the folder PBS_SITE."""

import os
import re
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from queue_store import ENDED, NEW_JOB, Scheduler, signal_all

HOSTS = ("127.0.1.1", "127.0.1.2")
SITE = Path(os.environ["PBS_SITE"])
KINDS = {"afterok": "done", "afterany": "ended"}
WORDS = {"done": "ok", "ended": "any"}
SUBSTATES = {"DELETED": 91, "DROPPED": 92, "": 92, "FAILED": 93}


def number(job_id):
    return job_id.partition(".")[0].partition("@")[0]


def cookie_of(job):
    return f"{SITE}/{job['id']}"


class Pbs(Scheduler):
    kill_delay_s = 5.0
    patience_s = 30.0
    """It looks at limits every 10 s, and less often after a while."""

    def start(self, job):
        nodefile = SITE / f"{job['id']}.nodes"
        nodefile.write_text("".join(f"{host}\n" for host, *_ in job["places"]))
        environment = {
            **{name: os.environ[name] for name in ("HOME", "PBS_SITE")},
            "PATH": "/bin:/usr/bin",
            "PBS_JOBID": f"{job['id']}.pbs",
            "PBS_JOBCOOKIE": cookie_of(job),
            "PBS_NODEFILE": str(nodefile),
            "NCPUS": str(job["request"]["per_host"]),
            "OMP_NUM_THREADS": str(job["request"]["per_host"]),
        }
        if job["limit_s"] is not None:
            job["limit_s"] += self.patience_s
        return job["command"], "/", Path(job["output"]), environment

    def send(self, job, number):
        """A signal, to all processes of the job."""
        signal_all(number, PBS_JOBCOOKIE=cookie_of(job))

    def end_at_limit(self, job, _known):
        now = time.time()
        job["limit_s"] = None
        kill_s = now + self.kill_delay_s
        job["kills"] = [[now, int(signal.SIGTERM)], [kill_s, int(signal.SIGKILL)]]

    def end(self, job, known):
        self.send(job, signal.SIGKILL)
        failed = "FAILED" if job["exit_code"] else ""
        self.finish(job, "DONE", job["killed_as"] or failed)
        job["exit_status"] = 256 + job["signal"] if job["signal"] else job["exit_code"]
        self.drop_followers(job, known)

    def drop_followers(self, job, known):
        """End what waited for it to end well, whatever that waits for a moment later."""
        for other in known["jobs"].values():
            waits = ["done", str(job["id"]), None] in other["condition"]
            if waits and job.get("exit_status") != 0 and other["state"] == "PEND":
                self.orphan(other, known)

    def orphan(self, job, known):
        self.finish(job, "EXIT", "DROPPED")
        self.drop_followers(job, known)


site = Pbs(SITE, HOSTS, __file__)


def read_depend(text):
    """A condition of afterok:ID:ID,afterany:ID."""
    terms = [term.split(":") for term in text.removeprefix("depend=").split(",") if term]
    return [[KINDS[kind], number(one), None] for kind, *ids in terms for one in ids]


def qsub(words):
    if words == ["--version"]:
        print("pbs_version = stand-in")
        return
    with site.store() as known:
        jobs = known["jobs"]
        at = words.index("--")
        pairs = list(zip(words[1:at:2], words[2:at:2], strict=True))  # without -f
        values = dict(pairs)
        select = re.match(r"select=(\d+):ncpus=(\d+)", next(v for k, v in pairs if k == "-l"))
        nodes, cpus = map(int, select.groups())
        limits = [v.split("=")[1].split(":") for _, v in pairs if v.startswith("walltime=")]
        depend = next((v for k, v in pairs if k == "-W" and v.startswith("depend=")), "")
        condition = read_depend(depend)
        if unknown := [one for _, one, _ in condition if one not in jobs]:
            sys.exit(f"qsub: Unknown Job Id {unknown[0]}")
        key = str(len(jobs) + 1)
        minutes = [int(h) * 60 + int(m) + int(s) / 60 for h, m, s in limits]
        request = {"slots": nodes * cpus, "per_host": cpus, "gpus": 0, "excluded": []}
        jobs[key] = NEW_JOB | {
            "id": int(key),
            "index": 0,
            "array_limit": None,
            "name": values["-N"],
            "command": words[at + 1 :],
            "output": values["-o"],
            "request": request,
            "run_limit_min": minutes[0] if minutes else None,
            "condition": condition,
            "submit_s": time.time(),
        }
    site.start_mom(key, {k: v for k, v in os.environ.items() if k != "PBS_JOBCOOKIE"})
    print(f"{key}.pbs")


def qalter(words):
    _, value, job_id = words
    with site.store() as known:
        known["jobs"][number(job_id)]["condition"] = read_depend(value)


def qdel(words):
    with site.store() as known:
        for key in map(number, words):
            job = known["jobs"].get(key)
            if job is None or job["state"] in ENDED:
                print(f"qdel: Unknown Job Id {key}", file=sys.stderr)
            elif job["state"] == "PEND":
                site.finish(job, "EXIT", "DELETED")
                site.drop_followers(job, known)
            elif not job["killed_as"]:
                job["killed_as"] = "DELETED"
                site.end_at_limit(job, known)


def qselect(_words):
    with site.store() as known:
        print("\n".join(f"{key}.pbs" for key in known["jobs"]))


def qstat(words):
    if words == ["-Bf"]:
        print("Server: pbs\n    default_queue = workq\n    pbs_version = stand-in")
        return 0
    if words == ["-Qf"]:
        print("Queue: workq\n    enabled = True\n    started = True")
        return 0
    asked = [number(one) for one in words if not one.startswith("-")]
    with site.store() as known:
        jobs = known["jobs"]
        for key in (one for one in asked if one in jobs):
            print(f"Job Id: {key}.pbs")
            for name, value in attributes(jobs[key], jobs).items():
                text = f"    {name} = {value}"
                print(*(text[at : at + 70] for at in range(0, len(text), 70)), sep="\n\t")
            print()
    unknown = [one for one in asked if one not in jobs]
    for one in unknown:
        print(f"qstat: Unknown Job Id {one}", file=sys.stderr)
    return 153 if unknown else 0


def attributes(job, jobs):
    waits = "dependency" in job["pending_reason"]
    state = {"PEND": "H" if waits else "Q", "RUN": "R"}.get(job["state"], "F")
    found = {"Job_Name": job["name"], "job_state": state}
    for name, at_s in (("ctime", "submit_s"), ("etime", "submit_s"), ("stime", "start_s")):
        if job[at_s]:
            found[name] = time.ctime(job[at_s])
    if state in "HQ":
        found |= {"Hold_Types": "s" if waits else "n"}
        found["comment"] = "Not Running: Not enough free nodes available"
    if job["start_s"]:
        hosts = [(host, slots) for host, slots, _ in job["places"]]
        found["exec_host"] = "+".join(f"{host}/0*{slots}" for host, slots in hosts)
        where = "+".join(f"({host}:ncpus={slots})" for host, slots in hosts)
        found["comment"] = f"Job run at {time.ctime(job['start_s'])} on {where}"
        found["substate"] = 41
    if job["run_limit_min"]:
        found["Resource_List.walltime"] = hours(60 * job["run_limit_min"])
    if state == "F":
        found |= {"mtime": time.ctime(job["end_s"]), "substate": SUBSTATES[job["term_reason"]]}
    if "exit_status" in job:
        ends = {"DELETED": "terminated by root@pbs", "FAILED": "failed", "": "finished"}
        found["comment"] += f" and {ends[job['term_reason']]}"
        found["Exit_status"] = job["exit_status"]
        found["resources_used.walltime"] = hours(job["end_s"] - job["start_s"])
    terms = [f"after{WORDS[kind]}:{one}.pbs@pbs" for kind, one, _ in job["condition"]]
    for key, other in jobs.items():
        waits = [kind for kind, one, _ in other["condition"] if one == str(job["id"])]
        terms += [f"before{WORDS[kind]}:{key}.pbs@pbs" for kind in waits]
    if terms:
        found["depend"] = ",".join(terms)
    return found


def hours(seconds):
    seconds = int(seconds)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def pbsnodes(_words):
    for host in HOSTS:
        print(f"{host}\n     state = free\n     resources_available.ncpus = {site.slots}")
        print("     resources_available.ngpus = 1\n     resources_available.mem = 8000mb")
        print(f"     resources_available.host = {host}\n")


def pbs_tmrsh(words):
    """Start a command on a host of the job: with the job's environment as PBS knows it."""
    host, *command = words
    if host not in Path(os.environ["PBS_NODEFILE"]).read_text().split():
        return 255
    kept = ("PBS_", "HOME", "NCPUS", "OMP_NUM_THREADS")
    environment = {k: v for k, v in os.environ.items() if k.startswith(kept)}
    os.chdir("/")
    return os.execvpe(command[0], command, environment | {"PATH": "/bin:/usr/bin"})


COMMANDS = (qsub, qstat, qselect, qdel, qalter, pbsnodes, pbs_tmrsh, site.mom)


def main():
    name, *words = sys.argv[1:]
    (command,) = (one for one in COMMANDS if one.__name__ == name)
    sys.exit(command(words) or 0)


if __name__ == "__main__":
    main()
