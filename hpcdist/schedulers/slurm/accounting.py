"""The books of sacct: one call for any number of runs.

A job that was started again has a record for each of its lives, each followed by its steps'.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from hpcdist.machine.command import run_command
from hpcdist.runs.spec import Accounting
from hpcdist.schedulers.slurm.queue import accounting_choice, unix_time

_TIMEOUT_S = 20.0
_FIELDS = (
    *("JobID", "State", "ExitCode", "Submit", "Eligible", "Start", "End", "ElapsedRaw"),
    *("NodeList", "MaxRSS", "ConsumedEnergyRaw"),
    "JobName",  # the last: it may hold what separates
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)")
_NO_VALUE = 0xFFFF_FFFE
"""NO_VAL of slurm.h; as many or more stand for not known, as 0 does where nothing measures."""
_MOST = 100_000
"""Nodes; a larger list is damaged."""
_PART = re.compile(r"((?:[^,\[\]]|\[[^\]]*\])+)")
_PIECE = re.compile(r"\[([^\]]*)\]|([^\[\]]+)")

_Row = dict[str, str]
"""A line of sacct by its fields: a life of a job, or a step in one."""


def ask_usage(job_ids: Iterable[str], *, since_s: float) -> dict[tuple[str, str], Accounting]:
    """Return what accounting has on jobs, by their ids and names; ids alone may be used again.

    `since_s` is the Unix time of the oldest one's submission. Raises SchedulerError.
    """
    argv = ["sacct", "--duplicates", "--noheader", "--parsable2", "--noconvert"]
    wanted = [f"--format={','.join(_FIELDS)}", *accounting_choice(job_ids, since_s)]
    environment = os.environ | {"SLURM_TIME_FORMAT": "standard"}
    done = run_command([*argv, *wanted], timeout_s=_TIMEOUT_S, environment=environment)
    return parse_usage(done.stdout)


def parse_usage(text: str) -> dict[tuple[str, str], Accounting]:
    """Return what the lines of sacct say, in the form that `ask_usage` asks for."""
    jobs: dict[tuple[str, str], list[list[_Row]]] = {}
    lives: dict[str, list[_Row]] = {}
    for line in text.splitlines():
        cells = line.split("|", len(_FIELDS) - 1)
        if len(cells) != len(_FIELDS):
            continue
        row = dict(zip(_FIELDS, cells, strict=True))
        job_id, _, step = row["JobID"].partition(".")  # of steps 123_4.batch, .extern or .0
        if not step:
            lives[job_id] = [row]
            jobs.setdefault((job_id, row["JobName"]), []).append(lives[job_id])
        elif job_id in lives:
            lives[job_id].append(row)
    return {(job_id, name): _accounting(job_id, found) for (job_id, name), found in jobs.items()}


def _accounting(job_id: str, lives: Sequence[Sequence[_Row]]) -> Accounting:
    """Sum up lives: the rows of each, that of the job first; the oldest life first."""
    jobs = [life[0] for life in lives]
    last = jobs[-1]
    started = [(job, time_s) for job in jobs if (time_s := unix_time(job["Start"])) is not None]
    sizes = [parse_size(row["MaxRSS"]) or 0 for life in lives for row in life]
    code = last["ExitCode"].partition(":")[0]
    return Accounting(
        job_id=job_id,
        state=last["State"].partition(" ")[0],  # CANCELLED by 1000
        queue_wait_s=_sum(_wait_s(job, time_s) for job, time_s in started),
        elapsed_s=_sum(
            float(job["ElapsedRaw"]) if job["ElapsedRaw"].isdecimal() else None
            for job, _ in started
        ),
        exit_code=int(code) if code.isdecimal() and unix_time(last["End"]) is not None else None,
        nodes=expand_nodes(last["NodeList"]),
        max_rss_bytes=max(sizes) or None,
        # In older versions only the steps' rows have values.
        energy_j=_sum(_energy_j(life[0]) or _sum(map(_energy_j, life[1:])) for life in lives),
    )


def _wait_s(job: _Row, start_s: float) -> float | None:
    """Return the wait since no job that it depends on went on, and nothing held it."""
    since_s = unix_time(job["Eligible"])
    since_s = unix_time(job["Submit"]) if since_s is None else since_s
    return None if since_s is None else max(0.0, start_s - since_s)


def _energy_j(row: _Row) -> float | None:
    text = row["ConsumedEnergyRaw"]
    value = int(text) if text.isdecimal() else 0
    return float(value) if 0 < value < _NO_VALUE else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def parse_size(text: str) -> int | None:
    """Return the bytes of `1234K`; None where sacct says nothing."""
    found = _SIZE.fullmatch(text)
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


def expand_nodes(text: str) -> list[str]:
    """`n[01-03,7],m1` -> n01, n02, n03, n7, m1; what is no list of nodes gives none."""
    if text.strip() in {"", "None assigned", "(null)", "Unknown"}:
        return []
    parts = (
        [list(_expand_ranges(ranges)) if ranges else [plain] for ranges, plain in pieces]
        for pieces in map(_PIECE.findall, _PART.findall(text.strip()))
    )
    names = ("".join(name) for pieces in parts for name in itertools.product(*pieces))
    return list(itertools.islice(names, _MOST))


def _expand_ranges(text: str) -> Iterator[str]:
    for one in text.split(","):
        first, _, last = one.partition("-")
        if first.isdecimal() and last.isdecimal() and int(last) - int(first) < _MOST:
            for number in range(int(first), int(last) + 1):
                yield f"{number:0{len(first)}d}"
        else:
            yield one
