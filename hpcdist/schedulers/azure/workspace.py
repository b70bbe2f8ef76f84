"""The workspace: the SDK's client of it, its errors in plain words, the compute of a profile, and
what goes to its storage and is read of it.

azure-ai-ml takes seconds to import and much longer to install, so it is an extra, and imported
where a workspace is asked for. Its telemetry is off: all traffic goes to the user's own Azure. The
login is what azure-identity finds (`az login`, a managed identity, variables of the environment).

A job goes as one archive, for Azure keeps single files as blobs, which have no permissions and no
links, and thousands of them take minutes. The SDK's own downloads bring whole outputs, and only of
jobs that have ended: here single blobs are read, by the access that the workspace gives to its
datastore, a signature for an hour, or else the user's own login. `get_datastore_info`, which finds
that, is no documented name of azure-ai-ml.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import re
import secrets
import tarfile
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from hpcdist.base import files
from hpcdist.base.carried import carry
from hpcdist.base.errors import EXIT_USER, JobError, RunDirectoryError, SchedulerError
from hpcdist.base.ownership import is_own
from hpcdist.base.progress import track
from hpcdist.base.secrets import Stars
from hpcdist.base.text import number_of, one_line
from hpcdist.cluster.profile import AzureOptions
from hpcdist.runs.run import Run
from hpcdist.schedulers.azure import node

if TYPE_CHECKING:
    from azure.ai.ml import MLClient
    from azure.storage.blob import ContainerClient


_INSTALL = "pip install 'hpcdist[azure]'"
_TRIED = "pip install 'azure-ai-ml==1.35.*'"
"""The version that the tests are run with."""
_LOGIN = (
    "log in with: az login (or another way that azure-identity supports, such as AZURE_CLIENT_ID)"
)
_ROLES = (
    "you need the roles AzureML Data Scientist in the workspace and Storage Blob Data Contributor "
    "on its storage, whose firewall must let this machine in: ask its owner"
)
_SEE = (
    "check the section azure of the profile; the studio lists what there is: https://ml.azure.com"
)
_REPEATED = re.compile(r"\s*\b(?:Code|Content|Target|Exception Details):.*", re.DOTALL)
_READ_TIMEOUT_S = 60


class NoSdkError(SchedulerError):
    """Azure cannot be asked from this Python; states of its runs are not known."""

    exit_code = EXIT_USER


class SilentAzureError(SchedulerError):
    """Azure did not answer: what was asked for may have been done."""


class NotFoundError(SchedulerError):
    """Azure has no such thing."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep to itself what the SDK says of its own parts, on stderr, as warnings and in its log; not
    within threads."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # its loggers have levels and handlers of their own
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@cache
def client_of(azure: AzureOptions) -> MLClient:
    """Return the SDK's client of a profile's workspace; nothing is sent yet.

    Raises NoSdkError where the SDK is not installed.
    """
    try:
        with quiet():
            from azure.ai.ml import MLClient
            from azure.identity import DefaultAzureCredential
    except ImportError as error:
        raise NoSdkError(f"Azure's SDK cannot be imported: {error}", hint=_INSTALL) from None
    with asking("its settings"), quiet():
        return MLClient(
            DefaultAzureCredential(),
            azure.subscription,
            azure.resource_group,
            azure.workspace,
            enable_telemetry=False,
            # Without its bar, which `quiet` keeps from being seen, an upload that fails is waited
            # for without end.
            show_progress=True,
            connection_timeout=20,
            read_timeout=_READ_TIMEOUT_S,
            retry_total=3,
            retry_backoff_factor=0.4,
            timeout=90,  # of a request with its repetitions
        )


@contextlib.contextmanager
def asking(what: str) -> Iterator[None]:
    """Turn the SDK's errors into the package's; `what` is what Azure is asked for."""
    from azure.ai.ml.exceptions import MlException
    from azure.core import exceptions

    try:
        yield
    except ImportError as error:  # not all that is used has a documented name
        raise NoSdkError(f"Azure's SDK lacks what is used: {error}", hint=_TRIED) from None
    except MlException as error:  # before anything is sent
        why = f"Azure's SDK does not take {what}: {_said(error)}"
        raise SchedulerError(why, hint="check the section azure of the cluster profile") from None
    except exceptions.ClientAuthenticationError as error:
        raise SchedulerError(f"Azure refused the login: {_said(error)}", hint=_LOGIN) from None
    except exceptions.ResourceNotFoundError as error:
        raise NotFoundError(f"Azure cannot find {what}: {_said(error)}", hint=_SEE) from None
    except exceptions.AzureError as error:
        status = int(getattr(error, "status_code", None) or 0)  # 0: it was not reached
        why = f"{what} ({status or 'no answer'}): {_said(error)}"
        if status < 400 or status == 408 or status >= 500:
            hint = "check the network and its proxy, and try again"
            raise SilentAzureError(f"Azure failed at {why}", hint=hint) from None
        hint = _ROLES if status == 403 else "nothing was changed"
        raise SchedulerError(f"Azure refused {why}", hint=hint) from None


