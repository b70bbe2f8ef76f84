"""The options of bsub: from the command line and from the script's #BSUB lines."""

import re
import shlex
from dataclasses import dataclass

from lsf_site.errors import RefusedError

_DIRECTIVE = re.compile(r"^\s*#\s*BSUB\b(.*)$")

_OLD_WITH_VALUE = frozenset("abcefgijmnopqstuwCDEFGJLMPRSTUWXk")
_OLD_FLAGS = frozenset("hxrNBIKHV")
_NEW_WITH_VALUE = _OLD_WITH_VALUE | {
    *("oo", "eo", "gpu", "wa", "wt", "We", "nnodes", "alloc_flags", "app", "sla", "cwd", "env"),
    *("Jd", "sp", "Ep", "Q", "U", "v", "hostfile", "network", "data", "core_isolation", "q"),
    *("cn_mem", "cn_cu", "Zs", "ext", "freq", "stage", "step_cgroup", "csm", "jobaff"),
}
_NEW_FLAGS = _OLD_FLAGS | {"rn", "ti", "ul", "Ip", "Is", "IS", "ISp", "ISs", "Ne", "notify", "ptl"}
_REPEATED = frozenset("R")


@dataclass(frozen=True, kw_only=True)
class Words:
    """What a line of options says: values by option, and what comes after them."""

    values: dict
    command: list


def read_options(words, engine):
    """Options up to the first word that is none."""
    with_value = _NEW_WITH_VALUE if engine.knows_all_options else _OLD_WITH_VALUE
    flags = _NEW_FLAGS if engine.knows_all_options else _OLD_FLAGS
    values, rest = {}, list(words)
    while rest and rest[0].startswith("-") and len(rest[0]) > 1:
        name = rest.pop(0)[1:]
        if name in flags:
            values[name] = True
        elif name in with_value:
            _put(values, name, rest.pop(0), engine)
        else:
            raise RefusedError(f"bsub: illegal option -- {name}\n{USAGE}")
    return Words(values=values, command=rest)


USAGE = "Usage: bsub [options] command [arguments]"


def _put(values, name, value, engine):
    if name in _REPEATED:
        values.setdefault(name, []).append(value)
    else:
        values[name] = value


def read_directives(script, engine):
    """The options of a script's #BSUB lines, wherever they are.

    Words that are no options are passed over. A space after the `#` makes no difference.
    """
    values = {}
    for line in script.splitlines():
        if found := _DIRECTIVE.match(line):
            for name, value in _read_line(found[1], engine).items():
                if name in _REPEATED:
                    for one in value:
                        _put(values, name, one, engine)
                else:
                    values[name] = value
    return values


def _read_line(text, engine):
    words = shlex.split(text, comments=True)
    values = {}
    while words:
        line = read_options(words, engine)
        values |= line.values
        words = line.command[1:]
    return values
