"""One job as bjobs tells of it, and what its state means for a run."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

import msgspec

from hpcdist.runs.verdict import State
from hpcdist.schedulers.base import Condition
from hpcdist.schedulers.lsf.reasons import plain_end, plain_reason

STATES: dict[str, State] = {
    "PEND": "pending",
    "PSUSP": "pending",
    "WAIT": "pending",
    "PROV": "pending",
    "RUN": "running",
    "USUSP": "running",
    "SSUSP": "running",
    "UNKWN": "running",
    "ZOMBI": "running",
    "DONE": "done",
    "EXIT": "failed",
}
"""Job states of the page "About job states" of IBM Spectrum LSF 10.1 -> ours."""

_NOTES = {
    "PSUSP": "it is held; release it with: bresume {0}",
    "WAIT": "it waits on its host for the jobs that LSF started it together with",
    "PROV": "its hosts are being started",
    "USUSP": "it was suspended with bstop; continue it with: bresume {0}",
    "SSUSP": "LSF suspended it: its hosts are busy, or a job of a higher priority needs them",
    "UNKWN": "LSF cannot reach its first host",
    "ZOMBI": "it was to be ended, and LSF cannot reach its first host",
}
_ID = re.compile(r"(\d+)(?:\[(\d+)\])?$")
_ELEMENT = re.compile(r"^(.*?)\[(\d+)\]$")
_TIME = re.compile(
    r"([A-Z][a-z]{2}) +(\d{1,2}) +(\d{1,2}):(\d{2})(?::(\d{2}))?(?: +(\d{4}))?(?!\d)"
)
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_NOTHING = {"", "-"}


class LsfJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job, or one element of an array."""

    job_id: str
    """123, or 123[4] of an array's element."""
    name: str
    """What it was called when it was submitted, without an element's index."""
    stat: str
    """LSF's word for its state."""
    exit_code: int | None = None
    exit_reason: str = ""
    """TERM_OWNER: job killed by owner; empty where LSF did not end it, or does not say."""
    pend_reason: str = ""
    """LSF's own words."""
    hosts: list[str] = []
    """Those it runs or ran on, in LSF's order, each once."""
    start_s: float | None = None
    """Unix time of the start, expected or past; None: not known."""

    @property
    def task(self) -> str:
        """Number of its run in the array: LSF counts from 1; empty where there is no array."""
        found = _ID.match(self.job_id)
        return str(int(found[2]) - 1) if found and found[2] else ""

    def condition(self) -> Condition:
        """What it means for a run."""
        state = STATES.get(self.stat, "running")
        if state == "pending":
            return Condition(state=state, reason=self._waits(), expected_start_s=self.start_s)
        if self.stat == "EXIT":
            end = plain_end(self.exit_reason, self.exit_code)
            return Condition(state=end.state, reason=end.words)
        if state == "done":
            return Condition(state=state, reason="LSF says DONE")
        return Condition(state=state, reason=self._note())

    def _waits(self) -> str:
        is_held_by_others = self.stat == "PSUSP" and "admin" in self.pend_reason.lower()
        note = None if is_held_by_others else self._note()
        return note or plain_reason(self.pend_reason)

    def _note(self) -> str | None:
        note = _NOTES.get(self.stat)
        quoted = f'"{self.job_id}"' if self.task else self.job_id  # brackets mean files to a shell
        return note and f"{note.format(quoted)} ({self.stat})"


def make_job(row: Mapping[str, str], *, now_s: float | None = None) -> LsfJob | None:
    """A job from the fields of bjobs by their names in lower case; None where there is no job.

    An element's index stands in the id, in the name, or in both; a time has mostly no year, so that
    the one nearest to `now_s` is meant.
    """
    values = {key: "" if value.strip() in _NOTHING else value.strip() for key, value in row.items()}
    found = _ID.match(values.get("jobid", ""))
    if found is None or not values.get("stat"):
        return None
    element = _ELEMENT.match(values.get("job_name", ""))
    index = found[2] or (element[2] if element else None)
    is_pending = STATES.get(values["stat"]) == "pending"
    start = values.get("estimated_start_time" if is_pending else "start_time", "")
    return LsfJob(
        job_id=f"{found[1]}[{index}]" if index not in {None, "0"} else found[1],
        name=element[1] if element else values.get("job_name", ""),
        stat=values["stat"],
        exit_code=_number(values.get("exit_code", "")),
        exit_reason=values.get("exit_reason", ""),
        pend_reason=values.get("pend_reason", ""),
        hosts=parse_hosts(values.get("exec_host", "")),
        start_s=parse_time(start, now_s=time.time() if now_s is None else now_s),
    )


def parse_hosts(text: str) -> list[str]:
    """Hosts in the words of bjobs: hostA, 4*hostA:4*hostB, or hostA:hostA:hostB."""
    names = (part.partition("*")[2] or part for part in re.split(r"[:\s]+", text) if part)
    return list(dict.fromkeys(name for name in names if name not in _NOTHING))


def parse_time(text: str, *, now_s: float) -> float | None:
    """Nov 21 17:30, with or without seconds and year, and whatever bjobs adds (E, L or X)."""
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


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-?\d+", text) else None
