"""Jobs as bjobs tells of them: one call for any number, read into typed values, and what their
states mean for runs.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from hpcdist.machine.command import CommandFailedError, CommandTimeoutError
from hpcdist.runs.spec import Accounting
from hpcdist.runs.verdict import State
from hpcdist.schedulers.base import Condition
from hpcdist.schedulers.jobs import NoJobNamedError, find_by_name
from hpcdist.schedulers.lsf.commands import (
    JOB_ID,
    LONGEST_ARGUMENTS,
    array_id,
    bsub,
    call_lsf,
    failure,
    lsf_lines,
)
from hpcdist.schedulers.lsf.reasons import plain_end, plain_reason, refused_hint

_STATES: dict[str, tuple[State, str | None]] = {
    "PEND": ("pending", None),
    "PSUSP": ("pending", "it is held; release it with: bresume {0}"),
    "WAIT": ("pending", "it waits on its host for the jobs that LSF started it together with"),
    "PROV": ("pending", "its hosts are being started"),
    "RUN": ("running", None),
    "USUSP": ("running", "it was suspended with bstop; continue it with: bresume {0}"),
    "SSUSP": (
        "running",
        "LSF suspended it: its hosts are busy, or a job of a higher priority needs them",
    ),
    "UNKWN": ("running", "LSF cannot reach its first host"),
    "ZOMBI": ("running", "it was to be ended, and LSF cannot reach its first host"),
    "DONE": ("done", "LSF says DONE"),
    "EXIT": ("failed", None),
}
"""Job states of the page "About job states" of IBM Spectrum LSF 10.1 -> ours, and why."""

_ELEMENT = re.compile(r"^(.*?)\[(\d+)\]$")
_ID = re.compile(r"(\d+)(?:\[(\d+)\])?$")
_TIME = re.compile(
    r"([A-Z][a-z]{2}) +(\d{1,2}) +(\d{1,2}):(\d{2})(?::(\d{2}))?(?: +(\d{4}))?(?!\d)"
)
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_SECONDS = re.compile(r"(?:(\d+):(\d{2}):)?(\d+(?:\.\d+)?)(?: second.*)?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGTP])(?:B|bytes)?", re.IGNORECASE)
_POWERS = "KMGTP"
_IS_NONE = re.compile(
    r"\bno (?:unfinished |matching |pending )?jobs? found|^job <\d+(?:\[\d+\])?>:? .*\bnot found",
    re.IGNORECASE,
)
"""Words for jobs that are not there."""

_FEWER = ("jobid", "stat", "exec_host", "submit_time", "start_time", "finish_time", "run_time")
_FIELDS = (
    *(*_FEWER, "exit_code", "exit_reason", "estimated_start_time", "max_mem"),
    *("pend_reason", "pend_time", "job_name"),
)
_JSON = ("-a", "-o", " ".join(_FIELDS), "-json")
"""Options of bjobs, of the page "bjobs" of IBM Spectrum LSF 10.1."""
_COLUMNS = (*_FEWER, "job_name")
"""The name comes last, for it may hold the delimiter."""
_PLAIN = ("-a", "-o", f"{' '.join(_COLUMNS)} delimiter='|'")
"""Options for engines that know less: no JSON, and fewer fields."""
_REFUSED = re.compile(
    r"option|field|format|usage|syntax|unrecogni[sz]ed|unknown|invalid|illegal", re.IGNORECASE
)
_plain_programs: set[str] = set()
"""Paths of bjobs that have answered to the latter alone."""


class ListedJob(Accounting, frozen=True, kw_only=True):
    """One job, or one element of an array, as bjobs tells of it, as long as LSF remembers it.

    Its id is 123, or 123[4] of an array's element; its nodes stand once each.
    """

    name: str
    """The name that it was submitted with, without an element's index."""
    exit_reason: str = ""
    """TERM_OWNER: job killed by owner; empty where LSF did not end it, or does not say."""
    pend_reason: str = ""
    """LSF's own words."""
    expected_start_s: float | None = None
    """Unix time, of a job that waits; None: not known."""

    @property
    def task(self) -> str:
        """Return the number of its run in the array, from 0 on; empty: there is no array."""
        found = _ID.match(self.job_id)
        return str(int(found[2]) - 1) if found and found[2] else ""

    @property
    def is_active(self) -> bool:
        """Return whether it waits or runs."""
        return self.condition().state in ("pending", "running")

    def condition(self) -> Condition:
        """Return the condition of its run."""
        if self.state == "EXIT":
            return plain_end(self.exit_reason, self.exit_code)
        state, note = _STATES.get(self.state, ("running", None))
        if state == "done":
            return Condition(state=state, reason=note)
        quoted = f'"{self.job_id}"' if self.task else self.job_id  # brackets mean files to a shell
        reason = note and f"{note.format(quoted)} ({self.state})"
        is_held_by_others = self.state == "PSUSP" and "admin" in self.pend_reason.lower()
        if state == "pending" and (note is None or is_held_by_others):
            reason = plain_reason(self.pend_reason)
        return Condition(
            state=state,
            reason=reason,
            expected_start_s=self.expected_start_s,
            is_suspended=self.state in {"USUSP", "SSUSP"},
        )

    def accounting(self) -> Accounting:
        """Return the part that is LSF's books."""
        return Accounting(**{key: getattr(self, key) for key in Accounting.__struct_fields__})


