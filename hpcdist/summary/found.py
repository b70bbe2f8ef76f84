"""Runs with their figures: those of the cache, and for the rest what their directories hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from hpcdist.runs.run import Run
from hpcdist.summary.measuring import (
    Measurement,
    choose_num_workers,
    decode,
    encode_conditions,
    measure_all,
)
from hpcdist.summary.read.cache import SummaryCache, is_settled
from hpcdist.summary.read.fingerprint import Fingerprint, take_fingerprint


class _Asked(NamedTuple):
    run: Run
    fingerprint: Fingerprint


def find_measurements(
    runs: Sequence[Run],
    *,
    cache: SummaryCache | None,
    num_workers: int | None,
    warn: Callable[[str], None] | None,
) -> list[Measurement]:
    """A measurement for each of the runs; these arguments are described at `summarize`."""
    # Taken before anything is read: what changes meanwhile has another one the next time.
    now_s = time.time()
    asked = [_Asked(run, take_fingerprint(run)) for run in runs]
    shared: dict[bytes, dict[str, Any]] = {}
    found = [_share(_look_up(each, cache), shared) for each in asked]
    missing = [index for index, measurement in enumerate(found) if measurement is None]
    if num_workers is None:
        event_bytes = sum(asked[index].fingerprint.event_bytes for index in missing)
        num_workers = choose_num_workers(event_bytes)
    new: list[tuple[Run, Fingerprint, bytes]] = []
    measured = measure_all([runs[index] for index in missing], num_workers=num_workers)
    for index, content in zip(missing, measured, strict=True):
        measurement = content if isinstance(content, Measurement) else decode(content)
        found[index] = _share(measurement, shared)
        if isinstance(content, bytes) and _may_be_kept(measurement, asked[index], now_s):
            new.append((*asked[index], content))
    if cache is not None:
        _keep(cache, new, runs, warn)
    return [measurement for measurement in found if measurement is not None]


def _share(
    measurement: Measurement | None, shared: dict[bytes, dict[str, Any]]
) -> Measurement | None:
    """With the conditions of an equal run: they are the larger part of one, and mostly alike."""
    run = measurement.run if measurement else None
    if measurement is None or run is None or (key := encode_conditions(run)) is None:
        return measurement
    conditions = shared.setdefault(key, run.conditions)
    return msgspec.structs.replace(
        measurement, run=msgspec.structs.replace(run, conditions=conditions)
    )


def _look_up(asked: _Asked, cache: SummaryCache | None) -> Measurement | None:
    content = cache.find(*asked) if cache else None
    return None if content is None else decode(content)


def _may_be_kept(measurement: Measurement | None, asked: _Asked, now_s: float) -> bool:
    if measurement is None or measurement.run is None:  # no run: read at once
        return False
    has_verdict = measurement.run.summary.verdict is not None
    return is_settled(asked.fingerprint, has_verdict=has_verdict, now_s=now_s)


def _keep(
    cache: SummaryCache,
    new: Sequence[tuple[Run, Fingerprint, bytes]],
    runs: Sequence[Run],
    warn: Callable[[str], None] | None,
) -> None:
    try:
        cache.keep(new, asked=runs)
    except OSError as error:
        if warn is not None:
            warn(f"figures cannot be kept in {cache.folder}: {error.strerror}")
