"""bkill, brequeue and bstop: what is done to jobs that are there."""

import re

from lsf_site.calls import Answer, split_options
from lsf_site.errors import RefusedError

_ID = re.compile(r"(\d+)(?:\[([\d,:\- ]+)\])?")


def read_id(word):
    """(id, indices or None) of `12`, `12[3]`, `12[1-3,5]`."""
    match = _ID.fullmatch(word.strip("\"'"))
    if not match:
        raise RefusedError(f"{word}: Illegal job ID.")
    if match[2] is None:
        return int(match[1]), None
    indices = set()
    for part in match[2].replace(" ", "").split(","):
        first, _, last = part.partition("-")
        indices.update(range(int(first), int(last or first) + 1))
    return int(match[1]), indices


def find(word, batch):
    """The jobs that an id means."""
    job_id, indices = read_id(word)
    found = [] if job_id in batch.unknown else batch.find(job_id)
    return [job for job in found if indices is None or job.index in indices]


def _act(words, batch, fits, act, said):
    """One line per job; 255 where one failed."""
    out, err = "", ""
    for word in words:
        jobs = find(word, batch)
        fitting = [job for job in jobs if fits(job)]
        for job in fitting:
            act(job)
        if fitting:
            out += f"Job <{word}> is being {said}\n"
        elif not jobs:
            err += f"Job <{word}>: No matching job found\n"
        else:
            what = "Job has already finished" if jobs[0].has_ended else "Job has not started yet"
            err += f"Job <{word}>: {what}\n"
    return Answer(out=out, err=err, code=255 if err else 0)


def bkill(call, batch):
    _, words = split_options(call.words, usage="bkill [jobId ...]")
    return _act(words, batch, lambda job: not job.has_ended, batch.kill, "terminated")


def bstop(call, batch):
    _, words = split_options(call.words, usage="bstop [jobId ...]")
    return _act(words, batch, lambda job: not job.has_ended, batch.suspend, "stopped")


def brequeue(call, batch):
    """A running job; -e one that ended as EXIT; -H: it is held then."""
    flags = ("a", "d", "e", "r", "H")
    options, words = split_options(call.words, flags=flags, usage="brequeue [-e] [-H] [jobId ...]")
    if batch.switches.get("brequeue_refused"):
        err = "".join(f"Job <{word}>: User permission denied\n" for word in words)
        return Answer(err=err, code=255)
    kinds = {"d": {"DONE"}, "e": {"EXIT"}, "r": {"RUN", "USUSP"}, "a": {"DONE", "EXIT", "RUN"}}
    states = set().union(*(kinds[flag] for flag in options if flag in kinds)) or kinds["r"]

    def act(job):
        batch.requeue(job)
        if "H" in options and job.state == "PEND":
            job.state = "PSUSP"

    return _act(words, batch, lambda job: job.state in states, act, "requeued")