def ask_jobs(job_ids: Collection[str] = ()) -> list[ListedJob]:
    """Return these jobs, arrays with all their elements, or without ids all jobs of this user;
    those that ended lately are among them, those that LSF does not know are not.

    Raises SchedulerError.
    """
    numbers = _numbers(job_ids)
    if job_ids and not numbers:
        return []
    if sum(len(number) + 1 for number in numbers) > LONGEST_ARGUMENTS:
        numbers = []
    return _ask(numbers)


def submit_script(
    script: str,
    name: str,
    *,
    environment: Mapping[str, str],
    options: Sequence[str] = (),
    ask: Callable[[], Sequence[ListedJob]] = ask_jobs,
) -> tuple[str, list[str]]:
    """Give a script to bsub whose job is called `name`; return the job's id, and what bsub said.

    Where bsub got no answer in time, the job is looked for by its name, among those that `ask`
    returns. Raises SchedulerError.
    """
    try:
        return bsub(script, options=options, environment=environment)
    except (CommandTimeoutError, NoJobNamedError) as error:
        job = find_by_name(name, error, ask)
        if job is None:
            raise
        job_id = array_id(job.job_id)
        return job_id, [f"bsub gave up, but its job {job_id} is there: {error.message}"]
    except CommandFailedError as error:
        error.hint = refused_hint(error.said, script)
        raise


def _numbers(job_ids: Iterable[str]) -> list[str]:
    """Return the ids as bjobs is given them, arrays by their one; without what is no id."""
    numbers = {one.partition("[")[0] for one in job_ids if JOB_ID.fullmatch(one)}
    return sorted(numbers, key=int)


def _ask(numbers: Sequence[str]) -> list[ListedJob]:
    """Ask for all fields in JSON, or for less where this bjobs refuses that.

    An answer counts only where bjobs did not fail: an empty list may come with an error, and does
    not mean that there are no jobs.
    """
    program = str(shutil.which("bjobs"))
    for options in (_PLAIN,) if program in _plain_programs else (_JSON, _PLAIN):
        done = call_lsf(["bjobs", *options, *numbers])
        rows = (read_json if options is _JSON else read_table)(done.stdout)
        jobs = [job for row in rows or () if (job := make_job(row))]
        said = lsf_lines(done.stderr, done.stdout if rows is None else _errors(rows))
        problems = [line for line in said if not _IS_NONE.search(line)]
        if rows is not None and jobs and (done.returncode == 0 or not problems):
            if options is _PLAIN:
                _plain_programs.add(program)
            return jobs
        if not problems and (said or done.returncode == 0):
            return []
        if rows is not None:
            raise failure(done, problems)
        if done.returncode != 0 and not any(map(_REFUSED.search, said)):
            break
    raise failure(done)


def _errors(rows: Sequence[Mapping[str, str]]) -> str:
    """Return what is said in an answer of ids that are not known."""
    return "\n".join(row["error"] for row in rows if "error" in row)


# Reading.


