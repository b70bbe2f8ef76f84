"""Jobs by LSF's commands: bjobs, one call for any number of jobs, bkill, and their words in plain
ones: why a job waits, how it ended, and why bsub refuses one.

Exit codes of the commands differ between sites, so it is the text that counts. LSF's reasons are
those of lsb_pendreason() in the LSF API reference, and of the page "Termination reasons displayed
by bacct, bhist, and bjobs" of IBM Spectrum LSF 10.1. Engines and versions differ in small words, so
patterns are looked for; other reasons are given in LSF's own words.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from hpcdist.base.errors import SchedulerError
from hpcdist.machine.command import CommandFailedError, call_command, failure_of
from hpcdist.runs.verdict import State
from hpcdist.schedulers.batch import Job
from hpcdist.schedulers.request import parse_seconds, parse_size

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
    *("exit_reason", "estimated_start_time", "max_mem", "pend_time", "job_name", "pend_reason"),
)
"""Fields of the page "bjobs" of IBM Spectrum LSF 10.1, which have no width where none is asked for;
the reason comes last: it may hold the delimiter, and of names only those of other jobs may."""
_known: dict[str, list[str]] = {}
"""Path of bjobs -> the fields that it has not refused."""
_STATES: dict[str, tuple[State, str | None]] = {
    "PEND": ("pending", None),
    "PSUSP": ("pending", "it is held; release it with: bresume {0}"),
    "WAIT": ("pending", "it waits on its host for the jobs that LSF started it together with"),
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
    (r"suspended by LSF admin", "an administrator holds it"),
    (r"no suitable hosts?", "no host fits: ask for less, or name another queue with --partition"),
    (r"spanning requirement", "it waits for hosts with as many free slots each as it asks for"),
    (r"time windows|windows? (?:is |are )?closed", "the queue starts jobs only at certain times"),
    (r"queue is inactiv", "the queue starts no jobs at present: an administrator has closed it"),
    (r"limit defined", "it waits until running jobs give something back: a limit is reached"),
    (r"user'?s? group", "your group uses all job slots that it may have"),
    (r"user has (?:reached|not)|per-user|user's .*slot limit", "you use all slots that you may"),
    (r"queue has (?:reached|not)|queue's per-\w+", "all job slots of the queue are in use"),
    (r"ngpus|\bgpus?\b", "it waits for GPUs to become free"),
    (r"\(mem\)", "it waits for hosts with enough free memory"),
    (r"requirements? .*not satisfied", "no host has at present what it asks for (-R)"),
    (r"job slot|slot\(s\)|slots? are reserved", "it waits for hosts to become free"),
    (r"unable to (?:access|set|open)", "LSF could not start it; does its folder exist there?"),
    (r"requeue|re-?scheduling|rescheduled", "it was requeued, and waits to be started again"),
    (r"new job is waiting", "the scheduler has not looked at it yet"),
    (r"load (?:threshold|information)|higher .*priority jobs|just started", "its hosts are busy"),
    (r"closed by|locked by|unreach|unavail|host is down", "hosts that it needs are down or closed"),
)
"""Pattern of LSF's words -> ours; the first is taken where there are several."""
_OF_SINGLE_HOSTS = re.compile(
    r"not specified in job submission|not usable to the queue|not the same type|"
    r"individual host-based reasons|candidate host pending reasons",
    re.IGNORECASE,
)
_ENDED: dict[str, tuple[State, str]] = {
    "TERM_OWNER": ("cancelled", "it was ended with bkill"),
    "TERM_FORCE_OWNER": ("cancelled", "it was ended with bkill"),
    "TERM_ADMIN": ("cancelled", "an administrator ended it"),
    "TERM_FORCE_ADMIN": ("cancelled", "an administrator ended it"),
    "TERM_ORPHAN_SYSTEM": ("cancelled", "the run it waited for did not end as --after requires"),
    "TERM_PREEMPT": ("preempted", "a job of a higher priority took its hosts"),
    "TERM_MEMLIMIT": ("failed", "the memory limit was reached; --set resources.mem_gb=GB"),
    "TERM_RUNLIMIT": ("failed", "the run limit was reached"),
    "TERM_ZOMBIE": ("failed", "LSF gave it up: its host could not be reached"),
}
_UNIT = (
    "lsf.mem_unit of the profile is the site's unit of rusage[mem=...] (KB, MB or GB, where it "
    "takes no suffix), lsf.mem_per what it is counted per; constraint and directives are in -R, too"
)
_REFUSED = (
    (r"illegal option -- g|-gpu\b|\bGPU\b", "lsf.gpu asks for GPUs; gpu_request: none for none"),
    (
        r"illegal option -- (\w+)|-(\w+): (?:illegal|unknown|bad) option",
        "take -{0} out of lsf.options of the cluster profile: this LSF does not know it",
    ),
    (r"no such queue|queue has been closed", "name a queue with --partition"),
    (r"run ?limit.*exceed|exceed.*(?:run|hard) ?limit", "ask for less with --time"),
    (r"run ?(?:time ?)?limit|wall ?(?:time|clock)|-W\b", "say how long it may run with --time"),
    (r"project", "account of the cluster profile is the project: --account"),
    (r"too many |(?:TASK|PROC|SLOT)LIMIT", "ask for less: --nodes, --gpus, or cpus_per_gpu"),
    (r"resource requirement|resreq|rusage|\bmem(?:ory)?\b", _UNIT),
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


def make_job(row: Mapping[str, str], *, now_s: float | None = None) -> Job:
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
    is_pending = state == "pending"
    has_started = bool(values["start_time"]) and not is_pending
    expected_s = parse_time(values["estimated_start_time"], now_s=now_s)
    return Job(
        id=job_id,
        name=element[1] if element else values["job_name"],
        task=str(int(index) - 1) if index else "",
        state=state,
        word=word,
        reason=reason,
        expected_start_s=expected_s if is_pending else None,
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
    said = [part for part in parts if not _OF_SINGLE_HOSTS.search(part)] or parts
    for pattern, words in _PENDING:
        for part in said:
            if re.search(pattern, part, re.IGNORECASE):
                return f"{words} ({part})"
    return f"LSF says: {'; '.join(said)}" if said else "LSF does not say why"


def plain_end(exit_reason: str, exit_code: int | None) -> tuple[State, str]:
    """Return the state of the run whose job LSF shows as EXIT, and why it ended."""
    keyword = re.search(r"\bTERM_[A-Z_]+", exit_reason)
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
        if found := re.search(pattern, said, re.IGNORECASE):
            return f"{words.format(*filter(None, found.groups()))}; {asked}"
    return asked
