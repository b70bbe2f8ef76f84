"""Jobs by LSF's commands: bjobs, one call for any number of jobs, bkill, and their words in plain
ones: why a job waits, how it ended, and why bsub refuses one; and the site's queues and hosts.

Exit codes of the commands differ between sites, so it is the text that counts. LSF's reasons are
those of lsb_pendreason() in the LSF API reference, and of the page "Termination reasons displayed
by bacct, bhist, and bjobs" of IBM Spectrum LSF 10.1. Engines and versions differ in small words, so
patterns are looked for; other reasons are given in LSF's own words.
"""

from __future__ import annotations

import calendar
import math
import re
import shutil
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from hpcdist.base.errors import SchedulerError
from hpcdist.cluster.site import Partition, Site, ask
from hpcdist.machine.command import CommandFailedError, call_command, failure_of
from hpcdist.runs.verdict import State
from hpcdist.schedulers.batch import Job
from hpcdist.schedulers.request import parse_seconds, parse_size, try_to_ask

TIMEOUT_S = 30.0
_JOB_ID = re.compile(r"[1-9]\d*(?:\[[1-9]\d*\])?")
_KILLED = re.compile(
    r"is being (?:terminated|signal|removed)|(?:has been|will be) (?:terminated|removed|killed)|"
    r"already finished|no matching job|not found|operation is in progress",
    re.IGNORECASE,
)
_NO_JOBS = re.compile(
    r"\bno (?:unfinished |matching |pending )?jobs? found|^job <\d+(?:\[\d+\])?>:? .*\bnot found",
    re.IGNORECASE,
)
_FIELDS = (
    *("jobid", "stat", "exec_host", "start_time", "finish_time", "run_time", "exit_code"),
    *("exit_reason", "max_mem", "pend_time", "job_name", "pend_reason"),
)
"""Fields of the page "bjobs" of IBM Spectrum LSF 10.1, which have no width where none is asked for;
the reason comes last: it may hold the delimiter, and of names only those of other jobs may."""
_known: dict[str, list[str]] = {}
"""Path of bjobs -> the fields that it has not refused."""
_STATES: dict[str, tuple[State, str | None]] = {
    "PEND": ("pending", None),
    "PSUSP": ("pending", "it is held; release it with: bresume {0}"),
    "PROV": ("pending", "its hosts are being started"),
    "RUN": ("running", None),
    "USUSP": ("running", "it was suspended with bstop; continue it with: bresume {0}"),
    "SSUSP": ("running", "LSF suspended it: its hosts are busy, or a more urgent job needs them"),
    "UNKWN": ("running", "LSF cannot reach its first host"),
    "ZOMBI": ("running", "it was to be ended, and LSF cannot reach its first host"),
    "DONE": ("done", "LSF says DONE"),
    "EXIT": ("failed", None),
}
"""Job states of the page "About job states" of IBM Spectrum LSF 10.1 -> ours, and why."""
_PENDING = (
    (
        r"invalid or never satisfied",
        "the job that it waits for did not end as --after requires: it will never start",
    ),
    (r"dependency condition not satisfied", "it waits for the end of another job"),
    (r"array has reached its", "as many runs of the sweep as --max-parallel allows are active"),
    (r"suspended by (?:the )?user", "it is held; release it with: bresume JOBID"),
    (r"no suitable hosts?", "no host fits: ask for less, or name another queue with --partition"),
    (r"limit defined", "it waits until running jobs give something back: a limit is reached"),
    (r"user has (?:reached|not)|per-user|user's .*slot limit", "you use all slots that you may"),
    (r"queue has (?:reached|not)|queue's per-\w+", "all job slots of the queue are in use"),
    (r"ngpus|\bgpus?\b", "it waits for GPUs to become free"),
    (r"\(mem\)", "it waits for hosts with enough free memory"),
    (r"job slot|slot\(s\)|slots? are reserved", "it waits for hosts to become free"),
    (r"requeue|re-?scheduling|rescheduled", "it was requeued, and waits to be started again"),
    (r"new job is waiting", "the scheduler has not looked at it yet"),
)
"""Pattern of LSF's words -> ours; the first is taken where there are several."""
_ENDED: dict[str, tuple[State, str]] = {
    "TERM_OWNER": ("cancelled", "it was ended with bkill"),
    "TERM_ADMIN": ("cancelled", "an administrator ended it"),
    "TERM_ORPHAN_SYSTEM": ("cancelled", "the run it waited for did not end as --after requires"),
    "TERM_PREEMPT": ("preempted", "a job of a higher priority took its hosts"),
    "TERM_MEMLIMIT": ("failed", "the memory limit was reached; --set resources.mem_gb=GB"),
    "TERM_RUNLIMIT": ("failed", "the run limit was reached"),
    "TERM_ZOMBIE": ("failed", "LSF gave it up: its host could not be reached"),
}
_REFUSED = (
    (r"illegal option -- g|-gpu\b|\bGPU\b", "lsf.gpu asks for GPUs; gpu_request: none for none"),
    (r"no such queue|queue has been closed", "name a queue with --partition"),
    (r"run ?limit.*exceed|exceed.*(?:run|hard) ?limit", "ask for less with --time"),
    (r"run ?(?:time ?)?limit|wall ?(?:time|clock)|-W\b", "say how long it may run with --time"),
    (r"too many |(?:TASK|PROC|SLOT)LIMIT", "ask for less: --nodes, --gpus, or cpus_per_gpu"),
    (r"resource req|resreq|rusage|\bmem", "it is -R: mem_gb, constraint, directives, lsf.mem_per"),
)
"""Pattern of a refusal of bsub -> the key, or option, to change."""


