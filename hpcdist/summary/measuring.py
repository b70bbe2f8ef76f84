"""From run directories to measured runs: from what is kept, or read in this process, or by workers
on several CPUs.

A worker reads one run at a time and gives its figures back as bytes, as they are kept. A run
of thousands of ranks is divided among the workers: each reads some of its ranks.
"""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from hpcdist.base.ownership import is_own
from hpcdist.base.progress import track
from hpcdist.machine.process import die_with_parent
from hpcdist.runs.run import Run
from hpcdist.summary.figures.peers import Replicas
from hpcdist.summary.figures.rank import RankFigures, measure_rank
from hpcdist.summary.figures.run import MeasuredRun, measure_run
from hpcdist.summary.figures.usage import measure_node
from hpcdist.summary.read import collect
from hpcdist.summary.read.cache import (
    code_version,
    is_settled,
    read_kept,
    take_fingerprint,
    write_kept,
)
from hpcdist.summary.read.records import Fault

_MOST_WORKERS = 16  # on a login node there are others, and one file system
_RUNS_AT_ONCE = 8  # given to a worker
_RANKS_AT_ONCE = 64
_BYTES_PER_WORKER = 8_000_000  # read in the time in which one starts
_LARGE_RUN_BYTES = 64_000_000
"""A run with as many is divided among the workers."""
_SPANS_OF_RUN = 2_000_000
_LEAST_SPANS = 200
"""Ten for each of the twenty blocks over which a run's spread is taken."""


T = TypeVar("T")
R = TypeVar("R")


class Measurement(Struct, frozen=True, kw_only=True):
    """The content of a run directory, independent of the options of a summary."""

    run: MeasuredRun | None
    """None where it is no run; without verdict its state is None."""
    faults: list[Fault]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Measurement)


_EventFile: TypeAlias = tuple[int, int, Path]
"""The number of a rank or node, the attempt, and its file."""
_MeasuredRanks: TypeAlias = list[tuple[RankFigures, list[Fault]]]


def measure(run: Run, *, is_large: bool = False, num_workers: int = 1) -> Measurement:
    """Read a run directory, rank by rank; the ranks of a large run by several workers, and with no
    more of each in memory than the figures need."""
    record = collect.read_run(run)
    if isinstance(record, Fault):
        return Measurement(run=None, faults=[record])
    faults = [*record.faults]
    ranks, replicas = [], Replicas()
    for figures, own_faults in _measure_ranks_of(run, num_workers, is_large=is_large):
        faults += own_faults
        ranks.append(replicas.take(figures))
    nodes = []
    for number, attempt, path in run.usage_files():
        node = collect.read_node(path, node=number, attempt=attempt)
        faults += node.faults
        nodes.append(measure_node(node))
    measured = measure_run(record, ranks, nodes, parting=replicas.parting())
    return Measurement(run=measured, faults=faults)


def _measure_ranks_of(
    run: Run, num_workers: int, *, is_large: bool
) -> Iterator[tuple[RankFigures, list[Fault]]]:
    """Yield the figures of each rank in each attempt, in order; in the end by this process alone,
    where workers cannot be had or were killed."""
    event_files, num_done = run.event_files(), 0
    places = range(0, len(event_files), _RANKS_AT_ONCE)
    parts = [event_files[place : place + _RANKS_AT_ONCE] for place in places]
    most_spans = _most_spans(len(event_files)) if is_large else None
    measure_some = functools.partial(_measure_ranks, most_spans=most_spans)
    if is_large and num_workers > 1 and threading.active_count() == 1:
        with closing(_spread(measure_some, parts, num_workers, at_once=1)) as measured:
            for some in measured:
                yield from some
                num_done += 1
    for part in parts[num_done:]:
        yield from measure_some(part)


def _measure_ranks(event_files: Sequence[_EventFile], *, most_spans: int | None) -> _MeasuredRanks:
    measured = []
    for number, attempt, path in event_files:
        rank = collect.read_rank(path, rank=number, attempt=attempt)
        measured.append((measure_rank(rank, most_spans=most_spans), rank.faults))
    return measured


