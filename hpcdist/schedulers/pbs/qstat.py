"""Jobs as qstat tells of them: one call for any number, read into typed values, and what their
states mean for runs, in plain words.

The text of `qstat -f` is read: its JSON leaves out all jobs but the first that is named, and breaks
on values of variables (seen with OpenPBS 23.06).
"""

from __future__ import annotations

import getpass
import re
import subprocess
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from hpcdist.machine.command import call_command, failure_of
from hpcdist.runs.spec import Accounting
from hpcdist.runs.verdict import State
from hpcdist.schedulers.base import Condition
from hpcdist.schedulers.pbs.commands import (
    JOB_ID,
    LONGEST_ARGUMENTS,
    TIMEOUT_S,
    array_id,
    number_of_job,
)

_STATES: dict[str, State] = {
    **dict.fromkeys("QHWTM", "pending"),
    **dict.fromkeys("RESUB", "running"),
    **dict.fromkeys("FX", "failed"),
}
"""Job states of the man page pbs_job_attributes -> ours; of F and X the exit code says more."""

_PENDING: tuple[tuple[str, str], ...] = (
    (r"Can Never Run", "it asks for more than the cluster has: it will never start"),
    (r"Insufficient amount of resource: ngpus", "it waits for GPUs to become free"),
    (r"Insufficient amount of resource: mem", "it waits for nodes with enough free memory"),
    (
        r"Insufficient amount|[Nn]ot enough (?:free|total) nodes",
        "it waits for nodes to become free",
    ),
    (r"Queue not started", "the queue starts no jobs at present"),
    (r"[Uu]ser has reached", "you have reached your limit"),
    (r"(?:[Gg]roup|[Pp]roject) has reached", "your group or project has reached its limit"),
    (r"(?:Queue|Server) .*(?:limit|reached)", "the queue has reached its limit of running jobs"),
    (r"would (?:conflict|cross)|dedicated|reservation", "nodes that it needs are reserved"),
    (r"job array.*(?:limit|max_run_subjobs)", "as many runs of the sweep as may are under way"),
)
"""Pattern of a job's comment -> why it waits."""
_HOLDS = {
    "u": "it is held; release it with: qrls {0}",
    "o": "an operator holds it",
    "s": "it waits for the end of another job",
    "p": "PBS holds it: it has failed to start, and its owner or the site must release it",
}
_DROPPED = "what it was to follow did not end as --after requires, so PBS removed it without a word"
_ENDS: dict[int, str] = {
    -29: "the time limit was reached",
    -14: "a host of it was lost",
    -20: "its first host was lost",
    -1: "PBS could not start it",
    -2: "PBS could not start it",
    -3: "PBS could not start it",
}
"""Negative Exit_status, as in pbs_job.h -> words."""
_ATTRIBUTE = re.compile(r"^    ([\w.]+) = (.*)$")
HEAD = re.compile(r"^Job Id: (\S+)")
_INDEX = re.compile(r"\[(\d+)\]$")
_HOST = re.compile(r"(?:^|\+)\(?([^/:+()]+)")
_SIZE = re.compile(r"(\d+)(b|kb|mb|gb|tb)?")
_BYTES = {"b": 0, "kb": 10, "mb": 20, "gb": 30, "tb": 40}
_NOT_KNOWN = re.compile(r"Unknown Job Id|Job has finished")
_NO_HISTORY = "not configured to maintain job history"


class QstatJob(Accounting, frozen=True, kw_only=True):
    """One job, or one of an array, as qstat tells of it, as long as PBS remembers it.

    Its id is 12, or 30[2] in an array; its state is PBS's letter.
    """

    name: str
    has_started: bool = False
    comment: str = ""
    holds: str = ""
    """Letters: u of the user, o of an operator, s of PBS."""
    was_deleted: bool = False
    """It has ended with substate 91."""
    depend: str = ""
    """Jobs that wait for it, or that it waits for: beforeok:12.server@server,..."""
    expected_start_s: float | None = None

    @property
    def task(self) -> str:
        """Return the number of its run in the array; empty: there is no array."""
        found = _INDEX.search(self.job_id)
        return found[1] if found else ""

    @property
    def is_active(self) -> bool:
        """Return whether it waits or runs."""
        return _STATES.get(self.state, "running") != "failed"

    def condition(self) -> Condition:
        """Return the condition of its run."""
        state = _STATES.get(self.state, "running")
        if state == "pending":
            return Condition(
                state=state,
                reason=self._why_it_waits(),
                expected_start_s=self.expected_start_s,
            )
        if state == "running":
            is_stopped = self.state in "SU"
            reason = "PBS has suspended it: other jobs need its nodes" if is_stopped else None
            return Condition(state=state, reason=reason, is_suspended=is_stopped)
        return self._end()

    def _why_it_waits(self) -> str:
        if self.state == "W":
            return "its start time has not come"
        for letter, words in _HOLDS.items() if self.state == "H" else ():
            if letter in self.holds:
                return words.format(f"'{self.job_id}'" if self.task else self.job_id)
        return plain_reason(self.comment)

    def _end(self) -> Condition:
        code, said = self.exit_code, f"PBS says: {self.comment}" if self.comment else ""
        if not self.has_started and code is None:
            words = "it was deleted before it had started" if self.was_deleted else _DROPPED
            return Condition(state="cancelled", reason=said or words)
        if self.was_deleted:  # whatever its exit code is
            return Condition(state="cancelled", reason=f"it was ended with qdel ({said})")
        if code == 0:
            return Condition(state="done", reason=said or "PBS says exit code 0")
        words = _ENDS.get(code, f"exit code {code}") if code is not None else "without an exit code"
        return Condition(state="failed", reason=f"{words} ({said})" if said else words)

    def accounting(self) -> Accounting:
        """Return the part that is PBS's books."""
        return Accounting(**{key: getattr(self, key) for key in Accounting.__struct_fields__})


