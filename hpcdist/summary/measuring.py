"""From run directories to measured runs: read in this process, or taken from what is kept beside a
run from its end, or from the first summary, to the next one.

    <run>/figures.msgpack

The file is private, written whole, and only ever a shortcut: what is torn, foreign or of another
version counts as none. It begins with a digest of the rest, as a flipped bit would give another
number. It says by a digest of the sizes, times and inodes of the run's files what it was made from;
contents are not read. Writers of a run append, or write aside and rename; either changes them.

Not kept is what changed just now, when a change to come may have the same time, nor a run without a
verdict that changed within the hour: it may be going on.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from hpcdist.base import files
from hpcdist.base.ownership import is_own
from hpcdist.base.progress import track
from hpcdist.base.version import __version__
from hpcdist.runs.run import Run
from hpcdist.summary.figures.peers import Replicas
from hpcdist.summary.figures.rank import measure_rank
from hpcdist.summary.figures.run import MeasuredRun, measure_run
from hpcdist.summary.figures.usage import measure_node
from hpcdist.summary.read import collect
from hpcdist.summary.read.records import Fault

_LARGE_RUN_BYTES = 64_000_000
"""Of a run with as many, no more of each rank is in memory than the figures need."""
_SPANS_OF_RUN = 2_000_000
_LEAST_SPANS = 200
"""Ten for each of the twenty blocks over which a run's spread is taken."""
_COARSEST_CLOCK_S = 2.0
"""Resolution of file systems' times: until then a second change may leave the same ones."""
_QUIET_S = 3600.0
_SEAL_BYTES = hashlib.sha256().digest_size


class Measurement(Struct, frozen=True, kw_only=True):
    """The content of a run directory, independent of the options of a summary."""

    run: MeasuredRun | None
    """None where it is no run; without verdict its state is None."""
    faults: list[Fault]


