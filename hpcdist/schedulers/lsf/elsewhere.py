"""Going on without hosts that were lost: their names, and the request that leaves them out.

LSF calls a lost host ok for more than half a minute, and would give it to the job at once again.
Pure.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence

from hpcdist.cluster.requirement import (
    merge_requirements,
    parse_requirement,
    requirement_of,
    write_requirement,
)
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.lsf.site import Host

_LOST_S = 3600.0
"""Time for which a lost host is left out; later it may be back."""
_MOST_HOSTS = 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 15.0, 300.0
_REQUIREMENT = re.compile(r"^#BSUB (-R .*)$", re.MULTILINE)
_DIRECTIVE = re.compile(r"^#BSUB ", re.MULTILINE)
_PLAIN = re.compile(r"[A-Za-z]\w*")


def lost_hosts(ends: Iterable[Verdict], *, now_s: float) -> dict[str, float]:
    """Return the hosts that a run has lost lately, by the verdicts on its attempts, and when."""
    found = {
        end.host: end.time_s
        for end in ends
        if end.host and end.time_s and (end.try_elsewhere or end.kind == "agent_lost")
    }
    recent = sorted((at_s, host) for host, at_s in found.items() if now_s - at_s < _LOST_S)
    return {host: at_s for at_s, host in recent[-_MOST_HOSTS:]}


def without_hosts(script: str, hosts: Iterable[str]) -> str:
    """Return a job's script that asks for other hosts, in the one -R string that it may have."""
    excluded = " && ".join(f"hname!={_name(host)}" for host in hosts)
    line = _REQUIREMENT.search(script)
    own = parse_requirement(requirement_of(line[1]) or "") if line else {}
    merged = write_requirement(merge_requirements([own, {"select": excluded}]))
    if line:
        return f'{script[: line.start()]}#BSUB -R "{merged}"{script[line.end() :]}'
    return _DIRECTIVE.sub(lambda found: f'#BSUB -R "{merged}"\n{found[0]}', script, count=1)


def _name(host: str) -> str:
    return host if _PLAIN.fullmatch(host) else f"'{host}'"


def has_others(hosts: Sequence[Host], lost: Iterable[str], *, nodes: int, slots: int) -> bool:
    """Return whether so many hosts of that size are up besides the lost ones; True where nothing is
    known of them."""
    left_out = set(lost)
    others = [
        host
        for host in hosts
        if host.is_up and host.name not in left_out and (host.slots is None or host.slots >= slots)
    ]
    return not hosts or len(others) >= nodes


def pause_s(ends: Mapping[int, Verdict]) -> float:
    """Return how long to wait before the same hosts are tried again: longer after each start in a
    row that failed for a host."""
    in_a_row = 0
    for attempt in sorted(ends, reverse=True):
        if not ends[attempt].try_elsewhere:
            break
        in_a_row += 1
    return float(min(_FIRST_PAUSE_S * 2 ** max(0, in_a_row - 1), _LONGEST_PAUSE_S))


def elsewhere_sentence(lost: Mapping[str, float]) -> str:
    """Return what status tells of the next start."""
    told = [
        f"{host}, lost at {time.strftime('%H:%M', time.localtime(at_s))}"
        for host, at_s in lost.items()
    ]
    return f"it starts again without {'; '.join(told)}"