def _lines(*texts: str) -> list[str]:
    """Return what LSF says, without empty lines."""
    return [line.strip() for text in texts for line in text.splitlines() if line.strip()]


def failure(done: subprocess.CompletedProcess[str], said: Sequence[str]) -> CommandFailedError:
    """Return the error for a command that said this; it may have had thousands of ids."""
    text = "\n".join(said[:5])
    return failure_of(subprocess.CompletedProcess(done.args[:5], done.returncode, text, ""))


def bkill(ids: Collection[str]) -> None:
    """Have LSF end jobs; those that have ended are none of its business. Raises SchedulerError."""
    wrong = [one for one in ids if not _JOB_ID.fullmatch(one)]
    if wrong:  # bkill takes 0 for all jobs of the user
        raise SchedulerError(f"{wrong[0]!r} is no id of an LSF job", hint="see `hpcdist status`")
    if ids:
        done = call_command(["bkill", *sorted(set(ids))], timeout_s=TIMEOUT_S)
        said = _lines(done.stdout, done.stderr)
        problems = [line for line in said if not _KILLED.search(line)]
        if done.returncode != 0 and (problems or not said):
            raise failure(done, problems)


def ask_rows(ids: Collection[str] = ()) -> list[dict[str, str]]:
    """Return the fields of these jobs, of arrays those of all elements, or without ids those of all
    jobs of this user; those that ended lately are among them, those that LSF does not know are not.

    An answer counts only where bjobs did not fail: an empty list may come with an error, and does
    not mean that there are no jobs. A field that this bjobs does not know is left out. Raises
    SchedulerError.
    """
    numbers = sorted({one.partition("[")[0] for one in ids if _JOB_ID.fullmatch(one)}, key=int)
    if ids and not numbers:
        return []
    fields = _known.setdefault(str(shutil.which("bjobs")), [*_FIELDS])
    while True:
        done = call_command(
            ["bjobs", "-a", "-o", f"{' '.join(fields)} delimiter='|'", *numbers],
            timeout_s=TIMEOUT_S,
        )
        rows = read_table(done.stdout, fields)
        said = _lines(done.stderr, "" if done.stdout.startswith("JOBID|") else done.stdout)
        problems = [line for line in said if not _NO_JOBS.search(line)]
        if rows and (done.returncode == 0 or not problems):
            return rows
        if not problems and (said or done.returncode == 0):
            return []
        # <RUN_TIME> in the format string is not a valid field name
        unknown = re.findall(r"<(\w+)>.*\bfield", "\n".join(problems).lower())
        left = [one for one in fields if one not in unknown or one in ("jobid", "stat", "job_name")]
        if left == fields:
            raise failure(done, problems)
        fields[:] = left


def ask_jobs(ids: Collection[str] = ()) -> list[Job]:
    """Return the same as jobs."""
    return [make_job(row) for row in ask_rows(ids)]


# Reading.


