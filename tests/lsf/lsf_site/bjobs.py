"""bjobs: what there is, in fields of one's own, as JSON, and at length."""

import json
import math
import re
import time

from lsf_site import fields
from lsf_site.calls import Answer, split_options
from lsf_site.dependency import named_jobs
from lsf_site.ends import read_id
from lsf_site.errors import RefusedError

_USAGE = (
    "bjobs [-h] [-V] [-w | -l] [-a] [-d] [-p] [-r] [-s] [-J name] [-q queue] [-u user] [jobId ...]"
)
_STATES = {
    "d": ("DONE", "EXIT"),
    "p": ("PEND", "PSUSP"),
    "r": ("RUN",),
    "s": ("USUSP", "SSUSP", "PSUSP"),
}
_KINDS = {"a": "", "d": "done ", "p": "pending ", "r": "running ", "s": "suspended "}


def bjobs(call, batch):
    traits = batch.config.traits
    known = {word[1:] for word in traits.bjobs_options}
    options, words = split_options(
        call.words,
        with_value=("J", "q", "u", "m", "P", "N", *(("o",) if "o" in known else ())),
        flags=("w", "l", "a", "d", "p", "r", "s", "A", *(known - {"o"})),
        usage=_USAGE,
    )
    jobs, missing = _select(words, options, batch)
    jobs.sort(key=lambda job: -job.end_s if job.has_ended else -math.inf)  # the last ends first
    if "o" in options or "json" in options:
        return _fields(jobs, missing, options, batch.config)
    err, code = _complain(jobs, missing, options, words, batch.config)
    text = ("\n" + "-" * 78 + "\n").join(_long(job, batch.config) for job in jobs)
    return Answer(out=text, err=err, code=code)


def _select(words, options, batch):
    """(jobs, ids that are not known)."""
    if not words:
        return [*_matching(batch.jobs, options)], []
    found, missing = [], []
    for word in words:
        named = read_id(word)
        if named is None:
            raise RefusedError(f"{word}: Illegal job ID.")
        job_id, indices = named
        jobs = [] if job_id in batch.unknown else batch.find(job_id)
        jobs = [job for job in jobs if indices is None or job.index in indices]
        found += _matching(jobs, options | {"a": True})
        if not jobs:
            missing.append(word)
    return found, missing


def _matching(jobs, options):
    states = [state for flag in "dprs" if flag in options for state in _STATES[flag]]
    if "J" in options:
        jobs = named_jobs(options["J"].partition("%")[0], jobs)
    if "q" in options:
        jobs = [job for job in jobs if job.queue == options["q"]]
    if options.get("u") not in (None, "all"):
        jobs = [job for job in jobs if job.user == options["u"]]
    if states:
        return [job for job in jobs if job.state in states]
    return [job for job in jobs if "a" in options or not job.has_ended]


def _complain(jobs, missing, options, words, config):
    err = "".join(f"Job <{word}> is not found\n" for word in missing)
    if missing:
        return err, config.not_found_code
    if jobs or words:
        return "", 0
    if "J" in options:
        return f"Job <{options['J']}> is not found\n", config.code_of_nothing
    kind = next((_KINDS[flag] for flag in "adprs" if flag in options), "unfinished ")
    return f"No {kind}job found\n", config.code_of_nothing


def _cut(text, width):
    """The end of what is too long, after a star."""
    return text if len(text) <= width else "*" + text[-(width - 1) :]


# Fields of one's own.


def _fields(jobs, missing, options, config):
    names, delimiter = _read_format(options.get("o", "jobid stat queue"), config)
    if "json" in options:
        return _json(jobs, missing, names, config)
    lines = []
    if not (missing and not jobs) and jobs and "noheader" not in options:
        lines.append(_line([(name.upper(), width) for name, width in names], delimiter))
    for job in jobs:
        values = [(fields.value(name, job, config) or "-", width) for name, width in names]
        lines.append(_line(values, delimiter))
    err, code = _complain(jobs, missing, options, missing, config)
    return Answer(out="".join(f"{line}\n" for line in lines), err=err, code=code)


def _line(values, delimiter):
    if delimiter is not None:
        return delimiter.join(text for text, _ in values)
    return " ".join(_fit(text, width) for text, width in values)


def _fit(text, width):
    if width < 0:
        return _cut(text, -width).rjust(-width)
    return _cut(text, width).ljust(width)


def _read_format(text, config):
    delimiter = None if config.traits.pads_fields else " "
    if found := re.search(r"delimiter=(['\"])(.*?)\1", text):
        delimiter = found[2]
        text = text.replace(found[0], "")
    names = []
    for word in text.split():
        name, _, width = word.partition(":")
        name = fields.ALIASES.get(name.lower(), name.lower())
        if name not in config.traits.bjobs_fields:
            raise RefusedError(f"<{name.upper()}> in the format string is not a valid field name")
        sign = -1 if width.startswith("-") else 1
        digits = width.lstrip("-")
        names.append((name, sign * int(digits) if digits else sign * fields.width(name)))
    if not names:
        raise RefusedError("No field name is specified")
    return names, delimiter


def _json(jobs, missing, names, config):
    records = [{name.upper(): fields.value(name, job, config) for name, _ in names} for job in jobs]
    records += [{"JOBID": word, "ERROR": f"Job <{word}> is not found"} for word in missing]
    answer = {"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": records}
    text = json.dumps(answer, indent=2, separators=(",", ":"))
    return Answer(out=f"{text}\n", code=config.not_found_code if missing else 0)


# At length.


def _long(job, config):
    told = [
        f"Job <{job.key}>",
        *([f"Job Name <{job.name}>"] if job.stem else []),
        f"User <{job.user}>",
        f"Project <{job.project}>",
        f"Status <{job.shown or job.state}>",
        f"Queue <{job.queue}>",
        f"Command <{job.command}>",
    ]
    lines = ["", _wrap(", ".join(told))]
    lines += [
        _wrap(f"{time.strftime('%a %b %e %H:%M:%S', time.localtime(when))}: {text};")
        for when, text in job.history[:1]
    ]
    if job.run_limit_min is not None:
        lines += ["", " RUNLIMIT", f" {job.run_limit_min:.1f} min"]
    lines += [
        _wrap(f"{time.strftime('%a %b %e %H:%M:%S', time.localtime(when))}: {text};")
        for when, text in job.history[1:]
    ]
    if job.state == "PEND" and job.pending_reason:
        lines += [" PENDING REASONS:"]
        lines += [f" {reason};" for reason in job.pending_reason.split("; ")]
    lines += ["", " SCHEDULING PARAMETERS:", _LOADS, ""]
    return "\n".join(lines)


_LOADS = """\
           r15s   r1m  r15m   ut      pg    io   ls    it    tmp    swp    mem
 loadSched   -     -     -     -       -     -    -     -     -      -      -
 loadStop    -     -     -     -       -     -    -     -     -      -      -
"""


def _wrap(text):
    """At column 79, also inside of words, with 21 spaces before what goes on."""
    first, rest = text[:79], text[79:]
    parts = [rest[start : start + 58] for start in range(0, len(rest), 58)]
    return "\n".join([first, *(f"{' ' * 21}{part}" for part in parts)])
