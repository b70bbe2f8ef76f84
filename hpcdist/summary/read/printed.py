"""What `hpcdist summary` printed, kept until one of the runs changes: a thousand runs are looked
through in a fifth of a second then.

    $XDG_CACHE_HOME/hpcdist/summary/<runs and form>.msgpack

The text is that of all runs together: it counts where the same command, in a terminal of the same
kind, finds the same runs with the same fingerprints. Not kept is a text on runs whose scheduler was
asked, or that may go on, nor one that tells of files that could not be read.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Sequence

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


class _Printed(Struct, frozen=True, kw_only=True):
    """Content of the file."""

    version: str
    """Version of the code that printed."""
    digest: bytes
    """Digest of the runs and of their fingerprints."""
    text: str


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
        try:
            with files.open_private(self._file) as file:
                content = unseal(file.read(files.MOST_JSON_BYTES))
            kept = None if content is None else msgspec.msgpack.decode(content, type=_Printed)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        is_same = kept and (kept.version, kept.digest) == (self._cache.version, self._digest)
        return kept.text if kept and is_same else None

    def keep(self, text: str) -> None:
        """Keep what was printed. Raises OSError."""
        if self._digest is None:
            return
        kept = _Printed(version=self._cache.version, digest=self._digest, text=text)
        self._cache.folder.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
        files.write_whole(self._file, seal(msgspec.msgpack.encode(kept)))


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
