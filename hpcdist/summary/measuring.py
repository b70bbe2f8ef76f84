"""From run directories to measured runs: read, or taken from what is kept beside a run from its
end, or from the first summary, to the next one.

    <run>/figures.msgpack

The file is private, written whole, and only ever a shortcut: what is torn, foreign or of another
version counts as none. It begins with a digest of the rest, as a flipped bit would give another
number. It says by a digest of the sizes, times and inodes of the run's files, and of our own code,
what it was made from; contents are not read. Writers of a run append, or write aside and rename;
either changes them.

Not kept is what changed just now, when a change to come may have the same time, nor a run without a
verdict that changed within the hour: it may be going on.
"""

from __future__ import annotations

import functools
import hashlib
import os
import time
from collections.abc import Sequence
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
from hpcdist.summary.figures.usage import Usage
from hpcdist.summary.read.collect import read_run
from hpcdist.summary.read.event_file import Fault, read_events

_COARSEST_CLOCK_S = 2.0
"""Resolution of file systems' times: until then a second change may leave the same ones."""
_QUIET_S = 3600.0
_MOST_BYTES = 256_000_000
_SEAL_BYTES = hashlib.sha256().digest_size


class Measurement(Struct, frozen=True, kw_only=True):
    """The content of a run directory, independent of the options of a summary."""

    run: MeasuredRun | None
    """None where it is no run; without verdict its state is None."""
    faults: list[Fault]


def measure(run: Run) -> Measurement:
    """Read a run directory, one file after the other, so that memory stays flat."""
    record = read_run(run)
    if isinstance(record, Fault):
        return Measurement(run=None, faults=[record])
    faults = [*record.faults]
    event_files = run.event_files()
    lowest: dict[int, int] = {}
    for number, attempt, _ in event_files:
        lowest[attempt] = min(number, lowest.get(attempt, number))
    ranks, replicas = [], Replicas()
    for number, attempt, path in event_files:
        events = read_events(path, number=number, attempt=attempt)
        faults += events.faults
        replicas.add(events)
        ranks.append(measure_rank(events, has_progress=lowest[attempt] == number))
    usage = Usage()
    for number, attempt, path in run.usage_files():
        events = read_events(path, number=number, attempt=attempt)
        faults += events.faults
        usage.add(events)
    measured = measure_run(record, ranks, usage, parting=replicas.parting())
    return Measurement(run=measured, faults=faults)


def find_measurements(runs: Sequence[Run], *, uses_kept: bool) -> list[Measurement]:
    """Return a measurement for each of the runs. With `uses_kept` figures that are kept beside
    runs which have not changed since are taken, and those of the user's other runs are kept."""
    now_s = time.time()
    # Taken before anything is read: what changes meanwhile has another one the next time.
    fingerprints = [take_fingerprint(run) for run in runs]
    measurements = []
    # Conditions are the larger part of a run, and mostly alike: equal ones are one object.
    shared: dict[str, dict[str, Any]] = {}
    pairs = list(zip(runs, fingerprints, strict=True))
    for run, fingerprint in track(pairs, "reading runs"):
        found = read_kept(run, fingerprint) if uses_kept else None
        if found is None:
            found = measure(run)
            # What is no run is read at once, and not worth keeping.
            if uses_kept and found.run and is_own(run.path):
                still_s = _COARSEST_CLOCK_S if found.run.figures.verdict else _QUIET_S
                if now_s - fingerprint.changed_s > still_s:
                    with suppress(OSError):  # read again the next time
                        write_kept(run, fingerprint, found)
        if (own := found.run) is not None:
            conditions = shared.setdefault(repr(own.conditions), own.conditions)
            own = msgspec.structs.replace(own, conditions=conditions)
            found = msgspec.structs.replace(found, run=own)
        measurements.append(found)
    return measurements


def keep_figures(run: Run) -> None:
    """Keep the figures of a run that has ended beside it. Raises OSError."""
    fingerprint = take_fingerprint(run)
    measurement = measure(run)
    if measurement.run is None or measurement.run.figures.verdict is None:
        return
    if take_fingerprint(run) == fingerprint:
        write_kept(run, fingerprint, measurement)


class _Kept(Struct, frozen=True, kw_only=True):
    """Content of a file."""

    digest: bytes
    """Digest of the fingerprint."""
    content: Measurement


_decoder = msgspec.msgpack.Decoder(_Kept)


def write_kept(run: Run, fingerprint: Fingerprint, measurement: Measurement) -> None:
    """Keep what was made of a run with this fingerprint, but what only Python can hold: names that
    are no text, numbers beyond 64 bits. Raises OSError."""
    with suppress(OverflowError, UnicodeError):
        data = msgspec.msgpack.encode(_Kept(digest=fingerprint.digest, content=measurement))
        files.write_whole(run.figures_file, hashlib.sha256(data).digest() + data)


def read_kept(run: Run, fingerprint: Fingerprint) -> Measurement | None:
    """Return what was kept; None where it is not of the run as it is now."""
    try:
        with files.open_private(run.figures_file) as file:
            data = file.read(_MOST_BYTES)
        content = data[_SEAL_BYTES:]
        if hashlib.sha256(content).digest() != data[:_SEAL_BYTES]:
            return None
        kept = _decoder.decode(content)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return kept.content if kept.digest == fingerprint.digest else None


_SMALL_FILES = ("spec.json", "submission.json", "verdict.json")
_ATTEMPT_FILES = ("begin.json", "verdict.json")


class Fingerprint(NamedTuple):
    """The files of a run at one moment, and our own code."""

    digest: bytes
    changed_s: float
    """Unix time of the last change to any of them."""


def take_fingerprint(run: Run) -> Fingerprint:
    """Fingerprint all files of a run that the summary reads; never fails."""
    folder = str(run.path)
    attempts = _names(f"{folder}/attempts")
    names = [
        *_SMALL_FILES,
        *(f"events/{place}" for place in _names(f"{folder}/events")),
        *(f"attempts/{attempt}/{name}" for attempt in attempts for name in _ATTEMPT_FILES),
    ]
    found = [_status(f"{folder}/{name}") for name in names]
    content = repr((code_version(), attempts, names, found)).encode(errors="surrogateescape")
    changed_ns = max(max(modified, changed) for _, _, modified, changed in found)
    return Fingerprint(hashlib.blake2b(content, digest_size=16).digest(), changed_ns / 1e9)


def _status(path: str) -> tuple[int, int, int, int]:
    """Return size, inode and times of a file; zeros where there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return (0, 0, 0, 0)
    return stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns


@functools.cache
def code_version() -> str:
    """Return a digest of the code that makes the figures: other code, other figures, whatever its
    version says."""
    folders = sorted((folder, names) for folder, _, names in os.walk(Path(__file__).parents[1]))
    paths = [f"{folder}/{name}" for folder, names in folders for name in sorted(names)]
    sources = [(path, _status(path)) for path in paths if path.endswith(".py")]
    digest = hashlib.blake2b(repr(sources).encode(errors="surrogateescape"), digest_size=8)
    return f"{__version__} {digest.hexdigest()}"


def _names(folder: str) -> list[str]:
    try:
        return sorted(files.list_names(folder))
    except OSError:
        return []
