"""Ways to ask bjobs for fields: engines differ in the fields and options that they know. The form
that an engine has answered is remembered from one command to the next.

The fields of -o and the option -json are those of the page "bjobs" of IBM Spectrum LSF 10.1; the
installations without its fix packs know fewer.
"""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from hpcdist.base import files

_DELIMITER = "|"
_OLD_FIELDS = ("jobid", "stat", "exec_host", "submit_time", "start_time", "finish_time", "run_time")
_FIELDS = (*_OLD_FIELDS, "exit_code", "exit_reason", "estimated_start_time", "max_mem")
_NO_FIELD = re.compile(r"not a valid field|(?:unknown|invalid|illegal) field", re.IGNORECASE)
_REFUSED = re.compile(
    r"option|field|format|usage|syntax|unrecogni[sz]ed|unknown|invalid|illegal", re.IGNORECASE
)
_MEMORY = "bjobs.json"
_REMEMBERED_S = 7 * 86400.0
"""After an update, an engine may know more."""


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """One way to ask bjobs."""

    fields: tuple[str, ...]
    """Fields of -o. The name comes last, for it may hold the delimiter."""
    is_json: bool

    @property
    def options(self) -> list[str]:
        """Return the options of bjobs, besides the ids."""
        fields = " ".join(self.fields)
        if self.is_json:
            return ["-a", "-o", fields, "-json"]
        return ["-a", "-o", f"{fields} delimiter='{_DELIMITER}'"]

    def rows(self, text: str) -> list[dict[str, str]] | None:
        """Return the records of an answer by fields in lower case; None where the text is no answer
        in this form. In JSON, an unknown id has a record with the field error."""
        return _json_rows(text) if self.is_json else self._rows_below_header(text)

    def _rows_below_header(self, text: str) -> list[dict[str, str]] | None:
        count = len(self.fields)
        lines = [line.split(_DELIMITER, count - 1) for line in text.splitlines()]
        rows = [line for line in lines if len(line) == count]  # none in the table for people
        if not rows or rows[0][0].strip() != "JOBID":
            return None
        return [dict(zip(self.fields, row, strict=True)) for row in rows[1:]]


FORMS = (
    Form(fields=(*_FIELDS, "pend_reason", "pend_time", "job_name"), is_json=True),
    Form(fields=(*_FIELDS, "job_name"), is_json=False),
    Form(fields=(*_OLD_FIELDS, "job_name"), is_json=True),
    Form(fields=(*_OLD_FIELDS, "job_name"), is_json=False),
)
"""LSF 10.1 with fix packs; without; and engines that know no exit codes, with JSON and without."""
_NEW, _OLD_JSON, _OLD = FORMS[0], FORMS[2], FORMS[3]


def next_form(form: Form, said: str, *, has_failed: bool) -> Form | None:
    """Return the form to try after one that was refused in these words; None: there is none left,
    or bjobs failed for a reason of another kind.

    A field that is unknown is mostly not the only one: all of the newer ones are left out.
    """
    if form is _OLD or (has_failed and not _REFUSED.search(said)):
        return None
    if _NO_FIELD.search(said):
        return _OLD_JSON if form is _NEW else _OLD
    return FORMS[1] if form is _NEW else _OLD


class FormMemory:
    """The form by the path of bjobs: in this process, and in a file of the user's cache."""

    def __init__(self) -> None:
        self._known: dict[str, Form] = {}

    def get(self, program: str) -> Form:
        """Return the form that this bjobs has answered; the first where it was not asked yet."""
        if program not in self._known:
            number = _read_numbers().get(program, 0)
            self._known[program] = FORMS[number if number < len(FORMS) else 0]
        return self._known[program]

    def put(self, program: str, form: Form) -> None:
        if self._known.get(program) is form:
            return
        self._known[program] = form
        # Without a home, or with a full disk, the next command asks again.
        with suppress(OSError, RuntimeError):
            path = _memory_file()
            path.parent.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
            files.write_json(path, _read_numbers() | {program: FORMS.index(form)})

    def drop(self, program: str) -> None:
        """Ask from the first form on, in this process."""
        self._known[program] = FORMS[0]


def _memory_file() -> Path:
    return files.user_cache() / _MEMORY


def _read_numbers() -> dict[str, int]:
    """Return the number of the form by the path of bjobs."""
    with suppress(OSError, RuntimeError, msgspec.ValidationError):
        path = _memory_file()
        if time.time() - path.stat().st_mtime < _REMEMBERED_S:
            return files.convert(files.read_json(path), dict[str, int])
    return {}


def _json_rows(text: str) -> list[dict[str, str]] | None:
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