def read_json(text: str) -> list[dict[str, str]] | None:
    """Return the records of an answer by fields in lower case; None where the text is no answer. An
    unknown id has a record with the field error."""
    start, end = text.find("{"), text.rfind("}")
    try:
        answer = json.loads(text[start : end + 1], strict=False)
    except ValueError:
        return None
    records = answer.get("RECORDS") if isinstance(answer, dict) else None
    if not isinstance(records, list):
        return None
    return [
        {key.lower(): "" if value is None else str(value) for key, value in record.items()}
        for record in records
        if isinstance(record, dict)
    ]


def read_table(text: str) -> list[dict[str, str]] | None:
    """Return the records of a table in columns; None where the text is none, as that for people."""
    lines = [line.split("|", len(_COLUMNS) - 1) for line in text.splitlines()]
    rows = [line for line in lines if len(line) == len(_COLUMNS)]
    if not rows or rows[0][0].strip() != "JOBID":
        return None
    return [dict(zip(_COLUMNS, row, strict=True)) for row in rows[1:]]


def make_job(row: Mapping[str, str], *, now_s: float | None = None) -> ListedJob | None:
    """Return a job from the fields of bjobs by their names in lower case; None: there is no job.

    An unknown id has a record with an error and no state. An element's index stands in the id, in
    the name, or in both; a time has mostly no year, so that the one nearest to `now_s` is meant.
    """
    stripped = {key: value.strip() for key, value in row.items()}
    values = defaultdict(str, {key: value for key, value in stripped.items() if value != "-"})
    found, state = _ID.match(values["jobid"]), values["stat"]
    if found is None or not state:
        return None
    element = _ELEMENT.match(values["job_name"])
    index = found[2] or (element[2] if element else None)
    now_s = time.time() if now_s is None else now_s
    is_pending = _STATES.get(state, ("running", None))[0] == "pending"
    expected_s = parse_time(values["estimated_start_time"], now_s=now_s)
    has_started, code = bool(values["start_time"]) and not is_pending, values["exit_code"]
    return ListedJob(
        job_id=f"{found[1]}[{index}]" if index not in {None, "0"} else found[1],
        name=element[1] if element else values["job_name"],
        state=state,
        exit_reason=values["exit_reason"],
        pend_reason=values["pend_reason"],
        expected_start_s=expected_s if is_pending else None,
        queue_wait_s=parse_seconds(values["pend_time"]) if has_started else None,
        elapsed_s=parse_seconds(values["run_time"]) if has_started else None,
        exit_code=0 if state == "DONE" else int(code) if re.fullmatch(r"-?\d+", code) else None,
        nodes=parse_hosts(values["exec_host"]),
        max_rss_bytes=parse_size(values["max_mem"]),
    )


def parse_hosts(text: str) -> list[str]:
    """Return hosts in the words of bjobs: hostA, 4*hostA:4*hostB, or hostA:hostA:hostB."""
    names = (part.partition("*")[2] or part for part in re.split(r"[:\s]+", text) if part)
    return [name for name in dict.fromkeys(names) if name != "-"]


def parse_time(text: str, *, now_s: float) -> float | None:
    """Return the Unix time of Nov 21 17:30, with or without seconds and year, and whatever bjobs
    adds (E, L or X)."""
    found = _TIME.search(text)
    if found is None or found[1] not in _MONTHS:
        return None
    month, day, hour, minute = _MONTHS.index(found[1]) + 1, *map(int, found.group(2, 3, 4))
    this_year = time.localtime(now_s).tm_year
    years = [int(found[6])] if found[6] else range(this_year - 1, this_year + 2)
    times = (
        time.mktime((year, month, day, hour, minute, int(found[5] or 0), 0, 0, -1))
        for year in years
    )
    return min(times, key=lambda time_s: abs(time_s - now_s))


def parse_seconds(text: str) -> float | None:
    """Return the seconds of `12 second(s)`, `12` or, where a site wants it so, `00:00:12`."""
    found = _SECONDS.fullmatch(text)
    if found is None:
        return None
    return int(found[1] or 0) * 3600 + int(found[2] or 0) * 60 + float(found[3])


def parse_size(text: str) -> int | None:
    """Return the bytes of `1.5 Gbytes`, `512 MB` or `3K`."""
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    return int(float(found[1]) * 1024 ** (_POWERS.index(found[2].upper()) + 1))
