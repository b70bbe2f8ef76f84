"""Figures kept beside a run since its end: the first summary of a thousand runs reads no events.

    <run>/figures.msgpack

What counts is the run's events: the file says by a digest of their sizes, times and inodes, as the
cache has it, what it was computed from, and by which version of the code. Where something changed
since, or the run was copied, it is as if there were none. So it is where it is torn, or somebody
else's: its own digest stands before it.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from hpcdist.base import files
from hpcdist.runs.run import Run
from hpcdist.summary.read.cache import Fingerprint, seal, unseal


class _Kept(Struct, frozen=True, kw_only=True):
    """Content of the file."""

    version: str
    """Version of the code that measured."""
    digest: bytes
    """Digest of the fingerprint."""
    measured: msgspec.Raw


def write_kept(run: Run, fingerprint: Fingerprint, measured: bytes, *, version: str) -> None:
    """Write the figures of a run, measured when it had this fingerprint. Raises OSError."""
    kept = _Kept(version=version, digest=fingerprint.digest, measured=msgspec.Raw(measured))
    files.write_whole(run.figures_file, seal(msgspec.msgpack.encode(kept)))


def read_kept(run: Run, fingerprint: Fingerprint, *, version: str) -> msgspec.Raw | None:
    """Return the figures; None where they are not those of the run as it is now."""
    try:
        with files.open_private(run.figures_file) as file:
            content = unseal(file.read(files.MOST_JSON_BYTES))
        kept = None if content is None else msgspec.msgpack.decode(content, type=_Kept)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    is_same = kept and (kept.version, kept.digest) == (version, fingerprint.digest)
    return kept.measured if kept and is_same else None
