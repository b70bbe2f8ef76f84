"""The doctor's questions to LSF."""

from __future__ import annotations

import contextlib
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
    listed = ", ".join(_NEEDED)
    if shutil.which("brequeue") is None:
        yield warned(
            "commands",
            f"{listed} are there, brequeue is not",
            "nothing to do: a run that is stopped at its limit is submitted again instead",
        )
    else:
        yield passed("commands", f"{listed}, brequeue are there")
    for check in (_version, _daemons):
        try:
            yield check()
        except SchedulerError as error:
            yield failed(check.__name__.strip("_"), error.message, error.hint)


def _version() -> Finding:
    done = call_lsf(["bsub", "-V"])
    said = lsf_lines(done.stderr, done.stdout)
    if done.returncode != 0 or not said:
        return skipped("version", "bsub -V does not tell")
    return passed("version", said[0])


def _daemons() -> Finding:
    done = call_lsf(["bqueues"])
    states = parse_queue_states(done.stdout)
    if not states:
        said = "; ".join(lsf_lines(done.stderr, done.stdout)[:2]) or "nothing"
        return failed("daemons", f"bqueues lists no queue and says: {said}", "tell the site")
    usable = [name for name, state in states.items() if state == "Open:Active"]
    cluster = ""
    # Another daemon answers lsid, and not every site has it.
    with contextlib.suppress(SchedulerError):
        found = _CLUSTER.findall(call_lsf(["lsid"]).stdout)
        cluster = "".join(f"{what} {name}, " for what, name in found)
    return passed("daemons", f"{cluster}{len(usable)} of {len(states)} queues are open")


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
    # The lines of bjobs -l go on in the next one after 21 blanks.
    words = dict.fromkeys(_END.findall(re.sub(r"\n {21}", "", said)))
    return f"LSF says of job {job_id}: {'; '.join(words)}" if words else ""


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


def _judge(options: dict[str, str], queue: Queue) -> Finding:
    name, hint = "directives", "change the cluster profile, or the options, or name another queue"
    if not queue.is_open:
        return failed(name, f"queue {queue.name} is closed: it takes no jobs", hint)
    time = _RUN_LIMIT.match(options.get("-W", ""))
    minutes = 60 * int(time[1] or 0) + int(time[2]) if time else 0
    slots = options.get("-n", "").partition(",")[0]  # of 4,8 the least counts
    limits = [
        ("-W", minutes, queue.run_limit_min, "minutes"),
        ("-n", int(slots) if slots.isdecimal() else 0, queue.max_slots, "slots"),
    ]
    for option, asked, allowed, unit in limits:
        if allowed is not None and asked > allowed:
            problem = f"is more than queue {queue.name} allows: {allowed:g} {unit}"
            return failed(name, f"{option} {options[option]} {problem}", hint)
    if not queue.is_active:
        return warned(
            name,
            f"queue {queue.name} takes jobs, but starts none at present",
            "the job waits until it does; name another queue",
        )
    words = [f"{limit:g} {unit}" for _, _, limit, unit in limits if limit is not None]
    allows = " and ".join(words) or "jobs of any size"
    return passed(name, f"queue {queue.name} is open, and allows {allows}; {_NOT_TRIED}")
