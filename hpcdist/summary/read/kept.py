"""Keep what a summary found and printed until the runs change: the first summary of a thousand runs
reads no events, and the next one is printed in a fifth of a second.

    <run>/figures.msgpack                                    the figures of a run that has ended
    $XDG_CACHE_HOME/hpcdist/summary/<runs and form>.msgpack  a text that was printed

What counts is the runs' files: a kept file says by a digest of their sizes, times and inodes, as
the cache has it, what it was made from, and by which version of the code. Where something changed
since, or the run was copied, it is as if there were none. So it is where it is torn, or somebody
else's: its own digest stands before it.

A text is that of all runs together: it counts where the same command, in a terminal of the same
kind, finds the same runs. Not kept is a text on runs whose scheduler was asked, or that may go on,
nor one that tells of files that could not be read.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcdist.base import files
from hpcdist.runs.run import Run
from hpcdist.summary.read.cache import Fingerprint, SummaryCache, is_settled, seal, unseal

_LOOKS = (
    "COLORTERM",
    "COLUMNS",
    "FORCE_COLOR",
    "LINES",
    "NO_COLOR",
    "TERM",
    "TTY_COMPATIBLE",
    "TZ",
)
"""Environment variables by which a text looks different."""


class _Kept(Struct, frozen=True, kw_only=True):
    """Content of a file."""

    version: str
    """Version of the code that made it."""
    digest: bytes
    """Digest of the fingerprints."""
    content: msgspec.Raw


def write_kept(path: Path, digest: bytes, content: bytes, *, version: str) -> None:
    """Write what was made of runs with this digest. Raises OSError."""
    kept = _Kept(version=version, digest=digest, content=msgspec.Raw(content))
    files.write_whole(path, seal(msgspec.msgpack.encode(kept)))


def read_kept(path: Path, digest: bytes, *, version: str) -> msgspec.Raw | None:
    """Return what was kept; None where it is not of the runs as they are now."""
    try:
        with files.open_private(path) as file:
            content = unseal(file.read(files.MOST_JSON_BYTES))
        kept = None if content is None else msgspec.msgpack.decode(content, type=_Kept)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    is_same = kept and (kept.version, kept.digest) == (version, digest)
    return kept.content if kept and is_same else None


class PrintedSummary:
    """The text of one command on some runs."""

    def __init__(self, cache: SummaryCache, runs: Sequence[Run], command: str) -> None:
        """`command` tells commands apart that print different texts of the same runs."""
        self._cache = cache
        self._digest = _digest_of(cache, runs)
        terminal = (sys.stdout.isatty(), sys.stdout.encoding, tuple(shutil.get_terminal_size()))
        folders = sorted({str(run.path.parent) for run in runs})
        form = repr((command, terminal, [os.environ.get(name) for name in _LOOKS], folders))
        name = hashlib.blake2b(form.encode(errors="surrogateescape"), digest_size=16).hexdigest()
        self._file = cache.folder / f"{name}.msgpack"

    def find(self) -> str | None:
        """Return what was printed; None where a run has changed since, or may go on."""
        if self._digest is None:
            return None
        kept = read_kept(self._file, self._digest, version=self._cache.version)
        return None if kept is None else msgspec.msgpack.decode(kept, type=str)

    def keep(self, text: str) -> None:
        """Keep what was printed. Raises OSError."""
        if self._digest is None:
            return
        self._cache.folder.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
        content = msgspec.msgpack.encode(text)
        write_kept(self._file, self._digest, content, version=self._cache.version)


def _digest_of(cache: SummaryCache, runs: Sequence[Run]) -> bytes | None:
    """Return the digest of what is known of all runs; None where one of them is not over."""
    now_s = time.time()
    digest = hashlib.blake2b(digest_size=16)
    for run in runs:
        fingerprint = cache.fingerprint(run)
        if not _is_over(fingerprint, now_s):
            return None
        digest.update(os.fsencode(run.path) + b"\0" + fingerprint.digest)
    return digest.digest()


def _is_over(fingerprint: Fingerprint, now_s: float) -> bool:
    return fingerprint.has_verdict and is_settled(fingerprint, has_verdict=True, now_s=now_s)
