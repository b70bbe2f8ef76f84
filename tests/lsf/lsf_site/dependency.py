"""-w: conditions on other jobs, such as `done(12) && exit(13[2])`."""

import re

from lsf_site.errors import not_submitted

_TERM = re.compile(r"(done|ended|exit)\((\d+)(?:\[(\d+|\*)\])?\)")


def parse(text):
    """[(function, id, index or None, or * for the same)]: all must come true."""
    found = [_TERM.fullmatch(term.strip()) for term in text.split("&&")]
    if None in found:
        raise not_submitted("Dependency condition syntax error")
    return [(term[1], int(term[2]), term[3]) for term in found]


def holds(terms, jobs, index=0):
    """Whether a condition is true now: True, False, or None where it never will be."""
    values = []
    for function, job_id, element in terms:
        wanted = str(index) if element == "*" else element
        found = [one for one in jobs if one.id == job_id and wanted in (None, str(one.index))]
        values += [_holds_for(function, one) for one in found] or [None]
    return None if None in values else all(values)


def _holds_for(function, job):
    if not job.has_ended or function == "ended":
        return job.has_ended
    return (job.state == "DONE") == (function == "done") or None
