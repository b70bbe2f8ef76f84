"""bqueues, bhosts and bparams: what the site is."""

from collections import Counter

from lsf_site.calls import Answer, split_options
from lsf_site.errors import RefusedError


def bparams(call, batch):
    config = batch.config
    if "-a" in call.words and not config.traits.knows_all_options:
        raise RefusedError("bparams: illegal option -- a\nUsage: bparams [-h] [-V] [-l]")
    if "-l" in call.words or "-a" in call.words:
        period = int(config.clean_period_s)
        return Answer(
            out="\nSystem default queues for automatic queue selection:\n"
            f"      DEFAULT_QUEUE = {config.default_queue}\n\n"
            "The interval to wait for finished jobs to be cleaned:\n"
            f"      CLEAN_PERIOD = {period}\n"
        )
    return Answer(
        out=f"Default Queues:  {config.default_queue}\n"
        "MBD_SLEEP_TIME used for calculations:  10 seconds\n"
        "Job Checking Interval:  7 seconds\n"
        "Job Accepting Interval:  0 seconds\n"
    )


_QUEUES = "%-15s %4s  %-15s %4s %4s %4s %4s %5s %5s %5s %5s"


def bqueues(call, batch):
    usage = "bqueues [-w | -l | -r] [-m host_name] [-u user_name] [queue_name ...]"
    options, names = split_options(
        call.words, with_value=("m", "u"), flags=("w", "l", "r"), usage=usage
    )
    queues = batch.config.queues
    if names:
        unknown = [name for name in names if not batch.config.queue(name)]
        if unknown:
            raise RefusedError(f"{unknown[0]}: No such queue")
        queues = [batch.config.queue(name) for name in names]
    if "l" in options or "r" in options:
        return Answer(out="-" * 79 + ("\n" + "-" * 79).join(_long(one, batch) for one in queues))
    lines = [_QUEUES % _COLUMNS]
    lines += [_QUEUES % _row(queue, batch) for queue in queues]
    return Answer(out="".join(f"{line}\n" for line in lines))


_COLUMNS = (
    *("QUEUE_NAME", "PRIO", "STATUS", "MAX", "JL/U", "JL/P", "JL/H"),
    *("NJOBS", "PEND", "RUN", "SUSP"),
)


def _status(queue):
    opened = "Open" if queue.is_open else "Closed"
    return f"{opened}:Active"


def _counts(queue, batch):
    counts = Counter()
    for job in batch.jobs:
        if job.queue == queue.name and not job.has_ended:
            counts[_KIND.get(job.state, "RUN")] += job.request.slots
    return counts


_KIND = {"PEND": "PEND", "PSUSP": "PEND", "USUSP": "SUSP", "SSUSP": "SUSP"}


def _row(queue, batch):
    counts = _counts(queue, batch)
    numbers = (counts.total(), counts["PEND"], counts["RUN"], counts["SUSP"])
    return (queue.name, queue.priority, _status(queue), "-", "-", "-", "-", *numbers)


def _long(queue, batch):
    counts = _counts(queue, batch)
    lines = [
        "",
        "",
        f"QUEUE: {queue.name}",
        "  -- No description provided.",
        "",
        "PARAMETERS/STATISTICS",
        "PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV PJOBS",
        (
            f" {queue.priority}    0  {_status(queue):<15} -    -    -    - "
            f"{counts.total():5} {counts['PEND']:5} {counts['RUN']:5}     0     0    0     0"
        ),
        "Interval for a host to accept two jobs is 0 seconds",
    ]
    if queue.default_run_limit_min is not None:
        lines += ["", "DEFAULT LIMITS:", " RUNLIMIT", f" {queue.default_run_limit_min:.1f} min"]
    limits = _limits(queue, batch.config)
    if limits and queue.default_run_limit_min is not None:
        lines += ["", "MAXIMUM LIMITS:"]
    lines += [*([""] if limits and not lines[-1].endswith(":") else []), *limits]
    lines += [
        "",
        "SCHEDULING PARAMETERS",
        "           r15s   r1m  r15m   ut      pg    io   ls    it    tmp    swp    mem",
        " loadSched   -     -     -     -       -     -    -     -     -      -      -",
        " loadStop    -     -     -     -       -     -    -     -     -      -      -",
        "",
        "USERS: all",
        "HOSTS:  all",
    ]
    if queue.rerunnable:
        lines.append("RERUNNABLE :  yes")
    return "\n".join(lines) + "\n"


def _limits(queue, config):
    lines = []
    if queue.run_limit_min is not None:
        lines += [" RUNLIMIT", f" {queue.run_limit_min:.1f} min"]
    if queue.task_limit is not None:
        name = "TASKLIMIT" if config.traits.knows_all_options else "PROCLIMIT"
        lines += [f" {name}", f" {queue.task_limit}"]
    return lines


_HOSTS = "%-18s %-14s %5s %6s %6s %6s %6s %6s %6s"


def bhosts(call, batch):
    usage = "bhosts [-w | -l] [-X] [-gpu] [host_name ...]"
    flags = ("w", "l", "X", "a", *(("gpu",) if batch.config.traits.knows_all_options else ()))
    options, names = split_options(call.words, with_value=("R",), flags=flags, usage=usage)
    if unknown := [name for name in names if name not in batch.config.hosts]:
        raise RefusedError(f"{unknown[0]}: Bad host name, host group name or cluster name")
    hosts = names or batch.config.hosts
    if "gpu" in options:
        return Answer(out=_gpus(hosts, batch))
    lines = [_HOSTS % ("HOST_NAME", "STATUS", "JL/U", "MAX", *_HOST_NUMBERS)]
    if not names:  # the master has no slots
        lines.append(_HOSTS % (batch.config.submission_host, "ok", "-", 0, 0, 0, 0, 0, 0))
    for host in hosts:
        used = [
            p.slots for job in batch.jobs if job.has_started for p in job.places if p.host == host
        ]
        state = "unavail" if host in batch.down else "ok"
        if state == "ok" and sum(used) >= batch.config.slots:
            state = "closed_Full" if "w" in options else "closed"
        numbers = (batch.config.slots, sum(used), sum(used), 0, 0, 0)
        lines.append(_HOSTS % (host, state, "-", *numbers))
    return Answer(out="".join(f"{line}\n" for line in lines))


_HOST_NUMBERS = ("NJOBS", "RUN", "SSUSP", "USUSP", "RSV")


def _gpus(hosts, batch):
    row = "%-18s %4s %20s %9s %9s %9s %7s %7s %7s"
    names = ("HOST_NAME", "ID", "MODEL", "MUSED", "MRSV", "NJOBS", "RUN", "SUSP", "RSV")
    lines = [row % names]
    for host in hosts:
        used = {
            gpu
            for job in batch.jobs
            if job.has_started
            for place in job.places
            if place.host == host
            for gpu in place.gpus
        }
        for gpu in range(batch.config.gpus):
            number = int(gpu in used)
            model = batch.config.gpu_model
            name = "" if gpu else host
            lines.append(row % (name, gpu, model, "0M", "0M", number, number, 0, 0))
    return "".join(f"{line}\n" for line in lines)
