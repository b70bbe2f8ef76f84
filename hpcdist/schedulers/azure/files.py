"""What goes to Azure's storage, and what is read of it.

A job goes as one archive, for Azure keeps single files as blobs, which have no permissions and no
links, and thousands of them take minutes. The SDK's own downloads bring whole outputs, and only of
jobs that have ended: here single blobs are read, by the access that the workspace gives to its
datastore, a signature for an hour, or else the user's own login. `get_datastore_info`, which finds
that, and `AmlIgnoreFile` are no documented names of azure-ai-ml.
"""

from __future__ import annotations

import errno
import io
import os
import re
import secrets
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from hpcdist.base import files
from hpcdist.base.carried import carry
from hpcdist.base.errors import RunDirectoryError, SchedulerError
from hpcdist.base.ownership import is_own
from hpcdist.base.progress import track
from hpcdist.cluster.profile import AzureOptions
from hpcdist.runs.run import Run
from hpcdist.schedulers.azure import node
from hpcdist.schedulers.azure.site import NotFoundError, asking, client_of

if TYPE_CHECKING:
    from azure.storage.blob import ContainerClient

CODE, ARCHIVE = "code", "code.tar.gz"
_ACCESS_LASTS_S = 1800.0
"""Signatures last for an hour."""
_USER_LOG = re.compile(r"user_logs/[A-Za-z0-9][\w.-]{0,99}\.txt", re.ASCII)
_MOST_LOG_BYTES = 1 << 20
_PICKLES = "results/"
"""Whoever can write to the storage could have these run code here."""
_MOST_BYTES, _MOST_OF_ONE = 2_000_000_000, 1 << 26
"""So much of a run is brought unasked, and so much of one of its files."""


def write_code(run: Run, folder: Path, snapshot: Path | None) -> int:
    """Write the archive into the folder `code` in `folder`; return its size in bytes.

    Links that lead out of the snapshot, to data and environments that git ignores, stay here: they
    would lead nowhere. So does what the user's .amlignore lists.
    """
    (folder / CODE).mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
    path = folder / CODE / ARCHIVE
    with tarfile.open(path, "w:gz", compresslevel=6) as archive:
        _add(archive, node.LIB, carry())
        for own in (run.spec_file, run.function_file):
            if own.exists():
                _add(archive, f"{node.RUN}/{own.name}", own)
        key = secrets.token_hex(32).encode()
        entry = tarfile.TarInfo(f"{node.RUN}/{node.KEY_FILE}")
        entry.size, entry.mode = len(key), 0o600
        archive.addfile(entry, io.BytesIO(key))
        if (resume := run.spec.outline.checkpoint.resume) is not None:
            for checkpoint in _checkpoints(Path(resume).expanduser()):
                _add(archive, f"{node.RESUME}/{checkpoint.name}", checkpoint)
        if snapshot is not None:
            _add(archive, node.SNAPSHOT, snapshot)
    return path.stat().st_size


def _checkpoints(resume: Path) -> list[Path]:
    """Return what of checkpoint.resume goes along: it names a checkpoint, or a run or a folder of
    which the newest are taken; the trainer takes the newest whole one."""
    if resume.is_file() or (resume.is_dir() and node.by_step([resume.name])):
        return [resume]
    for folder in (resume / "checkpoints", resume):
        names = os.listdir(folder) if folder.is_dir() else ()
        if found := node.by_step(names)[-node.KEPT_CHECKPOINTS :]:
            return [folder / name for name in found]
    return []


