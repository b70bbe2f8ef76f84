"""bsub: takes a job, or says why not."""

import os

from lsf_site import dependency
from lsf_site.calls import Answer
from lsf_site.errors import not_submitted
from lsf_site.jobs import Job
from lsf_site.options import read_directives, read_options
from lsf_site.resources import read_name, read_request, read_run_limit_min


def bsub(call, batch):
    """A job's script comes on standard input."""
    given = read_options(call.words, batch.config.traits)
    if "V" in given.values:
        return Answer(err=f"{batch.config.traits.banner}\n")
    if call.input is None:
        return Answer(wants_input=True)
    values = read_directives(call.input, batch.config.traits) | given.values
    for _ in range(1 + batch.switches.get("resend_bsub", 0)):
        jobs = _make_jobs(values, call, batch)
        batch.jobs += jobs
    kind = "queue" if "q" in values else "default queue"
    return Answer(out=f"Job <{jobs[0].id}> is submitted to {kind} <{jobs[0].queue}>.\n")


def _make_jobs(values, call, batch):
    config = batch.config
    queue = _queue(values.get("q"), config)
    name = read_name(values.get("J", ""))
    condition = _condition(values.get("w"), batch)
    common = {
        "stem": name.name,
        "array_limit": name.limit,
        "array_end": max(name.indices, default=0),
        "user": call.environment.get("LOGNAME") or call.environment.get("USER") or "user1",
        "queue": queue.name,
        "script": call.input,
        "environment": dict(call.environment),
        "cwd": call.cwd,
        "run_cwd": os.path.join(call.cwd, values["cwd"]) if "cwd" in values else None,
        "output": values.get("oo", values.get("o")),
        "overwrites": "oo" in values,
        "request": read_request(values, queue, config),
        "run_limit_min": read_run_limit_min(values.get("W"), queue),
        "condition": condition,
        "ends_as_orphan": "ti" in values,
        "rerunnable": "r" in values or (queue.rerunnable and "rn" not in values),
        "options": values,
    }
    job_id = batch.new_id()
    return [Job(id=job_id, index=index, **common) for index in name.indices or (0,)]


def _queue(names, config):
    for name in (names or config.default_queue).split():
        queue = config.queue(name)
        if queue is None:
            raise not_submitted(f"{name}: No such queue")
        if queue.is_open:
            return queue
    raise not_submitted(f"{name}: Queue has been closed")


def _condition(text, batch):
    if text is None:
        return None
    terms = dependency.parse(text)
    for _, job_id, _ in terms:
        if not batch.find(job_id):
            raise not_submitted(f"{job_id}: No matching job found")
    return terms