def _most_spans(num_ranks: int) -> int:
    """Return how many stretches of each rank are kept: those of all ranks are in memory at once."""
    return max(_LEAST_SPANS, _SPANS_OF_RUN // max(1, num_ranks))


def _encode(value: Any) -> bytes | None:
    """Return a value as bytes; None for what only Python can hold: names that are no text, numbers
    beyond 64 bits."""
    try:
        return _encoder.encode(value)
    except (OverflowError, UnicodeError):
        return None


def _decode(content: bytes | msgspec.Raw | None) -> Measurement | None:
    """Return the measurement that was encoded; None for other bytes."""
    try:
        return None if content is None else _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def measure_all(
    runs: Sequence[Run], *, num_workers: int, are_large: Sequence[bool] | None = None
) -> Iterator[bytes | Measurement]:
    """Yield what each of the runs gives, in their order; as bytes where that can be.

    With several workers this process is forked, unless it has other threads.
    """
    large = are_large or [False] * len(runs)
    for is_large, group in itertools.groupby(zip(runs, large, strict=True), operator.itemgetter(1)):
        some = [run for run, _ in group]
        if is_large:
            for run in some:
                measurement = measure(run, is_large=True, num_workers=num_workers)
                yield _encode(measurement) or measurement
        else:
            yield from _measure_small(some, num_workers)


def _measure_small(runs: Sequence[Run], num_workers: int) -> Iterator[bytes | Measurement]:
    num_done = 0
    if num_workers > 1 and threading.active_count() == 1:
        paths = [str(run.path) for run in runs]
        spread = _spread(_measure_path, paths, num_workers, at_once=_RUNS_AT_ONCE)
        with closing(spread) as measured:
            for run, content in zip(runs, measured, strict=False):
                yield measure(run) if content is None else content
                num_done += 1
    for run in runs[num_done:]:
        measurement = measure(run)
        yield _encode(measurement) or measurement


def _spread(
    work: Callable[[T], R], items: Sequence[T], num_workers: int, *, at_once: int
) -> Generator[R, None, None]:
    """Yield what workers make of each item, until one is killed; nothing where none can be
    started."""
    from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
    from multiprocessing import get_context

    try:
        executor = ProcessPoolExecutor(
            num_workers,
            mp_context=get_context("fork"),
            initializer=_begin_work,
            initargs=(os.getpid(),),
        )
    except OSError:  # no semaphores: a machine without /dev/shm
        return
    try:
        yield from executor.map(work, items, chunksize=at_once)
    except (BrokenProcessPool, OSError):
        return
    finally:
        executor.shutdown(cancel_futures=True)


def _begin_work(parent_pid: int) -> None:
    """The parent answers Ctrl-C, and ends the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent_pid)
    gc.freeze()  # what is there from before the fork stays


def _measure_path(path: str) -> bytes | None:
    return _encode(measure(Run(Path(path))))


def find_measurements(
    runs: Sequence[Run], *, uses_kept: bool, num_workers: int | None
) -> list[Measurement]:
    """Return a measurement for each of the runs; these arguments are described at `summarize`."""
    # Taken before anything is read: what changes meanwhile has another one the next time.
    now_s, version = time.time(), code_version()
    fingerprints = [take_fingerprint(run) for run in runs]
    shared: dict[bytes, dict[str, Any]] = {}
    measurements: list[Measurement | None] = [None] * len(runs)
    if uses_kept:
        for index, (run, fingerprint) in enumerate(zip(runs, fingerprints, strict=True)):
            kept = read_kept(run, fingerprint, version=version)
            measurements[index] = _share(_decode(kept), shared)
    missing = [index for index, measurement in enumerate(measurements) if measurement is None]
    sizes = [fingerprints[index].event_bytes for index in missing]
    if num_workers is None:  # one for each CPU, but none where starting them takes as long
        worth = 1 + sum(sizes) // _BYTES_PER_WORKER
        num_workers = min(len(os.sched_getaffinity(0)), _MOST_WORKERS, worth)
    measured = measure_all(
        [runs[index] for index in missing],
        num_workers=num_workers,
        are_large=[num_bytes >= _LARGE_RUN_BYTES for num_bytes in sizes],
    )
    told = track(measured, "reading runs", total=len(missing))
    for index, content in zip(missing, told, strict=True):
        run, fingerprint = runs[index], fingerprints[index]
        measurement = content if isinstance(content, Measurement) else _decode(content)
        measurements[index] = _share(measurement, shared)
        # What is no run is read at once, and not worth keeping.
        if uses_kept and isinstance(content, bytes) and measurement and measurement.run:
            has_verdict = measurement.run.figures.verdict is not None
            if is_settled(fingerprint, has_verdict=has_verdict, now_s=now_s) and is_own(run.path):
                with suppress(OSError):  # read again the next time
                    write_kept(run, fingerprint, content, version=version)
    return [measurement for measurement in measurements if measurement is not None]


def keep_figures(run: Run) -> None:
    """Keep the figures of a run that has ended beside it. Raises OSError."""
    fingerprint = take_fingerprint(run)
    measurement = measure(run)
    if measurement.run is None or measurement.run.figures.verdict is None:
        return
    content = _encode(measurement)
    if content is not None and take_fingerprint(run) == fingerprint:
        write_kept(run, fingerprint, content, version=code_version())


def _share(
    measurement: Measurement | None, shared: dict[bytes, dict[str, Any]]
) -> Measurement | None:
    """Replace the conditions by those of an equal run: they are the larger part of one, and mostly
    alike."""
    run = measurement.run if measurement else None
    if measurement is None or run is None or (key := _encode(run.conditions)) is None:
        return measurement
    conditions = shared.setdefault(key, run.conditions)
    return msgspec.structs.replace(
        measurement, run=msgspec.structs.replace(run, conditions=conditions)
    )
