"""bkill, brequeue, bstop and bresume: what is done to jobs that are there."""

import re

from lsf_site.calls import Answer, split_options
from lsf_site.dependency import named_jobs
from lsf_site.errors import RefusedError
from lsf_site.jobs import signal_number

_ID = re.compile(r"(\d+)(?:\[([\d,:\- ]+)\])?")


def read_id(word):
    """(id, indices or None) of `12`, `12[3]`, `12[1-3,5]`; None for what is no id."""
    match = _ID.fullmatch(word.strip("\"'"))
    if not match:
        return None
    if match[2] is None:
        return int(match[1]), None
    indices = set()
    for part in match[2].replace(" ", "").split(","):
        first, _, last = part.partition("-")
        indices.update(range(int(first), int(last or first) + 1))
    return int(match[1]), indices


def select(words, options, batch):
    """[(as it is called, jobs)] for what was named; 0 means all that match the options."""
    if not words and "J" not in options:
        raise RefusedError("Job ID or job name must be specified")
    if words in ([], ["0"]):
        jobs = [job for job in batch.jobs if not job.has_ended]
        if "J" in options:
            jobs = [job for job in jobs if job in named_jobs(options["J"], batch.jobs)]
        if "q" in options:
            jobs = [job for job in jobs if job.queue == options["q"]]
        if not jobs:
            raise RefusedError("No matching job found")
        return [(job.key, [job]) for job in jobs]
    return [(word, _named(word, batch)) for word in words]


def _named(word, batch):
    found = read_id(word)
    if found is None:
        raise RefusedError(f"{word}: Illegal job ID.")
    job_id, indices = found
    if job_id in batch.unknown:
        return []
    return [job for job in batch.find(job_id) if indices is None or job.index in indices]


def bkill(call, batch):
    """-s SIGNAL, -r; without, what ends a job."""
    usage = "bkill [-l] [-r] [-J job_name] [-s signal_value] [-u user] [jobId ...]"
    options, words = split_options(
        call.words, with_value=("s", "J", "q", "u", "m", "g"), flags=("r", "b", "l"), usage=usage
    )
    number = None
    if "s" in options:
        number = signal_number(options["s"])
        if number is None:
            raise RefusedError(f"{options['s']}: Bad signal value. Job not signaled.")

    def act(job):
        if number is not None:
            return _signal(job, number, batch)
        (batch.force_kill if "r" in options else batch.kill)(job)
        return "is being terminated"

    return _for_each(select(words, options, batch), act)


def _signal(job, number, batch):
    if job.has_started:
        if number in _KILLING:
            job.killed_as = "TERM_OWNER"
        batch.send(job, number)
    elif number in _KILLING:
        batch.kill(job)
    return "is being signaled"


_KILLING = (2, 9, 15)


def _for_each(selected, act):
    """One line per job; 255 where one failed."""
    out, err = "", ""
    for word, jobs in selected:
        alive = [job for job in jobs if not job.has_ended]
        if not jobs:
            err += f"Job <{word}>: No matching job found\n"
        elif not alive:
            err += f"Job <{word}>: Job has already finished\n"
        else:
            said = {act(job) for job in alive}
            out += f"Job <{word}> {said.pop()}\n"
    return Answer(out=out, err=err, code=255 if err else 0)


def brequeue(call, batch):
    """A running job; -e one that ended as EXIT, -d as DONE, -p is not asked for."""
    usage = "brequeue [-J job_name] [-u user] [-a] [-d] [-e] [-p] [-r] [-H] [jobId ...]"
    options, words = split_options(
        call.words, with_value=("J", "u", "q"), flags=("a", "d", "e", "p", "r", "H"), usage=usage
    )
    if not batch.config.requeue_allowed or batch.switches.get("brequeue_refused"):
        return Answer(
            err="".join(f"Job <{word}>: User permission denied\n" for word in words), code=255
        )
    wanted = {"d": ("DONE",), "e": ("EXIT",), "r": ("RUN", "USUSP", "SSUSP")}
    states = {state for flag in wanted if flag in options for state in wanted[flag]}
    if "a" in options or not states:
        states |= set(wanted["r"]) | ({"DONE", "EXIT"} if "a" in options else set())
    out, err = "", ""
    for word, jobs in select(words, options, batch):
        fitting = [job for job in jobs if job.state in states]
        for job in fitting:
            batch.requeue(job)
            if "H" in options and job.state == "PEND":
                job.state = "PSUSP"
        if fitting:
            out += f"Job <{word}> is being requeued\n"
        elif not jobs:
            err += f"Job <{word}>: No matching job found\n"
        else:
            err += f"Job <{word}>: {_why_not(jobs[0])}\n"
    return Answer(out=out, err=err, code=255 if err else 0)


def _why_not(job):
    return "Job has already finished" if job.has_ended else "Job has not started yet"


def bstop(call, batch):
    _, words = split_options(call.words, with_value=("J",), flags=("a",), usage="bstop [jobId ...]")

    def act(job):
        batch.suspend(job)
        return "is being stopped"

    return _for_each(select(words, {}, batch), act)


def bresume(call, batch):
    _, words = split_options(call.words, with_value=("J",), usage="bresume [jobId ...]")

    def act(job):
        batch.resume(job)
        return "is being resumed"

    return _for_each(select(words, {}, batch), act)
