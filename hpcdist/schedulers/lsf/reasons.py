"""Reasons of LSF in plain words: why a job waits and how it ended.

LSF's own words are those of lsb_pendreason() in the LSF API reference, and of the page "Termination
reasons displayed by bacct, bhist, and bjobs" of IBM Spectrum LSF 10.1. Engines and versions differ
in small words, so patterns are looked for.
"""

from __future__ import annotations

import re

from hpcdist.runs.verdict import State
from hpcdist.schedulers.base import Condition

_PENDING: tuple[tuple[str, str], ...] = (
    (
        r"dependency condition invalid or never satisfied",
        "the job that it waits for did not end as --after requires: it will never start",
    ),
    (r"dependency condition not satisfied", "it waits for the end of another job"),
    (
        r"array has reached its (?:running element|job slot) limit",
        "as many runs of the sweep as --max-parallel allows are active",
    ),
    (r"suspended by (?:the )?user while pending", "it is held; release it with: bresume JOBID"),
    (r"suspended by LSF admin", "an administrator holds it"),
    (r"has a specified start time", "its start time has not come"),
    (
        r"no suitable hosts? for the job",
        "no host fits what it asks for; ask for less, or name another queue with --partition",
    ),
    (
        r"no longer satisfies queue (?:PROC|TASK)LIMIT",
        "it asks for more slots than the queue allows a job",
    ),
    (
        r"has no permission to run|no such user account|determine user account",
        "you have no account on the hosts; ask the site",
    ),
    (
        r"not enough (?:processors|hosts) to meet the (?:job|queue)'s spanning requirement",
        "it waits for hosts with as many free slots each as it asks for",
    ),
    (
        r"queue is inactivated by (?:the|its) (?:administrator|LSF admin\w*)",
        "the queue starts no jobs at present: an administrator has closed it",
    ),
    (r"will not finish", "it would not end in time; a shorter --time may help"),
    (
        r"queue is inactivated by its time windows|(?:dispatch|run) windows? (?:is |are )?closed",
        "the queue starts jobs only at certain times",
    ),
    (r"queue is inactiv", "the queue starts no jobs at present"),
    (r"pending job (?:slot )?threshold", "you have as many pending jobs as the site allows"),
    (
        r"resource \((\w+)\) limit defined (.+?) has been reached",
        "it waits until running jobs give back {0}: the limit {1} is reached",
    ),
    (
        r"resource limit defined (.+?) has been reached",
        "it waits for running jobs to end: the limit {0} is reached",
    ),
    (r"user'?s? group", "your group uses all job slots that it may have"),
    (
        r"user has (?:reached|not enough)|per-user job slot|user's (?:per-\w+ )?job slot limit",
        "you use all job slots that you may have at one time",
    ),
    (
        r"queue has (?:reached|not enough)|queue's per-\w+ job slot limit",
        "all job slots of the queue are in use",
    ),
    (r"ngpus|\bgpus?\b", "it waits for GPUs to become free"),
    (
        r"requirements? for (?:reserving resource|resource reservation)(?: \((\w+)\))?.*not satisf",
        "it waits for hosts with enough free {0}",
    ),
    (
        r"requirement for exclusive execution|running an exclusive job",
        "it waits for hosts to itself",
    ),
    (
        r"resource requirements? not satisfied",
        "no host has at present what it asks for (its select[...], or the queue's)",
    ),
    (
        r"not enough (?:job )?slot|job slot limit reached|slot\(s\)|slots? are reserved",
        "it waits for hosts to become free",
    ),
    (
        r"unable to (?:access job file|set job's|determine job's|open job's)|initialization failed",
        "LSF could not start it on a host, and tries again; see that its folder exists there",
    ),
    (r"requeue|re-?scheduling|rescheduled", "it was requeued, and waits to be started again"),
    (r"new job is waiting", "the scheduler has not looked at it yet"),
    (r"load threshold|load information|higher .*priority jobs", "its hosts are busy"),
    (
        r"closed by|locked by|unreach|unavail|unable to reach|host is down",
        "hosts that it needs are down or closed, perhaps for maintenance",
    ),
)
"""Pattern of LSF's words -> ours; the first is told where there are several."""

