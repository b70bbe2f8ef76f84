"""The forms in which bjobs can be asked, the one that tells most first, and how each is read.

-json and some fields came with IBM Spectrum LSF 10.1, -o with 9.1; compatible engines know less.
None of the forms cuts names or needs -noheader.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from hpcdist.schedulers.lsf.jobs import LsfJob, make_job

_NEEDED = ("jobid", "job_name", "stat", "exec_host")
_HELPFUL = ("start_time", "exit_code", "exit_reason", "pend_reason", "estimated_start_time")
"""In the order in which engines learnt them: one that lacks a field lacks those after it."""
_DELIMITER = "|"
_WIDE_DATE = re.compile(r"\s+[A-Z][a-z]{2}\s+\d{1,2}\s+\d{1,2}:\d{2}(?::\d{2})?(?:\s+\d{4})?\s*$")
_WIDE_HEADER = ("JOBID", "USER", "STAT")
_OBJECTION = re.compile(
    r"illegal|invalid|unknown|unrecogni[sz]ed|unsupported|not (?:valid|supported)|\bbad\b",
    re.IGNORECASE,
)
_BLOCK = re.compile(r"^(\d+)(?:\[(\d+)\])?\s")
_LONG = re.compile(r"^Job(?: Id)? <(\d+(?:\[\d+\])?)>,", re.MULTILINE)
_TERMINATED = re.compile(r"TERM_\w+: [^;.\n]+")
_EXIT_CODE = re.compile(r"Exited with exit code (\d+)")
_INDEX = re.compile(r"\[(\d+)\]\s")


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """One way to ask."""

    fields: tuple[str, ...] = ()
    """Those of -o; none: the wide table."""
    is_json: bool = False

    @property
    def options(self) -> list[str]:
        """Of bjobs, besides the ids."""
        if not self.fields:
            return ["-a", "-w"]
        fields = " ".join(self.fields)
        if self.is_json:
            return ["-a", "-o", fields, "-json"]
        return ["-a", "-o", f"{fields} delimiter='{_DELIMITER}'"]

    def read(self, text: str) -> list[LsfJob] | None:
        """The jobs of an answer; None where the text is no answer in this form."""
        if self.is_json:
            return _read_json(text)
        return _read_rows(text, self) if self.fields else _read_wide(text)


FIRST_FORM = Form(fields=(*_NEEDED, *_HELPFUL), is_json=True)
LAST_FORM = Form()


def next_form(form: Form, complaint: str) -> Form | None:
    """What to try after a form was refused, by what the engine objects to; None after the last."""
    if not form.fields:
        return None
    lines = (line for line in complaint.splitlines() if _OBJECTION.search(line))
    objections = "\n".join(lines).lower()
    named = [
        number
        for number, field in enumerate(form.fields)
        if number >= len(_NEEDED) and re.search(rf"\b{field}\b", objections)
    ]
    if re.search(r"option -- '?o'?\s*$", objections, re.MULTILINE):
        return LAST_FORM
    if named:
        return Form(fields=form.fields[: named[0]], is_json=form.is_json)
    if form.is_json:
        return Form(fields=form.fields)
    return Form(fields=_NEEDED) if form.fields != _NEEDED else LAST_FORM


def read_pending(text: str) -> dict[str, str]:
    """Reason by job id from `bjobs -p`: a line for the job, and then its reasons.

    Of a name that is cut the end stays, so that an element's index is always there.
    """
    found: dict[str, str] = {}
    job_id = None
    for line in text.splitlines():
        if block := _BLOCK.match(line):
            index = block[2] or next(iter(_INDEX.findall(line)), None)
            job_id = f"{block[1]}[{index}]" if index else block[1]
        elif job_id is not None and line.strip():
            found[job_id] = f"{found.get(job_id, '')} {line.strip()}".strip()
    return found


def read_ends(text: str) -> dict[str, tuple[str, int | None]]:
    """Why LSF ended jobs, and their exit codes, by job id from `bjobs -l`."""
    blocks = _LONG.split(unwrapped(text))[1:]
    return {
        job_id: (
            next(iter(_TERMINATED.findall(block)), ""),
            next((int(code) for code in _EXIT_CODE.findall(block)), None),
        )
        for job_id, block in zip(blocks[::2], blocks[1::2], strict=True)
    }


def unwrapped(text: str) -> str:
    """`bjobs -l`, whose lines go on in the next after 21 blanks, in whole lines."""
    return re.sub(r"\n {21}", "", text)


def _read_json(text: str) -> list[LsfJob] | None:
    start, end = text.find("{"), text.rfind("}")
    try:
        answer = json.loads(text[start : end + 1], strict=False)
    except ValueError:
        return None
    records = answer.get("RECORDS") if isinstance(answer, dict) else None
    if not isinstance(records, list):
        return None
    jobs = (make_job(_lowered(record)) for record in records if isinstance(record, dict))
    return [job for job in jobs if job is not None]  # a record with ERROR has no state


def _lowered(record: dict[str, Any]) -> dict[str, str]:
    return {key.lower(): "" if value is None else str(value) for key, value in record.items()}


def _read_rows(text: str, form: Form) -> list[LsfJob] | None:
    count = len(form.fields) - 1
    rows = [line.split(_DELIMITER, count) for line in _joined(text)]
    heads = [number for number, row in enumerate(rows) if _is_header(row, form)]
    if not heads:
        return None
    cells = (row for row in rows[heads[0] + 1 :] if len(row) == len(form.fields))
    jobs = (make_job(dict(zip(form.fields, row, strict=True))) for row in cells)
    return [job for job in jobs if job is not None]


def _is_header(row: list[str], form: Form) -> bool:
    """The table for people begins in the same way, but has none of our delimiters."""
    return len(row) == len(form.fields) and row[0].strip() == "JOBID"


def _joined(text: str) -> Iterator[str]:
    """Lines; one that does not begin with an id goes on with the reasons of the one before."""
    whole = ""
    for line in text.splitlines():
        if re.match(r"\d|JOBID", line) or not whole:
            if whole:
                yield whole
            whole = line
        else:
            whole = f"{whole} {line.strip()}"
    if whole:
        yield whole


def _read_wide(text: str) -> list[LsfJob] | None:
    """JOBID USER STAT QUEUE FROM_HOST EXEC_HOST JOB_NAME SUBMIT_TIME, EXEC_HOST `-` or blank."""
    lines = text.splitlines()
    heads = [number for number, line in enumerate(lines) if tuple(line.split()[:3]) == _WIDE_HEADER]
    if not heads:
        return None
    jobs = (make_job(_wide_row(line)) for line in lines[heads[0] + 1 :])
    return [job for job in jobs if job is not None]


def _wide_row(line: str) -> dict[str, str]:
    words = _WIDE_DATE.sub("", line).split()
    if len(words) < 6:
        return {}
    has_host = len(words) > 6
    return {
        "jobid": words[0],
        "stat": words[2],
        "exec_host": words[5] if has_host else "",
        "job_name": " ".join(words[6:] if has_host else words[5:]),
    }
