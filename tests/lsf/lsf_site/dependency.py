"""-w: conditions on other jobs."""

import re
from fnmatch import fnmatchcase

from lsf_site.errors import not_submitted

_TOKEN = re.compile(
    r"\s*(&&|\|\||!|\(|\)|,|[<>=]=?|!=|\"[^\"]*\"|'[^']*'|[\w.*\-/]+(?:\[[^\]]*\])?)"
)
_FUNCTIONS = ("done", "ended", "exit", "started", "post_done", "post_err")
_COMPARE = {
    "==": int.__eq__,
    "=": int.__eq__,
    "!=": int.__ne__,
    "<": int.__lt__,
    ">": int.__gt__,
    "<=": int.__le__,
    ">=": int.__ge__,
}
SYNTAX = "Dependency condition syntax error"


def parse(text):
    """A tree of tuples: (and|or, left, right), (not, one), (function, job, operator, code)."""
    tokens = _tokens(text)
    tree = _either(tokens)
    if tokens:
        raise not_submitted(SYNTAX)
    return tree


def _tokens(text):
    tokens, position = [], 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if not match:
            raise not_submitted(SYNTAX)
        tokens.append(match[1])
        position = match.end()
    return tokens


def _either(tokens):
    left = _both(tokens)
    while tokens and tokens[0] == "||":
        tokens.pop(0)
        left = ("or", left, _both(tokens))
    return left


def _both(tokens):
    left = _one(tokens)
    while tokens and tokens[0] == "&&":
        tokens.pop(0)
        left = ("and", left, _one(tokens))
    return left


def _one(tokens):
    token = _next(tokens)
    if token == "!":
        return ("not", _one(tokens))
    if token == "(":
        tree = _either(tokens)
        _expect(tokens, ")")
        return tree
    if tokens and tokens[0] == "(":
        return _call(token, tokens)
    if not re.match(r"[\w\"'*]", token):
        raise not_submitted(SYNTAX)
    return ("done", token.strip("\"'"), None, None)


def _call(function, tokens):
    if function not in _FUNCTIONS:
        raise not_submitted(SYNTAX)
    tokens.pop(0)
    job = _next(tokens).strip("\"'")
    operator = code = None
    if tokens and tokens[0] == "," and function == "exit":
        tokens.pop(0)
        operator = tokens.pop(0) if tokens and tokens[0] in _COMPARE else "=="
        code = _next(tokens)
        if not code.isdigit():
            raise not_submitted(SYNTAX)
    _expect(tokens, ")")
    return (function, job, operator, code and int(code))


def _next(tokens):
    if not tokens:
        raise not_submitted(SYNTAX)
    return tokens.pop(0)


def _expect(tokens, token):
    if _next(tokens) != token:
        raise not_submitted(SYNTAX)


def leaves(tree):
    """The jobs that a condition names."""
    if tree[0] in ("and", "or", "not"):
        return [name for part in tree[1:] for name in leaves(part)]
    return [tree[1]]


def named_jobs(name, jobs):
    """Those that an id, an element, a name or a pattern of names means; all of an array."""
    stem, bracket, inner = name.partition("[")
    index = inner.rstrip("]")
    found = [job for job in jobs if _is_called(job, stem)]
    if found and not stem.isdigit() and "*" not in stem:
        newest = max(job.id for job in found)  # a name means the last job that has it
        found = [job for job in found if job.id == newest]
    if bracket and index != "*":
        found = [job for job in found if str(job.index) == index]
    return found


def _is_called(job, stem):
    if stem.isdigit():
        return job.id == int(stem)
    return fnmatchcase(job.stem, stem)


def holds(tree, jobs, index=0):
    """Whether a condition is true now: True, False, or None where it never will be."""
    kind = tree[0]
    if kind == "not":
        return _negation(holds(tree[1], jobs, index))
    if kind in ("and", "or"):
        return _combine(kind, holds(tree[1], jobs, index), holds(tree[2], jobs, index))
    found = named_jobs(tree[1].replace("[*]", f"[{index}]") if index else tree[1], jobs)
    if not found:
        return None
    return _of_all([_of_one(tree, job) for job in found])


def _negation(value):
    return True if value is None else not value


def _combine(kind, left, right):
    if kind == "or":
        return True if left or right else (None if left is None and right is None else False)
    if left is None or right is None:
        return None
    return left and right


def _of_all(values):
    return None if None in values else all(values)


def _of_one(tree, job):
    function, _, operator, code = tree
    if function == "started":
        return job.has_started or job.has_ended
    if not job.has_ended:
        return False
    if function == "ended":
        return True
    return _as_wanted(function, operator, code, job) or None


def _as_wanted(function, operator, code, job):
    if function in ("done", "post_done"):
        return job.state == "DONE"
    if function == "post_err" or job.state == "DONE":
        return False
    return operator is None or _COMPARE[operator](job.exit_code or 0, code)
