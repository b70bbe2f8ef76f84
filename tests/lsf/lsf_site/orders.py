"""What a test tells the daemon to do, and to go wrong."""


def obey(order, daemon):
    """An order is [name, *arguments]; returns what the test is to know, as `value` or `error`."""
    name, *arguments = order
    try:
        return {"value": _ORDERS[name](daemon, *arguments)}
    except LookupError as error:
        return {"error": f"no such job or order: {error}"}


def _view(job):
    return {
        "id": job.key,
        "name": job.name,
        "state": job.state,
        "hosts": [place.host for place in job.places],
        "exit_code": job.exit_code if job.has_ended else None,
        "reason": job.term_reason,
        "attempts": job.attempts,
        "options": job.options,
    }


def _jobs(daemon):
    daemon.batch.reap()
    daemon.batch.tick()
    return [_view(job) for job in daemon.batch.jobs]


def _named(daemon, key):
    found = [job for job in daemon.batch.jobs if job.key == key or str(job.id) == key]
    if not found:
        raise LookupError(key)
    return found


def _each(act):
    def obey_for_each(daemon, key, *arguments):
        for job in _named(daemon, key):
            act(daemon.batch, job, *arguments)

    return obey_for_each


def _switch(daemon, name, value):
    if value is None:
        daemon.batch.switches.pop(name, None)
    else:
        daemon.batch.switches[name] = value


def _unknown(daemon, job_id):
    daemon.batch.unknown.add(int(job_id))


def _known(daemon, job_id):
    daemon.batch.unknown.discard(int(job_id))


def _restore(daemon, kills):
    daemon.batch.forget_all(kills=kills)
    daemon.batch.reap()
    daemon.batch.switches.clear()
    daemon.batch.unknown.clear()
    daemon.batch.calls.clear()
    for connection in [*daemon.silenced]:
        daemon._drop(connection)


_ORDERS = {
    "jobs": _jobs,
    "calls": lambda daemon: dict(daemon.batch.calls),
    "switch": _switch,
    "speak": lambda daemon: daemon.speak(),
    "unknown": _unknown,
    "known": _known,
    "lose_host": lambda daemon, host: daemon.batch.lose_host(host),
    "return_host": lambda daemon, host: daemon.batch.return_host(host),
    "limit": _each(lambda batch, job: batch.end_at_limit(job)),
    "requeue": _each(lambda batch, job, reason: batch.requeue(job, reason)),
    "signal": _each(lambda batch, job, number: batch.send(job, number)),
    "restore": _restore,
}
