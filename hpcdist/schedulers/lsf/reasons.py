"""Reasons of LSF in plain words: why a job waits, how it ended, and why bsub refuses one. Pure.

LSF's own words are those of lsb_pendreason() in the LSF API reference, and of the page "Termination
reasons displayed by bacct, bhist, and bjobs" of IBM Spectrum LSF 10.1. Engines and versions differ
in small words, so patterns are looked for; for other reasons LSF's own words are given.
"""

from __future__ import annotations

import re

from hpcdist.runs.verdict import State

_PENDING = (
    (
        r"invalid or never satisfied",
        "the job that it waits for did not end as --after requires: it will never start",
    ),
    (r"dependency condition not satisfied", "it waits for the end of another job"),
    (r"array has reached its", "as many runs of the sweep as --max-parallel allows are active"),
    (r"suspended by (?:the )?user", "it is held; release it with: bresume JOBID"),
    (r"suspended by LSF admin", "an administrator holds it"),
    (r"no suitable hosts?", "no host fits: ask for less, or name another queue with --partition"),
    (r"spanning requirement", "it waits for hosts with as many free slots each as it asks for"),
    (r"time windows|windows? (?:is |are )?closed", "the queue starts jobs only at certain times"),
    (r"queue is inactiv", "the queue starts no jobs at present: an administrator has closed it"),
    (r"limit defined", "it waits until running jobs give something back: a limit is reached"),
    (r"user'?s? group", "your group uses all job slots that it may have"),
    (r"user has (?:reached|not)|per-user|user's .*slot limit", "you use all slots that you may"),
    (r"queue has (?:reached|not)|queue's per-\w+", "all job slots of the queue are in use"),
    (r"ngpus|\bgpus?\b", "it waits for GPUs to become free"),
    (r"\(mem\)", "it waits for hosts with enough free memory"),
    (r"requirements? .*not satisfied", "no host has at present what it asks for (-R)"),
    (r"job slot|slot\(s\)|slots? are reserved", "it waits for hosts to become free"),
    (r"unable to (?:access|set|open)", "LSF could not start it; does its folder exist there?"),
    (r"requeue|re-?scheduling|rescheduled", "it was requeued, and waits to be started again"),
    (r"new job is waiting", "the scheduler has not looked at it yet"),
    (r"load (?:threshold|information)|higher .*priority jobs|just started", "its hosts are busy"),
    (r"closed by|locked by|unreach|unavail|host is down", "hosts that it needs are down or closed"),
)
"""Pattern of LSF's words -> ours; the first is taken where there are several."""
_OF_SINGLE_HOSTS = re.compile(
    r"not specified in job submission|not usable to the queue|not the same type|"
    r"individual host-based reasons|candidate host pending reasons",
    re.IGNORECASE,
)
_ENDED: dict[str, tuple[State, str]] = {
    "TERM_OWNER": ("cancelled", "it was ended with bkill"),
    "TERM_FORCE_OWNER": ("cancelled", "it was ended with bkill"),
    "TERM_ADMIN": ("cancelled", "an administrator ended it"),
    "TERM_FORCE_ADMIN": ("cancelled", "an administrator ended it"),
    "TERM_ORPHAN_SYSTEM": ("cancelled", "the run it waited for did not end as --after requires"),
    "TERM_PREEMPT": ("preempted", "a job of a higher priority took its hosts"),
    "TERM_MEMLIMIT": ("failed", "the memory limit was reached; --set resources.mem_gb=GB"),
    "TERM_RUNLIMIT": ("failed", "the run limit was reached"),
    "TERM_ZOMBIE": ("failed", "LSF gave it up: its host could not be reached"),
}
_UNIT = (
    "lsf.mem_unit of the profile is the site's unit of rusage[mem=...] (KB, MB or GB, where it "
    "takes no suffix), lsf.mem_per what it is counted per; constraint and directives are in -R, too"
)
_REFUSED = (
    (r"illegal option -- g|-gpu\b|\bGPU\b", "lsf.gpu asks for GPUs; gpu_request: none for none"),
    (
        r"illegal option -- (\w+)|-(\w+): (?:illegal|unknown|bad) option",
        "take -{0} out of lsf.options of the cluster profile: this LSF does not know it",
    ),
    (r"no such queue|queue has been closed", "name a queue with --partition"),
    (r"run ?limit.*exceed|exceed.*(?:run|hard) ?limit", "ask for less with --time"),
    (r"run ?(?:time ?)?limit|wall ?(?:time|clock)|-W\b", "say how long it may run with --time"),
    (r"project", "account of the cluster profile is the project: --account"),
    (r"too many |(?:TASK|PROC|SLOT)LIMIT", "ask for less: --nodes, --gpus, or cpus_per_gpu"),
    (r"resource requirement|resreq|rusage|\bmem(?:ory)?\b", _UNIT),
)
"""Pattern of a refusal of bsub -> the key, or option, to change."""


def plain_reason(text: str) -> str:
    """Return a sentence for the reasons that bjobs gives, with LSF's own words for it."""
    parts = [" ".join(part.split()).rstrip(".") for part in re.split(r"[;\n]", text)]
    parts = [part for part in parts if part.strip("- ")]
    said = [part for part in parts if not _OF_SINGLE_HOSTS.search(part)] or parts
    for pattern, words in _PENDING:
        for part in said:
            if re.search(pattern, part, re.IGNORECASE):
                return f"{words} ({part})"
    return f"LSF says: {'; '.join(said)}" if said else "LSF does not say why"


def plain_end(exit_reason: str, exit_code: int | None) -> tuple[State, str]:
    """Return the state of the run whose job LSF shows as EXIT, and why it ended."""
    keyword = re.search(r"\bTERM_[A-Z_]+", exit_reason)
    code = "" if exit_code is None else f", exit code {exit_code}"
    if keyword and keyword[0] in _ENDED:
        state, words = _ENDED[keyword[0]]
        return state, f"{words} ({keyword[0]}{code})"
    said = exit_reason.strip(" ;-")
    return "failed", f"LSF says EXIT{code}" + (f": {said}" if said else "")


def refused_hint(said: str, script: str) -> str:
    """Return what to change where bsub refuses a script in these words."""
    asked = "nothing was submitted; see it with hpcdist explain JOB, the cluster with bqueues"
    if re.search(r"rusage|\bmem(?:ory)?\b", said) and "mem=" not in script:  # an esub demands it
        return f"ask for memory with --set resources.mem_gb=GB, or mem_gb of the profile; {asked}"
    for pattern, words in _REFUSED:
        if found := re.search(pattern, said, re.IGNORECASE):
            return f"{words.format(*filter(None, found.groups()))}; {asked}"
    return asked
