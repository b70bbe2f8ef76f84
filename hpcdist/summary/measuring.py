"""From run directories to measured runs: read, or taken from what is kept beside a run from its
end, or from the first summary, to the next one.

    <run>/figures.msgpack

The file is private, written whole, and only ever a shortcut: what is torn, foreign or of another
version counts as none. It begins with a digest of the rest, as a flipped bit would give another
number. It says by a digest of the sizes, times and inodes of the run's files, and
of our own code, what it was made from; contents are not read. Writers of a run append, or write
aside and rename; either changes them. A run without a verdict is not kept: it may be going on.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

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

_SEAL_BYTES = hashlib.sha256().digest_size


class Measurement(Struct, frozen=True, kw_only=True):
    """The content of a run directory, independent of the options of a summary."""

    run: MeasuredRun | None
    """None where it is no run; without verdict its state is None."""
    faults: list[Fault]


def measure(run: Run, *, keeps: bool = False) -> Measurement:
    """Read a run directory, one file after the other, so that memory stays flat; `keeps`: keep the
    figures of a run that has ended beside it."""
    # Taken before anything is read: what changes meanwhile has another one the next time.
    digest = take_fingerprint(run) if keeps else b""
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
    measurement = Measurement(run=measured, faults=faults)
    if keeps and record.verdict is not None:
        write_kept(run, digest, measurement)
    return measurement


def find_measurements(runs: Sequence[Run], *, uses_kept: bool) -> list[Measurement]:
    """Return a measurement for each of the runs. With `uses_kept` figures that are kept beside
    runs which have not changed since are taken, and those of the user's other ended runs are
    kept."""
    measurements = []
    shared: dict[str, dict[str, Any]] = {}
    for run in track(runs, "reading runs"):
        found = read_kept(run) if uses_kept else None
        if found is None:
            found = measure(run, keeps=uses_kept and is_own(run.path))
            known = found.run.conditions if found.run else {}
            found = _with_conditions(found, shared.setdefault(repr(known), known))
        measurements.append(found)
    return measurements


def _with_conditions(found: Measurement, conditions: dict[str, Any]) -> Measurement:
    """Return a measurement with other conditions: they are the larger part of a run, and mostly
    alike, so that equal ones are one object, and decoded once."""
    if found.run is None:
        return found
    own = msgspec.structs.replace(found.run, conditions=conditions)
    return msgspec.structs.replace(found, run=own)


class _Kept(Measurement, frozen=True, kw_only=True):
    """Content of a file: a measurement without its conditions."""

    digest: bytes
    """Digest of the fingerprint."""
    conditions: bytes


_decoder = msgspec.msgpack.Decoder(_Kept)
_decode_conditions = functools.lru_cache(msgspec.msgpack.Decoder(dict[str, Any]).decode)


def write_kept(run: Run, digest: bytes, measurement: Measurement) -> None:
    """Keep what was made of a run with this fingerprint, as far as the disk lets it, but what only
    Python can hold: names that are no text, numbers beyond 64 bits."""
    with suppress(OverflowError, UnicodeError, OSError):
        own = measurement.run.conditions if measurement.run else {}
        conditions = msgspec.msgpack.encode(own)
        bare = _with_conditions(measurement, {})
        kept = _Kept(digest=digest, conditions=conditions, run=bare.run, faults=bare.faults)
        data = msgspec.msgpack.encode(kept)
        files.write_whole(run.figures_file, hashlib.sha256(data).digest() + data)


def read_kept(run: Run) -> Measurement | None:
    """Return what was kept; None where it is not of the run as it is now."""
    try:
        with files.open_private(run.figures_file) as file:
            data = file.read()
        content = data[_SEAL_BYTES:]
        if hashlib.sha256(content).digest() != data[:_SEAL_BYTES]:
            return None
        kept = _decoder.decode(content)
        found = _with_conditions(kept, _decode_conditions(kept.conditions))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return found if kept.digest == take_fingerprint(run) else None


def take_fingerprint(run: Run) -> bytes:
    """Return a digest of the sizes, times and inodes of all files of a run that the summary reads,
    and of our own code; never fails."""
    folder = str(run.path)
    attempts = _names(f"{folder}/attempts")
    names = [
        *("spec.json", "submission.json", "verdict.json"),
        *(f"events/{place}" for place in _names(f"{folder}/events")),
        *(f"attempts/{n}/{name}" for n in attempts for name in ("begin.json", "verdict.json")),
    ]
    found = [_status(f"{folder}/{name}") for name in names]
    content = repr((code_version(), attempts, names, found)).encode(errors="surrogateescape")
    return hashlib.blake2b(content, digest_size=16).digest()


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
