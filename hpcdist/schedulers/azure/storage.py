"""Folders of blobs in a workspace's datastores: the outputs of its jobs, and their logs.

The SDK's own downloads bring whole outputs, and only of jobs that have ended. Here single blobs are
read, by the access that the workspace gives to its datastore: a signature for an hour, or else the
user's own login. `get_datastore_info`, which finds that, is no documented name of azure-ai-ml.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from hpcdist.base import files
from hpcdist.base.errors import SchedulerError
from hpcdist.cluster.profile import AzureOptions
from hpcdist.runs.publishing import Stored
from hpcdist.runs.run import Run
from hpcdist.schedulers.azure.client import NotFoundError, SilentAzureError, asking, client_of

if TYPE_CHECKING:
    from azure.storage.blob import ContainerClient

_ARTIFACTS = "workspaceartifactstore"
"""The datastore to which Azure itself writes what jobs print."""
_RETRIES = 2
_TIMEOUT_S = 60
_ACCESS_LASTS_S = 1800.0
"""Signatures last for an hour."""
_USER_LOG = re.compile(r"user_logs/[A-Za-z0-9][\w.-]{0,99}\.txt", re.ASCII)
_MOST_LOG_BYTES = 1 << 20

_accesses: dict[tuple[AzureOptions, str], tuple[dict[str, Any], float]] = {}


class BlobFolder:
    """The blobs of a datastore whose names begin alike; its errors are OSErrors, as a folder's."""

    def __init__(self, azure: AzureOptions, datastore: str, prefix: str) -> None:
        """Ask the workspace for access. Raises SchedulerError."""
        self._prefix = f"{prefix}/"
        self._container = _container(azure, datastore)

    def list_files(self) -> Iterator[Stored]:
        """Yield all blobs, by their names below the prefix."""
        with _as_os_errors(self._prefix):
            for blob in self._container.list_blobs(name_starts_with=self._prefix):
                time_s = int(blob.last_modified.timestamp())
                yield Stored(blob.name.removeprefix(self._prefix), int(blob.size or 0), time_s)

    def read(self, name: str, *, offset: int = 0) -> bytes:
        """Return the content of a blob from a place on."""
        with _as_os_errors(name):
            return bytes(
                self._container.download_blob(self._prefix + name, offset=offset).readall()
            )

    def copy(self, name: str, to: BinaryIO, *, size: int) -> None:
        """Write the first bytes of a blob into a file."""
        with _as_os_errors(name):
            if size:  # Azure refuses to send no bytes
                path = self._prefix + name
                self._container.download_blob(path, offset=0, length=size).readinto(to)


def output_folder(azure: AzureOptions, name: str) -> BlobFolder:
    """Return a job's output: its run, as nodes publish it."""
    return BlobFolder(azure, azure.datastore, f"hpcdist/{name}")


def log_folder(azure: AzureOptions, name: str) -> BlobFolder:
    """Return what Azure keeps of a job's output and of its own: user_logs/, system_logs/."""
    return BlobFolder(azure, _ARTIFACTS, f"ExperimentRun/dcid.{name}")


def keep_logs(run: Run, folder: BlobFolder) -> None:
    """Write the ends of what Azure keeps of a job's output into the run directory: where no agent
    began, nothing else tells why. Raises OSError."""
    for name, size, _ in folder.list_files():
        if not _USER_LOG.fullmatch(name) or not size:
            continue
        content = folder.read(name, offset=max(0, size - _MOST_LOG_BYTES))
        stem = name.removeprefix("user_logs/").removesuffix(".txt")
        run.submitit_folder.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
        files.write_whole(run.submitit_folder / f"{stem}.log", content)


def _container(azure: AzureOptions, datastore: str) -> ContainerClient:
    with asking(f"datastore {datastore}"):
        from azure.storage.blob import ContainerClient

        info = _access(azure, datastore)
        return ContainerClient(
            info["account_url"],
            info["container_name"],
            credential=info["credential"],
            retry_total=_RETRIES,
            connection_timeout=_TIMEOUT_S,
            read_timeout=_TIMEOUT_S,
        )


def _access(azure: AzureOptions, datastore: str) -> dict[str, Any]:
    """Return account, container and credential, which are asked for again before they expire."""
    from azure.ai.ml._artifacts._artifact_utilities import get_datastore_info

    key = (azure, datastore)
    info, until_s = _accesses.get(key, ({}, 0.0))
    if time.monotonic() >= until_s:
        info = get_datastore_info(client_of(azure).datastores, datastore)
        _accesses[key] = info, time.monotonic() + _ACCESS_LASTS_S
    return info


@contextmanager
def _as_os_errors(name: str) -> Iterator[None]:
    try:
        with asking(f"blob {name}"):
            yield
    except NotFoundError as error:
        raise FileNotFoundError(2, error.message, name) from None
    except SilentAzureError as error:
        raise TimeoutError(110, error.message, name) from None
    except SchedulerError as error:
        raise PermissionError(13, error.message, name) from None