def measure(run: Run, *, is_large: bool = False) -> Measurement:
    """Read a run directory, rank by rank; `is_large`: with no more of each rank in memory than the
    figures need."""
    record = collect.read_run(run)
    if isinstance(record, Fault):
        return Measurement(run=None, faults=[record])
    faults = [*record.faults]
    ranks, replicas = [], Replicas()
    event_files = run.event_files()
    # The stretches of all ranks are in memory at once.
    most_spans = max(_LEAST_SPANS, _SPANS_OF_RUN // max(1, len(event_files)))
    for number, attempt, path in event_files:
        rank = collect.read_rank(path, rank=number, attempt=attempt)
        faults += rank.faults
        figures = measure_rank(rank, most_spans=most_spans if is_large else None)
        ranks.append(replicas.take(figures))
    nodes = []
    for number, attempt, path in run.usage_files():
        node = collect.read_node(path, node=number, attempt=attempt)
        faults += node.faults
        nodes.append(measure_node(node))
    measured = measure_run(record, ranks, nodes, parting=replicas.parting())
    return Measurement(run=measured, faults=faults)


def find_measurements(runs: Sequence[Run], *, uses_kept: bool) -> list[Measurement]:
    """Return a measurement for each of the runs. With `uses_kept` figures that are kept beside
    runs which have not changed since are taken, and those of the user's other runs are kept."""
    # Taken before anything is read: what changes meanwhile has another one the next time.
    now_s, version = time.time(), code_version()
    fingerprints = [take_fingerprint(run) for run in runs]
    measurements: dict[int, Measurement] = {}
    if uses_kept:
        for index, (run, fingerprint) in enumerate(zip(runs, fingerprints, strict=True)):
            if kept := read_kept(run, fingerprint, version=version):
                measurements[index] = kept
    missing = [index for index in range(len(runs)) if index not in measurements]
    for index in track(missing, "reading runs", total=len(missing)):
        run, fingerprint = runs[index], fingerprints[index]
        found = measure(run, is_large=fingerprint.event_bytes >= _LARGE_RUN_BYTES)
        measurements[index] = found
        # What is no run is read at once, and not worth keeping.
        if uses_kept and found.run and is_own(run.path):
            has_verdict = found.run.figures.verdict is not None
            if is_settled(fingerprint, has_verdict=has_verdict, now_s=now_s):
                with suppress(OSError):  # read again the next time
                    write_kept(run, fingerprint, found, version=version)
    shared: dict[bytes, dict[str, Any]] = {}
    return [_share(measurements[index], shared) for index in range(len(runs))]


def keep_figures(run: Run) -> None:
    """Keep the figures of a run that has ended beside it. Raises OSError."""
    fingerprint = take_fingerprint(run)
    measurement = measure(run)
    if measurement.run is None or measurement.run.figures.verdict is None:
        return
    if take_fingerprint(run) == fingerprint:
        write_kept(run, fingerprint, measurement, version=code_version())


def _share(measurement: Measurement, shared: dict[bytes, dict[str, Any]]) -> Measurement:
    """Replace the conditions by those of an equal run: they are the larger part of one, and mostly
    alike."""
    run = measurement.run
    if run is None:
        return measurement
    try:
        key = msgspec.msgpack.encode(run.conditions)
    except (OverflowError, UnicodeError):
        return measurement
    conditions = shared.setdefault(key, run.conditions)
    return msgspec.structs.replace(
        measurement, run=msgspec.structs.replace(run, conditions=conditions)
    )


class _Kept(Struct, frozen=True, kw_only=True):
    """Content of a file."""

    version: str
    """Version of the code that made it."""
    digest: bytes
    """Digest of the fingerprint."""
    content: Measurement


_decoder = msgspec.msgpack.Decoder(_Kept)


def write_kept(
    run: Run, fingerprint: Fingerprint, measurement: Measurement, *, version: str
) -> None:
    """Keep what was made of a run with this fingerprint, but what only Python can hold: names that
    are no text, numbers beyond 64 bits. Raises OSError."""
    kept = _Kept(version=version, digest=fingerprint.digest, content=measurement)
    with suppress(OverflowError, UnicodeError):
        data = msgspec.msgpack.encode(kept)
        files.write_whole(run.figures_file, hashlib.sha256(data).digest() + data)


def read_kept(run: Run, fingerprint: Fingerprint, *, version: str) -> Measurement | None:
    """Return what was kept; None where it is not of the run as it is now."""
    try:
        with files.open_private(run.figures_file) as file:
            data = file.read(files.MOST_JSON_BYTES)
        content = data[_SEAL_BYTES:]
        if hashlib.sha256(content).digest() != data[:_SEAL_BYTES]:
            return None
        kept = _decoder.decode(content)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    is_same = (kept.version, kept.digest) == (version, fingerprint.digest)
    return kept.content if is_same else None


def is_settled(fingerprint: Fingerprint, *, has_verdict: bool, now_s: float) -> bool:
    """Return whether a change after the Unix time `now_s` must give another fingerprint, and is
    not to be expected soon."""
    return now_s - fingerprint.changed_s > (_COARSEST_CLOCK_S if has_verdict else _QUIET_S)


_SMALL_FILES = ("spec.json", "submission.json", "verdict.json")
_ATTEMPT_FILES = ("begin.json", "verdict.json")


class Fingerprint(NamedTuple):
    """The files of a run at one moment."""

    digest: bytes
    event_bytes: int
    changed_s: float
    """Unix time of the last change to any of them."""


def take_fingerprint(run: Run) -> Fingerprint:
    """Fingerprint all files of a run that the summary reads; never fails."""
    folder = str(run.path)
    attempts = _names(f"{folder}/attempts")
    events = _names(f"{folder}/events")
    names = [
        *_SMALL_FILES,
        *(f"events/{place}" for place in events),
        *(f"attempts/{attempt}/{name}" for attempt in attempts for name in _ATTEMPT_FILES),
    ]
    found = [_status(f"{folder}/{name}") for name in names]
    content = repr((attempts, names, found)).encode(errors="surrogateescape")
    first_event = len(_SMALL_FILES)
    return Fingerprint(
        hashlib.blake2b(content, digest_size=16).digest(),
        sum(size for size, *_ in found[first_event : first_event + len(events)]),
        max(max(modified, changed) for _, _, modified, changed in found) / 1e9,
    )


def _status(path: str) -> tuple[int, int, int, int]:
    """Return size, inode and times of a file; zeros where there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return (0, 0, 0, 0)
    return stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns


def code_version() -> str:
    """Return a digest of the code that makes the figures: other code, other figures, whatever its
    version says."""
    sources = sorted(_sources(str(Path(__file__).parents[1])))
    digest = hashlib.blake2b(repr(sources).encode(errors="surrogateescape"), digest_size=8)
    return f"{__version__} {digest.hexdigest()}"


def _sources(folder: str) -> Iterator[tuple[str, int, int]]:
    """Yield path, size and time of each of our modules."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                stat = entry.stat()
                yield entry.path, stat.st_size, stat.st_mtime_ns
            elif entry.name != "__pycache__" and entry.is_dir():
                yield from _sources(entry.path)


def _names(folder: str) -> list[str]:
    try:
        return sorted(files.list_names(folder))
    except OSError:
        return []