def read_table(text: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """Return the records of a table in these columns, with nothing for `-`; none where it is
    another, as that for people."""
    lines = [line.split("|", len(columns) - 1) for line in text.splitlines()]
    rows = [line for line in lines if len(line) == len(columns)]
    if not rows or rows[0][0].strip() != "JOBID":
        return []
    words = [["" if word.strip() == "-" else word.strip() for word in row] for row in rows[1:]]
    return [dict(zip(columns, row, strict=True)) for row in words]


def make_job(row: Mapping[str, str]) -> Job:
    """Return a job from the fields of bjobs; an element's index is in its id, its name, or both."""
    values, word = defaultdict(str, row), row["stat"]
    array_id, _, index = values["jobid"].rstrip("]").partition("[")
    element = re.fullmatch(r"(.*?)\[(\d+)\]", values["job_name"])
    index = (index or (element[2] if element else "")).lstrip("0")
    job_id = f"{array_id}[{index}]" if index else array_id
    nodes = [part.partition("*")[2] or part for part in re.split(r"[:\s]+", values["exec_host"])]
    code = int(values["exit_code"]) if re.fullmatch(r"-?\d+", values["exit_code"]) else None
    state, note = _STATES.get(word, ("running", None))
    # Brackets mean files to a shell.
    reason = note and note.format(f'"{job_id}"' if index else job_id)
    if word == "EXIT":
        state, reason = plain_end(values["exit_reason"], code)
    elif word == "PEND" or (word == "PSUSP" and "admin" in values["pend_reason"].lower()):
        # Where a job has just got its hosts, an engine may name those in the place of a reason.
        reason = None if any(nodes) else plain_reason(values["pend_reason"])
    elif reason and state != "done":
        reason += f" ({word})"
    has_started = bool(values["start_time"]) and state != "pending"
    return Job(
        id=job_id,
        name=element[1] if element else values["job_name"],
        task=str(int(index) - 1) if index else "",
        state=state,
        word=word,
        reason=reason,
        is_suspended=word in {"USUSP", "SSUSP"},
        exit_code=0 if word == "DONE" else code,
        nodes=list(dict.fromkeys(filter(None, nodes))),
        queue_wait_s=parse_seconds(values["pend_time"]) if has_started else None,
        elapsed_s=parse_seconds(values["run_time"]) if has_started else None,
        max_rss_bytes=parse_size(values["max_mem"]),
    )


def parse_time(text: str, *, now_s: float | None = None) -> float | None:
    """Return the Unix time of `Nov 21 17:30`, with whatever bjobs adds (seconds, E, L or X); it has
    no year, so that the one nearest to `now_s` is meant."""
    now_s = time.time() if now_s is None else now_s
    times: list[float] = []
    if found := re.search(r"[A-Z][a-z]{2} +\d+ +\d+:\d\d", text):
        this_year = time.localtime(now_s).tm_year
        for year in range(this_year - 1, this_year + 2):
            with suppress(ValueError):  # no month, or the 29th of February
                times.append(time.mktime(time.strptime(f"{year} {found[0]}", "%Y %b %d %H:%M")))
    return min(times, key=lambda time_s: abs(time_s - now_s), default=None)


# In plain words.


def plain_reason(text: str) -> str:
    """Return a sentence for the reasons that bjobs gives, with LSF's own words for it."""
    parts = [" ".join(part.split()).rstrip(".") for part in re.split(r"[;\n]", text)]
    parts = [part for part in parts if part.strip("- ")]
    for pattern, words in _PENDING:
        for part in parts:
            if re.search(pattern, part, re.IGNORECASE):
                return f"{words} ({part})"
    return f"LSF says: {'; '.join(parts)}" if parts else "LSF does not say why"


def plain_end(exit_reason: str, exit_code: int | None) -> tuple[State, str]:
    """Return the state of the run whose job LSF shows as EXIT, and why it ended."""
    keyword = re.search(r"\bTERM_[A-Z_]+", exit_reason.replace("FORCE_", ""))
    code = "" if exit_code is None else f", exit code {exit_code}"
    if keyword and keyword[0] in _ENDED:
        state, words = _ENDED[keyword[0]]
        return state, f"{words} ({keyword[0]}{code})"
    said = exit_reason.strip(" ;-")
    return "failed", f"LSF says EXIT{code}" + (f": {said}" if said else "")


def refused_hint(said: str, script: str) -> str:
    """Return what to change where bsub refuses a script in these words."""
    asked = "nothing was submitted; see it with hpcdist explain JOB, the cluster with bqueues"
    demands_memory = re.search(r"rusage|\bmem(?:ory)?\b", said, re.IGNORECASE)
    if demands_memory and "mem=" not in script:  # as a site's esub does
        return f"ask for memory with --set resources.mem_gb=GB, or mem_gb of the profile; {asked}"
    for pattern, words in _REFUSED:
        if re.search(pattern, said, re.IGNORECASE):
            return f"{words}; {asked}"
    return asked


# The site, for a first hpcdist.yaml.


def parse_queues(text: str) -> dict[str, float | None]:
    """Return the queues of `bqueues -l` that start jobs, with the longest time limit in minutes;
    None: there is none, or it is that of a host of a certain speed (20.0 min of hostA)."""
    _, *parts = re.split(r"^QUEUE:\s*(\S+)\s*$", text, flags=re.MULTILINE)
    found: dict[str, float | None] = {}
    for name, said in zip(parts[::2], parts[1::2], strict=True):
        if re.search(r"^\s*PRIO +NICE +STATUS .*\n\s*\S+ +\S+ +Open:Active\b", said, re.MULTILINE):
            # Where a queue has no default limits, the maximum ones have no title.
            limits = said.partition("MAXIMUM LIMITS:")[2] or said
            limit = re.search(r"^ *RUNLIMIT.*\n *(\d+(?:\.\d+)?) min *$", limits, re.MULTILINE)
            found[name] = float(limit[1]) if limit else None
    return found


def parse_hosts(text: str) -> dict[str, int]:
    """Return the slots of the hosts that are up, from `bhosts -w` (HOST_NAME STATUS JL/U MAX ...);
    0: no limit. A host without slots, as a master may be, runs no jobs."""
    rows = re.findall(r"^(\S+) +(?:ok|closed)\S* +\S+ +([1-9]\d*|-) ", text, re.MULTILINE)
    return {name: 0 if most == "-" else int(most) for name, most in rows}


def parse_room(text: str) -> list[float]:
    """Return the free slots of each host that takes jobs, from the same."""
    rows = re.findall(r"^\S+ +ok\S* +\S+ +([1-9]\d*|-) +(\d+) ", text, re.MULTILINE)
    return [math.inf if most == "-" else int(most) - int(used) for most, used in rows]


def parse_reservations(text: str) -> list[float]:
    """Return the Unix times at which the site's own reservations begin (type sys of `brsvs -w`),
    whose window is month/day/hour/minute-month/day/hour/minute."""
    found = re.findall(r"^\S+ +sys\w* .* (\d+)/(\d+)/(\d+)/(\d+)-\S+ *$", text, re.MULTILINE)
    days = [(calendar.month_abbr[int(month) % 13], *rest) for month, *rest in found]
    times = [parse_time(f"{month} {day} {hour}:{minute:0>2}") for month, day, hour, minute in days]
    return [one for one in times if one is not None]


def parse_bhosts_gpu(text: str) -> Counter[str]:
    """Return the number of GPUs by host, whose name stands in its first line only."""
    found, host = Counter[str](), ""
    for name, _ in re.findall(r"^(\S*) +(\d+) ", text, re.MULTILINE):
        host = name or host
        found[host] += 1
    return found


def detect_lsf() -> Site:
    """Ask LSF what it offers; raises SchedulerError where it does not answer."""
    queues = parse_queues(ask("bqueues", "-l"))
    default = re.search(r"^\s*Default Queues:\s*(\S+)", ask("bparams"), re.MULTILINE)
    hosts = parse_hosts(ask("bhosts", "-w"))
    gpus = parse_bhosts_gpu(try_to_ask("bhosts", "-gpu", "-w"))
    theirs = [name for name in hosts if gpus[name]] or [*hosts]
    return Site(
        scheduler="lsf",
        partitions=tuple(
            Partition(
                name=name,
                is_default=default is not None and name == default[1],
                num_nodes=len(theirs),
                cpus=min((hosts[name] for name in theirs), default=0),
                gpus=min((gpus[name] for name in theirs), default=0),
                time_limit_min=limit_min,
            )
            for name, limit_min in queues.items()
        ),
        partitions_share_nodes=True,  # mostly, and LSF's lists do not say which serve which queue
    )
