"""Time limits as people and schedulers write them."""

from __future__ import annotations

import re

from hpcdist.base.errors import JobError

_MINUTES = re.compile(r"\d+(?:\.\d+)?")
_CLOCK = re.compile(r"(?:(?P<days>\d+)-)?(?P<clock>\d+(?::\d+){0,2})")
_CLOCK_MIN = {
    # days given, number of fields -> minutes of a unit of each field
    (False, 2): (1, 1 / 60),
    (False, 3): (60, 1, 1 / 60),
    (True, 1): (60,),
    (True, 2): (60, 1),
    (True, 3): (60, 1, 1 / 60),
}
"""sbatch's forms: MM, MM:SS, H:MM:SS, D-H, D-H:MM and D-H:MM:SS."""
_DAY_MIN = 24 * 60


def parse_minutes(text: str, *, origin: str) -> float:
    """A time limit, written as minutes or in one of sbatch's forms, in minutes.

    Raises JobError, which names `origin`.
    """
    stripped = text.strip()
    if _MINUTES.fullmatch(stripped):
        return float(stripped)
    match = _CLOCK.fullmatch(stripped)
    fields = match["clock"].split(":") if match else []
    units = _CLOCK_MIN.get((bool(match and match["days"]), len(fields)))
    if match is None or units is None:
        raise JobError(
            f"{origin} {text}: must be a time limit in minutes, as H:MM:SS, or as D-HH:MM:SS",
            hint=f"for example {origin} 90, {origin} 1:30:00 or {origin} 2-00:00:00",
        )
    clock_min = sum(int(field) * unit for field, unit in zip(fields, units, strict=True))
    return int(match["days"] or 0) * _DAY_MIN + clock_min
