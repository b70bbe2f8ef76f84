"""The doctor's questions to LSF."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator

from hpcdist.base.errors import HpcdistError, SchedulerError
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Finding, failed, passed, skipped, warned
from hpcdist.schedulers.lsf.commands import call_lsf, lsf_lines
from hpcdist.schedulers.lsf.site import Queue, ask_queue, parse_queue_states

_NEEDED = ("bsub", "bjobs", "bkill", "bqueues")
_DIRECTIVE = re.compile(r"^#[ \t]*BSUB[ \t]+(-.*)$", re.MULTILINE)
_RUN_LIMIT = re.compile(r"(?:(\d+):)?(\d+)")
_CLUSTER = re.compile(r"^My (cluster|master) name is (\S+)", re.MULTILINE)
_END = re.compile(
    r"(?:Exited with exit code \d+|Exited by signal \d+|Exited|Done successfully|Completed <\w+>)"
    r"(?:[;.] *TERM_\w+: [^;.]+)?|TERM_\w+: [^;.]+"
)
_LOAD = "go to a login node of the cluster, or load the site's LSF profile (profile.lsf)"
_NOT_TRIED = "LSF has no dry run: bsub judges the rest"


def examine() -> Iterator[Finding]:
    """Check the commands, their version and the daemons, as far as they work."""
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        yield failed("commands", f"not found: {', '.join(missing)}", _LOAD)
        return
    yield _commands()
    yield _version()
    yield _daemons()


def try_script(script: str) -> Finding:
    """Check a script without submitting it: its queue, and what that allows."""
    name = "directives"
    try:
        options = script_options(script)
        queue = ask_queue(options.get("-q"))
    except ValueError as error:
        return failed(name, f"a #BSUB line cannot be read: {error}", "change the cluster profile")
    except HpcdistError as error:
        return failed(name, error.message, error.hint)
    if queue is None:
        chosen = options.get("-q", "for jobs that name none")
        return skipped(name, f"bqueues tells nothing of the queue {chosen}; {_NOT_TRIED}")
    return _judge(options, queue)


def explain_end(run: Run) -> str:
    """Return what LSF knows of a job's end, in its own words; empty: it does not answer."""
    job_id = run.read_job_id() or ""
    if not job_id:
        return ""
    try:
        said = call_lsf(["bjobs", "-l", job_id]).stdout
    except SchedulerError:
        return ""
    words = end_words(said)
    return f"LSF says of job {job_id}: {'; '.join(words)}" if words else ""


def end_words(text: str) -> list[str]:
    """Return how a job ended, from `bjobs -l`, whose lines go on in the next after 21 blanks."""
    return list(dict.fromkeys(_END.findall(re.sub(r"\n {21}", "", text))))


def script_options(script: str) -> dict[str, str]:
    """Return the options of bsub in a script; raises ValueError where quotes are open."""
    found: dict[str, str] = {}
    for line in _DIRECTIVE.findall(script):
        option = ""
        for word in shlex.split(line, comments=True):
            if word.startswith("-"):
                option = word
                found[option] = ""
            elif not found[option]:
                found[option] = word
    return found


def _commands() -> Finding:
    if shutil.which("brequeue") is None:
        return warned(
            "commands",
            f"{', '.join(_NEEDED)} are there, brequeue is not",
            "nothing to do: a run that is stopped at its limit is submitted again instead",
        )
    return passed("commands", f"{', '.join(_NEEDED)}, brequeue are there")


def _version() -> Finding:
    try:
        done = call_lsf(["bsub", "-V"])
    except SchedulerError as error:
        return failed("version", error.message, error.hint)
    said = lsf_lines(done.stderr, done.stdout)
    if done.returncode != 0 or not said:
        return skipped("version", "bsub -V does not tell")
    return passed("version", said[0])


def _daemons() -> Finding:
    try:
        done = call_lsf(["bqueues"])
    except SchedulerError as error:
        return failed("daemons", error.message, error.hint)
    states = parse_queue_states(done.stdout)
    if not states:
        said = "; ".join(lsf_lines(done.stderr, done.stdout)[:2]) or "nothing"
        return failed("daemons", f"bqueues lists no queue and says: {said}", "tell the site")
    usable = [name for name, state in states.items() if state == "Open:Active"]
    return passed("daemons", f"{_cluster()}{len(usable)} of {len(states)} queues are open")


def _cluster() -> str:
    """Return what lsid tells; another daemon answers it, and not every site has it."""
    if shutil.which("lsid") is None:
        return ""
    try:
        said = call_lsf(["lsid"]).stdout
    except SchedulerError:
        return ""
    return "".join(f"{what} {name}, " for what, name in _CLUSTER.findall(said))


def _judge(options: dict[str, str], queue: Queue) -> Finding:
    name, hint = "directives", "change the cluster profile, or the options, or name another queue"
    problem = _problem(options, queue)
    if problem is not None:
        return failed(name, problem, hint)
    if not queue.is_active:
        return warned(
            name,
            f"queue {queue.name} takes jobs, but starts none at present",
            "the job waits until it does; name another queue",
        )
    limits = " and ".join(limit for limit in _limits(queue) if limit) or "jobs of any size"
    return passed(name, f"queue {queue.name} is open, and allows {limits}; {_NOT_TRIED}")


def _problem(options: dict[str, str], queue: Queue) -> str | None:
    """Return what bsub would refuse; a limit that is counted by a host's speed is left to it."""
    if not queue.is_open:
        return f"queue {queue.name} is closed: it takes no jobs"
    time, slots = _limits(queue)
    limit_min = None if queue.run_limit_of is not None else queue.run_limit_min
    if _is_over(_minutes(options.get("-W", "")), limit_min):
        return f"-W {options['-W']} is more than queue {queue.name} allows: {time}"
    if _is_over(_slots(options.get("-n", "")), queue.max_slots):
        return f"-n {options['-n']} is more than queue {queue.name} allows: {slots}"
    return None


def _limits(queue: Queue) -> tuple[str, str]:
    """Return the limits of time and of slots, in words; empty where there is none."""
    return (
        "" if queue.run_limit_min is None else f"{queue.run_limit_min:g} minutes",
        "" if queue.max_slots is None else f"{queue.max_slots} slots",
    )


def _is_over(asked: float | None, allowed: float | None) -> bool:
    return asked is not None and allowed is not None and asked > allowed


def _minutes(text: str) -> float | None:
    """Return the minutes of 24:00, or of 1440, with or without /host."""
    found = _RUN_LIMIT.match(text)
    return 60 * int(found[1] or 0) + int(found[2]) if found else None


def _slots(text: str) -> int | None:
    """Return 8 for 8, and 4 for 4,8: the least counts."""
    first = text.partition(",")[0]
    return int(first) if first.isdecimal() else None
