"""The books of sacct: one call for any number of runs.

A job that was started again has a record for each of its lives, each followed by its steps'.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from hpcdist.machine.command import run_command
from hpcdist.schedulers.base import Accounting
from hpcdist.schedulers.slurm.queue import accounting_choice, unix_time

_TIMEOUT_S = 20.0
_FIELDS = (
    *("JobID", "State", "ExitCode", "Submit", "Eligible", "Start", "End", "ElapsedRaw"),
    *("NodeList", "MaxRSS", "TotalCPU", "ConsumedEnergyRaw"),
    "JobName",  # the last: it may hold what separates
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)")
_CPU_TIME = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_NO_VALUE = 0xFFFF_FFFE
"""NO_VAL of slurm.h; as many or more stand for not known, as 0 does where nothing measures."""
_MOST = 100_000
"""Nodes; a larger list is damaged."""
_PART = re.compile(r"((?:[^,\[\]]|\[[^\]]*\])+)")
_PIECE = re.compile(r"\[([^\]]*)\]|([^\[\]]+)")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One line of sacct: a life of a job, or a step in one."""

    job_id: str
    """123 or 123_4, of steps too."""
    step: str
    """batch, extern, 0; empty for the job."""
    name: str
    state: str
    exit_code: str
    """Code and signal, `1:0`."""
    submit_s: float | None
    eligible_s: float | None
    start_s: float | None
    end_s: float | None
    elapsed_s: float | None
    nodes: str
    max_rss_bytes: int | None
    cpu_time_s: float | None
    energy_j: float | None


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
    jobs: dict[tuple[str, str], list[list[Record]]] = {}
    lives: dict[str, list[Record]] = {}
    for record in _records(text):
        if not record.step:
            lives[record.job_id] = [record]
            jobs.setdefault((record.job_id, record.name), []).append(lives[record.job_id])
        elif record.job_id in lives:
            lives[record.job_id].append(record)
    return {key: _accounting(found) for key, found in jobs.items()}


def _accounting(lives: Sequence[Sequence[Record]]) -> Accounting:
    """Sum up lives: the records of each, that of the job first; the oldest life first."""
    jobs = [life[0] for life in lives]
    records = [record for life in lives for record in life]
    code, _, signal = jobs[-1].exit_code.partition(":")
    return Accounting(
        job_id=jobs[-1].job_id,
        state=jobs[-1].state,
        submit_s=jobs[0].submit_s,
        start_s=min((job.start_s for job in jobs if job.start_s is not None), default=None),
        end_s=jobs[-1].end_s,
        queue_wait_s=_sum(map(_wait_s, jobs)),
        elapsed_s=_sum(job.elapsed_s for job in jobs if job.start_s is not None),
        exit_code=int(code) if code.isdecimal() and jobs[-1].end_s is not None else None,
        signal=int(signal) if signal.isdecimal() and signal != "0" else None,
        nodes=expand_nodes(jobs[-1].nodes),
        max_rss_bytes=max((r.max_rss_bytes for r in records if r.max_rss_bytes), default=None),
        cpu_time_s=_sum(job.cpu_time_s for job in jobs if job.start_s is not None),
        # In older versions only the steps' records have values.
        energy_j=_sum(
            life[0].energy_j or _sum(record.energy_j for record in life[1:]) for life in lives
        ),
    )


def _wait_s(job: Record) -> float | None:
    """Return the wait since the job was eligible: no job that it depends on went on, nothing held
    it."""
    since_s = job.submit_s if job.eligible_s is None else job.eligible_s
    return None if since_s is None or job.start_s is None else max(0.0, job.start_s - since_s)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _records(text: str) -> Iterator[Record]:
    for line in text.splitlines():
        row = line.split("|", len(_FIELDS) - 1)
        if len(row) != len(_FIELDS):
            continue
        cells = dict(zip(_FIELDS, row, strict=True))
        job_id, _, step = cells["JobID"].partition(".")
        yield Record(
            job_id=job_id,
            step=step,
            name=cells["JobName"],
            state=cells["State"].partition(" ")[0],  # CANCELLED by 1000
            exit_code=cells["ExitCode"],
            submit_s=unix_time(cells["Submit"]),
            eligible_s=unix_time(cells["Eligible"]),
            start_s=unix_time(cells["Start"]),
            end_s=unix_time(cells["End"]),
            elapsed_s=float(cells["ElapsedRaw"]) if cells["ElapsedRaw"].isdecimal() else None,
            nodes=cells["NodeList"],
            max_rss_bytes=parse_size(cells["MaxRSS"]),
            cpu_time_s=parse_cpu_time(cells["TotalCPU"]),
            energy_j=_known(cells["ConsumedEnergyRaw"]),
        )


def parse_size(text: str) -> int | None:
    """Return the bytes of `1234K`; None where sacct says nothing."""
    found = _SIZE.fullmatch(text)
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


def parse_cpu_time(text: str) -> float | None:
    """Return the seconds of `1-02:03:04` or `00:01.250`."""
    found = _CPU_TIME.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes = (int(part or 0) for part in found.group(1, 2, 3))
    return ((days * 24 + hours) * 60 + minutes) * 60 + float(found[4])


def _known(text: str) -> float | None:
    value = int(text) if text.isdecimal() else 0
    return float(value) if 0 < value < _NO_VALUE else None


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