def _add(archive: tarfile.TarFile, name: str, path: Path) -> None:
    """Add a file or a folder, without byte code of this Python."""
    ignored = None
    if (path / ".amlignore").exists():
        with asking("the files that .amlignore lists"):
            from azure.ai.ml._utils._asset_utils import AmlIgnoreFile
        ignored = AmlIgnoreFile(path)
    real = os.path.realpath(path)

    def admit(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        place = path / os.path.relpath(entry.name, name)
        if entry.issym() and os.path.commonpath([real, os.path.realpath(place)]) != real:
            return None
        if entry.islnk():  # what it is a second name of may have been left out
            entry.type, entry.size = tarfile.REGTYPE, place.stat().st_size
        if not (entry.isreg() or entry.issym() or entry.isdir()) or place.name == "__pycache__":
            return None
        if ignored is not None and not entry.isdir() and ignored.is_file_excluded(place):
            return None
        entry.mode = 0o755 if entry.mode & 0o100 else 0o644
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    archive.add(path, name, filter=admit)


class Stored(NamedTuple):
    """A file in a storage, and the Unix time at which it was stored."""

    path: str
    size: int
    time_s: int


class BlobFolder:
    """The blobs of a datastore whose names begin alike; its errors are OSErrors, as a folder's."""

    def __init__(self, azure: AzureOptions, datastore: str, prefix: str) -> None:
        """Ask the workspace for access. Raises SchedulerError."""
        self._prefix = f"{prefix}/"
        period = int(time.monotonic() / _ACCESS_LASTS_S)
        self._container = _container(azure, datastore, period)

    def list_files(self) -> Iterator[Stored]:
        """Yield all blobs, by their names below the prefix."""
        with _as_os_errors(self._prefix):
            for blob in self._container.list_blobs(name_starts_with=self._prefix):
                time_s = int(blob.last_modified.timestamp())
                yield Stored(blob.name.removeprefix(self._prefix), int(blob.size or 0), time_s)

    def copy(self, name: str, to: BinaryIO, *, size: int, offset: int = 0) -> None:
        """Write so many bytes of a blob into a file."""
        with _as_os_errors(name):
            if size:  # Azure refuses to send no bytes
                path = self._prefix + name
                self._container.download_blob(path, offset=offset, length=size).readinto(to)


def output_folder(azure: AzureOptions, name: str) -> BlobFolder:
    """Return a job's output: its run, as nodes publish it."""
    return BlobFolder(azure, azure.datastore, f"hpcdist/{name}")


def fetch(run: Run, source: BlobFolder, *, with_checkpoints: bool = False) -> int:
    """Bring what is new, the verdict last; one that is here stays, as that of a run that was
    cancelled. Return the number of files that were written. Raises OSError where the source cannot
    be read, or the run directory cannot be written; RunDirectoryError for somebody else's."""
    if not is_own(run.path):
        raise RunDirectoryError(
            f"{run.path} is another user's: nothing is downloaded to it",
            hint="its owner can fetch it",
        )
    stored = list(islice(source.list_files(), files.MOST_ENTRIES + 1))
    if len(stored) > files.MOST_ENTRIES:
        raise OSError(errno.EFBIG, "more was published than is read", str(run.path))
    wanted, room = [], _MOST_BYTES
    for file in sorted(stored, key=lambda file: (file.path == node.VERDICT, file.path)):
        if not node.is_wanted(file.path) or file.path.startswith(_PICKLES):
            continue
        is_large = file.size > min(room, _MOST_OF_ONE) or file.path.startswith(node.CHECKPOINTS)
        if is_large and not with_checkpoints:
            continue
        room -= file.size
        with suppress(FileNotFoundError, NotADirectoryError):
            here = os.lstat(run.path / file.path)
            is_same = (here.st_size, int(here.st_mtime)) == (file.size, file.time_s)
            if is_same or file.path == node.VERDICT:
                continue
        wanted.append(file)
    num_written = 0
    for file in track(wanted, "fetching"):
        path = run.path / file.path
        for part in reversed(PurePosixPath(file.path).parents):
            if (folder := run.path / part).is_symlink():
                raise NotADirectoryError(errno.ENOTDIR, "it is a link", str(folder))
            folder.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
        with suppress(FileNotFoundError):  # replaced at this moment: the next fetch has it
            with node.written_aside(path) as aside:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                with open(os.open(aside, flags, files.PRIVATE_FILE), "wb") as to:
                    source.copy(file.path, to, size=file.size)
                os.utime(aside, (file.time_s, file.time_s))
            num_written += 1
    return num_written


def keep_logs(run: Run, azure: AzureOptions, name: str) -> None:
    """Write the ends of what Azure keeps of a job's output into the run directory: where no agent
    began, nothing else tells why. Raises OSError and SchedulerError."""
    folder = BlobFolder(azure, "workspaceartifactstore", f"ExperimentRun/dcid.{name}")
    for path, size, _ in folder.list_files():
        if _USER_LOG.fullmatch(path) and size:
            content, length = io.BytesIO(), min(size, _MOST_LOG_BYTES)
            folder.copy(path, content, size=length, offset=size - length)
            run.submitit_folder.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
            log = run.submitit_folder / f"{Path(path).stem}.log"
            files.write_whole(log, content.getvalue())


@cache
def _container(azure: AzureOptions, datastore: str, _period: int) -> ContainerClient:
    """Return a datastore's container; the access to it is asked for again before it expires."""
    with asking(f"datastore {datastore}"):
        from azure.ai.ml._artifacts._artifact_utilities import get_datastore_info
        from azure.storage.blob import ContainerClient

        info = get_datastore_info(client_of(azure).datastores, datastore)
        return ContainerClient(
            info["account_url"],
            info["container_name"],
            credential=info["credential"],
            retry_total=2,
            read_timeout=60,
        )


@contextmanager
def _as_os_errors(name: str) -> Iterator[None]:
    try:
        with asking(f"blob {name}"):
            yield
    except NotFoundError as error:
        raise FileNotFoundError(2, error.message, name) from None
    except SchedulerError as error:
        raise PermissionError(13, error.message, name) from None
