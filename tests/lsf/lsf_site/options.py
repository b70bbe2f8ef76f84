"""The options of bsub: from the command line and from the script's #BSUB lines."""

import re
import shlex
from dataclasses import dataclass

from lsf_site.errors import RefusedError, not_submitted

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
            if not rest:
                raise RefusedError(f"bsub: option requires an argument -- {name}\n{USAGE}")
            _put(values, name, rest.pop(0), engine)
        elif name[0] in with_value:  # -n4 to all; -wa URG to an engine without -wa
            _put(values, name[0], name[1:], engine)
        elif name[0] in flags and not engine.knows_all_options:
            values[name[0]] = True
        else:
            raise RefusedError(f"bsub: illegal option -- {name}\n{USAGE}")
    return Words(values=values, command=rest)


USAGE = "Usage: bsub [options] command [arguments]"


def _put(values, name, value, engine):
    if name in _REPEATED:
        values.setdefault(name, []).append(value)
        if len(values[name]) > 1 and not engine.merges_resources:
            raise not_submitted("Option -R was given more than once")
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
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        raise not_submitted("Unmatched quote in embedded option") from None
    values = {}
    while words:
        line = read_options(words, engine)
        values |= line.values
        words = line.command[1:]
    return values


def merge(embedded, given):
    """The command line's options count before the script's, except that -R adds up."""
    merged = embedded | given
    if "R" in embedded and "R" in given:
        merged["R"] = given["R"]
    for long, short in (("oo", "o"), ("eo", "e")):  # one output, however it is asked for
        if short in given:
            merged.pop(long, None)
        elif long in given:
            merged.pop(short, None)
    return merged