def plain_reason(comment: str) -> str:
    """Return a sentence for the comment of a job that waits, with PBS's own words."""
    for pattern, words in _PENDING:
        if re.search(pattern, comment):
            return f"{words} ({comment})"
    return f"PBS says: {comment}" if comment else "the scheduler has not looked at it yet"


# Asking.


def ask_jobs(job_ids: Collection[str] = ()) -> list[QstatJob]:
    """Return these jobs, arrays with all their jobs, or without ids all jobs of this user; those
    that ended lately are among them, those that PBS does not know are not. Raises SchedulerError.
    """
    ids = {array_id(one) for one in job_ids if JOB_ID.fullmatch(one)}
    if not job_ids:
        done = _with_history("qselect", ["-u", getpass.getuser()])
        ids = {number_of_job(line) for line in done.stdout.split()}
    asked, jobs = sorted(ids), []
    size = LONGEST_ARGUMENTS // (max(map(len, asked), default=0) + 1)
    for start in range(0, len(asked), size):
        done = _with_history("qstat", ["-tf", *asked[start : start + size]])
        jobs += parse_jobs(done.stdout)
    return jobs


def _with_history(command: str, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Ask for jobs that have ended, too, where the site keeps them."""
    done = call_command([command, "-x", *words], timeout_s=TIMEOUT_S)
    if _NO_HISTORY in done.stderr:
        done = call_command([command, *words], timeout_s=TIMEOUT_S)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode != 0 and not (lines and all(map(_NOT_KNOWN.search, lines))):
        raise failure_of(done)
    return done


# Reading.


def parse_blocks(text: str, head: re.Pattern[str]) -> dict[str, dict[str, str]]:
    """Return the attributes by name of all objects in the text of -f: lines are folded, and go on
    after a tab. What stands first counts: the value of a variable may hold lines of its own."""
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    last = ""
    for line in text.splitlines():
        if start := head.match(line):
            current = found.setdefault(start[1], {})
        elif line.startswith("\t") and last in current:
            current[last] += line.strip("\t\n")
        elif attribute := _ATTRIBUTE.match(line):
            last = attribute[1]
            current.setdefault(last, attribute[2])
    return found


def parse_jobs(text: str) -> list[QstatJob]:
    """Return the jobs of `qstat -f`, without the arrays that others of them are part of."""
    jobs = [_make_job(job_id, values) for job_id, values in parse_blocks(text, HEAD).items()]
    return [job for job in jobs if not job.job_id.endswith("[]")]


def parse_whole(text: str) -> QstatJob | None:
    """Return the first job of `qstat -f`, an array too."""
    blocks = parse_blocks(text, HEAD)
    return next((_make_job(job_id, values) for job_id, values in blocks.items()), None)


def _make_job(job_id: str, given: Mapping[str, str]) -> QstatJob:
    values = defaultdict(str, given)
    state = values["job_state"]
    has_ended = state in "FX"
    # Of one that has not ended, it is the array's, or a former start's.
    status = values["Exit_status"] if has_ended else ""
    code = int(status) if re.fullmatch(r"-?\d+", status) else None
    memory = parse_size(values["resources_used.mem"])
    nodes = list(dict.fromkeys(_HOST.findall(values["exec_host"])))
    etime, stime = parse_time(values["etime"]), parse_time(values["stime"])
    return QstatJob(
        job_id=number_of_job(job_id),
        name=values["Job_Name"],
        state=state,
        comment=values["comment"],
        holds=values["Hold_Types"],
        depend=values["depend"],
        was_deleted=values["substate"] == "91",
        expected_start_s=parse_time(values["estimated.start_time"]),
        has_started=stime is not None,
        queue_wait_s=max(0.0, stime - etime) if stime is not None and etime is not None else None,
        elapsed_s=parse_seconds(values["resources_used.walltime"]),
        exit_code=code,
        nodes=nodes,
        # It is the sum over all hosts, and nothing before PBS's first look.
        max_rss_bytes=memory if memory and len(nodes) == 1 else None,
    )


def parse_time(text: str) -> float | None:
    """Return the Unix time of Sun Nov 22 22:36:56 2026."""
    try:
        return time.mktime(time.strptime(text))
    except (ValueError, OverflowError):
        return None


def parse_seconds(text: str) -> float | None:
    """Return the seconds of 00:01:00."""
    found = re.fullmatch(r"(\d+):(\d{2}):(\d{2})", text)
    return int(found[1]) * 3600.0 + int(found[2]) * 60 + int(found[3]) if found else None


def parse_size(text: str) -> int | None:
    """Return the bytes of 4000mb; PBS counts by 1024."""
    found = _SIZE.fullmatch(text)
    return int(found[1]) << _BYTES[found[2] or "b"] if found else None
