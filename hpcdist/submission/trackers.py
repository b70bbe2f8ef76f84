"""The trackers of a job: its own or the profile's, once it is known that they can work.

A module of its own beside that of containers, which is settled in the same way.
"""

from __future__ import annotations

import importlib.util
import os

import msgspec

from hpcdist.base.errors import JobError
from hpcdist.cluster.load import LoadedProfile
from hpcdist.job import LoadedJob

_KEY = "record.track"
_MLFLOW_VARIABLE = "MLFLOW_TRACKING_URI"


def settle_trackers(loaded: LoadedJob, cluster: LoadedProfile) -> LoadedJob:
    """Return the job with the trackers that it is followed in.

    Raises JobError, beginning with the key, where a package or an address is missing.
    """
    job, profile = loaded.job, cluster.profile
    names = job.record.track
    if names is None:
        names = profile.track or None
    is_here = job.container.image is None and profile.python is None
    for name in names or ():
        if is_here and importlib.util.find_spec(name) is None:
            raise JobError(
                f"{_KEY} has {name}, whose package is not installed here",
                hint=f"install it: pip install 'hpcdist[{name}]'",
            )
    if "mlflow" in (names or ()) and not _has_address(profile.environment):
        raise JobError(
            f"{_KEY} has mlflow, and {_MLFLOW_VARIABLE} is not set",
            hint=f"export {_MLFLOW_VARIABLE}=http://HOST:5000, or a database: "
            "sqlite:////PATH/mlflow.db",
        )
    record = msgspec.structs.replace(job.record, track=names)
    return msgspec.structs.replace(loaded, job=msgspec.structs.replace(job, record=record))


def _has_address(environment: dict[str, str]) -> bool:
    return bool(os.environ.get(_MLFLOW_VARIABLE) or environment.get(_MLFLOW_VARIABLE))
