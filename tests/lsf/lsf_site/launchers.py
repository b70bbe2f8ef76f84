"""blaunch and ssh: they start a command on other hosts, and last as long as it does."""

from dataclasses import replace

from lsf_site.environment import login_environment, task_environment
from lsf_site.errors import RefusedError
from lsf_site.tasks import Launch


def blaunch(call, batch, answer):
    """Calls `answer` when all tasks have ended."""
    job = _job(call, batch)
    flags, hosts, words = _read(call.words)
    places = _places(hosts, job)
    command = words if "-no-shell" in flags else ["/bin/sh", "-c", " ".join(words)]
    variables = [
        task_environment(job, place, number, call.environment, batch)
        for number, place in enumerate(places, 1)
    ]
    travels = batch.config.traits.environment_travels
    call = replace(
        call,
        cwd=call.cwd if travels else variables[0].get("HOME", "/"),
        passes_input="-n" not in flags and len(places) == 1,
    )
    launch = Launch(job=job, answer=answer)
    batch.tasks.start(launch, [place.host for place in places], command, call, variables)
    return launch


def _job(call, batch):
    job_id = call.environment.get("LSB_JOBID", "")
    index = int(call.environment.get("LSB_JOBINDEX", "0") or 0)
    found = batch.find(int(job_id), index) if job_id.isdigit() else []
    if not found or found[0].state != "RUN":
        raise RefusedError("blaunch: This command can only be used within an LSF job")
    return found[0]


def _read(words):
    """(flags, hosts or None, command)."""
    left, flags = list(words), set()
    while left[0].startswith("-"):
        word = left.pop(0)
        if word == "-z":
            return flags, left.pop(0).split(), left
        flags.add(word)  # what rsh and ssh have besides is passed over in silence
    return flags, [left.pop(0)], left


def _places(hosts, job):
    own = {place.host: place for place in job.places}
    if foreign := [host for host in hosts if host not in own]:
        raise RefusedError(
            f"blaunch: {foreign[0]}: Host is not in the job's list of allocated hosts"
        )
    return [own[host] for host in hosts]


_SSH_WITH_VALUE = frozenset("bcDEeFIiJLlmOopQRSWw")


def ssh(call, batch, answer):
    """A fresh login on a host: LSF knows nothing of what runs there, and leaves it alone."""
    left = list(call.words)
    while left and left[0].startswith("-"):
        word = left.pop(0)
        if word[1:] in _SSH_WITH_VALUE and left:
            left.pop(0)
    host, *words = left or [""]
    if host not in batch.config.hosts:
        raise RefusedError(f"ssh: Could not resolve hostname {host}: Name or service not known")
    variables = login_environment(host, call.environment, batch)
    call = replace(call, cwd=variables.get("HOME", "/"), passes_input=True)
    launch = Launch(job=None, answer=answer)
    batch.tasks.start(launch, [host], ["/bin/sh", "-c", " ".join(words)], call, [variables])
    return launch


LAUNCHERS = {"blaunch": blaunch, "ssh": ssh}