_MATCHERS = tuple((re.compile(pattern, re.IGNORECASE), words) for pattern, words in _PENDING)
_RESOURCES = {
    None: "resources",
    "mem": "memory",
    "swp": "swap space",
    "tmp": "space in /tmp",
    "slot": "slots",
}
_ONLY_SOME_HOSTS = re.compile(
    r"not specified in job submission|not usable to the queue|not the same type|"
    r"individual host-based reasons|candidate host pending reasons",
    re.IGNORECASE,
)
_ENDED_BY_OWNER = "it was ended with bkill"
_ENDED_BY_ADMIN = "an administrator ended it"
_ENDED: dict[str, tuple[State, str]] = {
    "TERM_ADMIN": ("cancelled", _ENDED_BY_ADMIN),
    "TERM_BUCKET_KILL": ("cancelled", _ENDED_BY_OWNER),
    "TERM_CPULIMIT": ("failed", "its processes used more CPU time than the queue allows"),
    "TERM_CWD_NOTEXIST": ("failed", "the directory that it was submitted from is not on the host"),
    "TERM_DEADLINE": ("failed", "its deadline was reached"),
    "TERM_EXTERNAL_SIGNAL": ("failed", "a signal that did not come from LSF ended it"),
    "TERM_FORCE_ADMIN": ("cancelled", _ENDED_BY_ADMIN),
    "TERM_FORCE_OWNER": ("cancelled", _ENDED_BY_OWNER),
    "TERM_LOAD": ("failed", "LSF ended it: its host was overloaded"),
    "TERM_MEMLIMIT": (
        "failed",
        "the memory limit was reached; ask for more with --set resources.mem_gb=GB",
    ),
    "TERM_ORPHAN_SYSTEM": (
        "cancelled",
        "the run that it waited for did not end as --after requires, so LSF removed it",
    ),
    "TERM_OWNER": ("cancelled", _ENDED_BY_OWNER),
    "TERM_PREEMPT": ("preempted", "a job of a higher priority took its hosts"),
    "TERM_PROCESSLIMIT": ("failed", "it had more processes than the queue allows"),
    "TERM_RMIN": ("failed", "LSF ended it: a host was given back"),
    "TERM_RUNLIMIT": ("failed", "the run limit was reached"),
    "TERM_SWAP": ("failed", "the limit of swap space was reached"),
    "TERM_THREADLIMIT": ("failed", "it had more threads than the queue allows"),
    "TERM_WINDOW": ("failed", "the queue's time window has closed"),
    "TERM_ZOMBIE": ("failed", "LSF gave it up: its host could not be reached"),
}
_KEYWORD = re.compile(r"\bTERM_[A-Z_]+")


_REFUSED: tuple[tuple[str, str], ...] = (
    (
        r"illegal option -- g|-gpu\b|\bGPU\b",
        (
            "GPUs are asked for by lsf.gpu or lsf.gpu_rusage of the cluster profile; "
            "gpu_request: none asks for none"
        ),
    ),
    (
        r"illegal option -- (\w+)|-(\w+): (?:illegal|unknown|bad) option",
        "take -{0} out of lsf.options of the cluster profile: this LSF does not know it",
    ),
    (r"no such queue|queue has been closed", "name a queue with --partition, or partition"),
    (r"run ?limit", "ask for less with --time, or for another queue with --partition"),
    (r"project", "account of the cluster profile is the project: --account"),
    (
        r"too many (?:processors|slots|tasks)|(?:TASK|PROC|SLOT)LIMIT",
        "ask for fewer with --nodes, --gpus or cpus_per_gpu, or for another queue with --partition",
    ),
    (r"dependency|no matching job", "see --after: LSF must still know the job"),
    (r"more than once", "the site takes one -R only: take -R out of directives"),
)
"""Pattern of a refusal of bsub -> the key, or option, to change."""
_REFUSALS = tuple((re.compile(pattern, re.IGNORECASE), words) for pattern, words in _REFUSED)
_OF_MEMORY = (
    "lsf.mem_unit of the cluster profile is the site's unit of rusage[mem=...] (KB, MB or GB, "
    "where it takes no suffix), lsf.mem_per what it is counted per"
)
_RESOURCE_SYNTAX = re.compile(
    r"resource requirement|resreq|rusage|\bmem\b.*\bunit|\bmem=", re.IGNORECASE
)
_ASKED = (
    "nothing was submitted; what was asked for: hpcdist explain JOB, what the profile says: "
    "hpcdist cluster show, what the cluster has: bqueues"
)


def refused_hint(said: str, script: str) -> str:
    """Return what to change where bsub refuses a script in these words."""
    for pattern, words in _REFUSALS:
        if found := pattern.search(said):
            return f"{words.format(*filter(None, found.groups()))}; {_ASKED}"
    if _RESOURCE_SYNTAX.search(said):
        own = f"{_OF_MEMORY}; " if "rusage[" in script and "mem=" in script else ""
        return f"{own}constraint and directives have the rest of -R; {_ASKED}"
    return _ASKED


def plain_reason(text: str) -> str:
    """Return a sentence for the reasons that bjobs gives, with LSF's own words for it.

    Unknown ones are told as they are; without any, the scheduler has not said why.
    """
    parts = [" ".join(part.split()).rstrip(".") for part in re.split(r"[;\n]", text)]
    parts = [part for part in parts if part.strip("- ")]
    said = [part for part in parts if not _ONLY_SOME_HOSTS.search(part)] or parts
    for pattern, words in _MATCHERS:
        for part in said:
            if found := pattern.search(part):
                names = ["GPUs" if str(one).startswith("ngpus") else one for one in found.groups()]
                return f"{words.format(*(_RESOURCES.get(name, name) for name in names))} ({part})"
    return f"LSF says: {'; '.join(said)}" if said else "LSF does not say why"


def plain_end(exit_reason: str, exit_code: int | None) -> Condition:
    """Return the state of a job that LSF shows as EXIT, and why it ended."""
    keyword = _KEYWORD.search(exit_reason)
    code = "" if exit_code is None else f", exit code {exit_code}"
    if keyword and keyword[0] in _ENDED:
        state, words = _ENDED[keyword[0]]
        return Condition(state=state, reason=f"{words} ({keyword[0]}{code})")
    said = exit_reason.strip(" ;-")
    return Condition(state="failed", reason=f"LSF says EXIT{code}" + (f": {said}" if said else ""))