def _said(error: Any) -> str:
    """Return the words of an error in one line, without secrets; its JSON has them at several
    places."""
    inner = getattr(error, "error", None)
    text = str(getattr(inner, "message", None) or getattr(error, "message", None) or error)
    text = _REPEATED.sub("", Stars().text(text))
    return one_line(" ".join(text.split()))[:400] or type(error).__name__


def check_compute(azure: AzureOptions, num_nodes: int) -> Any:
    """Return the compute. Raises NotFoundError, and JobError where it never has so many nodes: the
    job would wait for ever."""
    with asking(f"azure.compute {azure.compute}"), quiet():
        compute = client_of(azure).compute.get(str(azure.compute))
    most = getattr(compute, "max_instances", None) or 1
    if num_nodes > most:
        raise JobError(
            f"resources.nodes is {num_nodes}, but the compute {azure.compute} has "
            f"{number_of(most, 'node')} at most",
            hint="ask for fewer with --nodes, or enlarge it: az ml compute update --max-instances",
        )
    return compute


# The storage.


CODE, ARCHIVE = "upload", "code.tar.gz"
_ACCESS_LASTS_S = 1800.0
"""Signatures last for an hour."""
_PICKLES = "results/"
"""Whoever can write to the storage could have these run code here."""
_MOST_BYTES = 1 << 26
"""Larger files are brought where they are asked for."""


def write_code(run: Run, folder: Path, snapshot: Path | None) -> int:
    """Write the archive into the folder `upload` in `folder`; return its size in bytes.

    Links that lead out of the snapshot, to data and environments that git ignores, stay here: they
    would lead nowhere.
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
    real = os.path.realpath(path)

    def admit(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        place = path / os.path.relpath(entry.name, name)
        if entry.issym() and os.path.commonpath([real, os.path.realpath(place)]) != real:
            return None
        if entry.islnk():  # what it is a second name of may have been left out
            entry.type, entry.size = tarfile.REGTYPE, place.stat().st_size
        if not (entry.isreg() or entry.issym() or entry.isdir()) or place.name == "__pycache__":
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


class Output:
    """A job's output, as nodes publish it: the blobs of its folder in the datastore."""

    def __init__(self, azure: AzureOptions, name: str) -> None:
        """Ask the workspace for access. Raises SchedulerError."""
        self._prefix = f"hpcdist/{name}/"
        self._container = _container(azure, int(time.monotonic() / _ACCESS_LASTS_S))

    def list_files(self) -> Iterator[Stored]:
        """Yield all blobs, by their names below the folder. Raises SchedulerError."""
        with asking(self._prefix):
            for blob in self._container.list_blobs(name_starts_with=self._prefix):
                time_s = int(blob.last_modified.timestamp())
                yield Stored(blob.name.removeprefix(self._prefix), int(blob.size or 0), time_s)

    def copy(self, name: str, to: BinaryIO, *, size: int) -> None:
        """Write so many bytes of a blob into a file. Raises SchedulerError."""
        with asking(f"blob {name}"):
            if size:  # Azure refuses to send no bytes
                blob = self._container.download_blob(self._prefix + name, offset=0, length=size)
                blob.readinto(to)


def fetch(run: Run, source: Output, *, with_checkpoints: bool = False) -> int:
    """Bring what is new, the verdict last; one that is here stays, as that of a run that was
    cancelled. Return the number of files that were written.

    Raises SchedulerError where the source cannot be read, OSError where the run directory cannot be
    written, and RunDirectoryError for somebody else's.
    """
    if not is_own(run.path):
        raise RunDirectoryError(
            f"{run.path} is another user's: nothing is downloaded to it",
            hint="its owner can fetch it",
        )
    stored = list(islice(source.list_files(), files.MOST_ENTRIES + 1))
    if len(stored) > files.MOST_ENTRIES:
        raise OSError(errno.EFBIG, "more was published than is read", str(run.path))
    wanted = []
    for file in sorted(stored, key=lambda file: (file.path == node.VERDICT, file.path)):
        if not node.is_wanted(file.path) or file.path.startswith(_PICKLES):
            continue
        is_large = file.size > _MOST_BYTES or file.path.startswith(node.CHECKPOINTS)
        if is_large and not with_checkpoints:
            continue
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
        with suppress(NotFoundError):  # replaced at this moment: the next fetch has it
            with node.written_aside(path) as aside:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                with open(os.open(aside, flags, files.PRIVATE_FILE), "wb") as to:
                    source.copy(file.path, to, size=file.size)
                os.utime(aside, (file.time_s, file.time_s))
            num_written += 1
    return num_written


@cache
def _container(azure: AzureOptions, _period: int) -> ContainerClient:
    """Return the datastore's container; the access to it is asked for again before it expires."""
    with asking(f"azure.datastore {azure.datastore}"):
        from azure.ai.ml._artifacts._artifact_utilities import get_datastore_info
        from azure.storage.blob import ContainerClient

        info = get_datastore_info(client_of(azure).datastores, azure.datastore)
        return ContainerClient(
            info["account_url"],
            info["container_name"],
            credential=info["credential"],
            retry_total=2,
            read_timeout=60,
        )
