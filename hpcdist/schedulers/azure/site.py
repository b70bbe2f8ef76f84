"""The workspace: the SDK's client of it, its errors in plain words, which one is meant, what it
offers, and the doctor's questions to it.

azure-ai-ml takes seconds to import and much longer to install, so it is an extra, and imported
where a workspace is asked for. Its telemetry is off: all traffic goes to the user's own Azure. The
login is what azure-identity finds (`az login`, a managed identity, variables of the environment).
"""

from __future__ import annotations

import configparser
import contextlib
import io
import json
import logging
import os
import re
import warnings
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hpcdist.base.errors import EXIT_USER, HpcdistError, JobError, ProfileError, SchedulerError
from hpcdist.base.secrets import Stars
from hpcdist.base.text import nearest_first, number_of, one_line
from hpcdist.cluster.profile import AzureOptions, ClusterProfile
from hpcdist.cluster.site import Partition, Site
from hpcdist.job.spec import JobSpec
from hpcdist.schedulers.base import Finding, passed, skipped
from hpcdist.schedulers.request import asks_for_gpus

if TYPE_CHECKING:
    from azure.ai.ml import MLClient

_INSTALL = "pip install 'hpcdist[azure]'"
_TRIED = "pip install 'azure-ai-ml==1.35.*'"
"""The version that the tests are run with."""
_SEE = "the studio lists what the workspace has: https://ml.azure.com"
_LOGIN = (
    "log in with: az login (or another way that azure-identity supports, such as AZURE_CLIENT_ID)"
)
_ROLE = "you need the role AzureML Data Scientist in the workspace: ask its owner"
_STORAGE_ROLE = (
    "you need the role Storage Blob Data Contributor on the workspace's storage, and its firewall "
    "must let this machine in: ask its owner"
)
_OF_STORAGE = (
    *("AuthorizationFailure", "AuthorizationPermissionMismatch"),
    "KeyBasedAuthenticationNotPermitted",
)
"""Codes of the storage, which has a firewall and roles of its own."""
_MOST_WORDS = 400
_REPEATED = re.compile(r"\s*\b(?:Code|Content|Target|Exception Details):.*", re.DOTALL)
_READ_TIMEOUT_S = 60
_LISTS = {"compute": "compute", "environment": "environments", "datastore": "datastores"}
"""A key of the section azure -> the client's attribute that lists what it can be."""
_LATEST = "AzureML-acpt-pytorch-2.8-cuda12.6"
_WORKSPACE_FILES = ("config.json", ".azureml/config.json")


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
def asking(
    what: str, *, wrong: type[HpcdistError] = NotFoundError, hint: str = _SEE
) -> Iterator[None]:
    """Turn the SDK's errors into the package's; `what` is what Azure is asked for.

    `wrong` is the error where Azure has no such thing, `hint` what to do then.
    """
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
        raise wrong(f"Azure cannot find {what}: {_said(error)}", hint=hint) from None
    except exceptions.HttpResponseError as error:
        raise _refusal(error, what) from None
    except exceptions.AzureError as error:  # it was not reached, or cut off half way
        why = f"Azure cannot be reached for {what}: {_said(error)}"
        raise SilentAzureError(why, hint="check the network and its proxy, and try again") from None


def _refusal(error: Any, what: str) -> SchedulerError:
    """Return the error for an answer that is neither a success nor about a login."""
    status, said = error.status_code or 0, _said(error)
    if status >= 500 or status == 408:
        return SilentAzureError(f"Azure failed at {what} ({status}): {said}", hint="try again")
    why, hint = f"Azure refused {what} ({status})", "nothing was changed"
    if status == 429:
        hint = "wait a few minutes: the workspace has had too many requests"
    elif "quota" in said.lower():
        why = f"Azure refused {what}, because the quota is used up"
        hint = "ask for fewer nodes, or for more quota in the portal: Quotas of the subscription"
    elif getattr(error, "error_code", None) in _OF_STORAGE:
        why, hint = f"Azure's storage forbids {what}", _STORAGE_ROLE
    elif status == 403:
        why, hint = f"Azure forbids {what}", _ROLE
    return SchedulerError(f"{why}: {said}", hint=hint)


def _said(error: Any) -> str:
    """Return the words of an error in one line, without secrets; its JSON has them at several
    places."""
    inner = getattr(error, "error", None)
    text = str(getattr(inner, "message", None) or getattr(error, "message", None) or error)
    code = getattr(inner, "code", None)
    text = _REPEATED.sub("", Stars().text(text))
    words = one_line(" ".join(text.split()))[:_MOST_WORDS] or type(error).__name__
    return f"{words} ({code})" if code and code not in words else words


# What a profile names.


def find(azure: AzureOptions, key: str, **which: str | None) -> Any:
    """Return the compute, environment or datastore of a profile, of an environment in the version
    or with the label of `which`; ProfileError where the workspace has none of its name."""
    value = str(getattr(azure, key))
    name = re.split(r"[:@]", value.removeprefix("azureml:"), maxsplit=1)[0]
    listing = getattr(client_of(azure), _LISTS[key])
    try:
        with asking(f"{key} {value}"):
            return listing.get(name, **which)
    except NotFoundError:
        where = "check azure.subscription, azure.resource_group and azure.workspace of the profile"
        with asking(f"workspace {azure.workspace}", wrong=ProfileError, hint=where):
            known = [one.name for one in listing.list()]
    lacks = f"no {key} of that name"
    hint = f"it has {', '.join(nearest_first(name, known)) or 'none'}"
    if name in known:
        lacks = "no such version of it"
        hint = f"{name}@latest is the last; `az ml {key} list --name {name}` lists all"
    raise ProfileError(f"azure.{key} is {value}, and the workspace has {lacks}", hint=hint)


def check_compute(azure: AzureOptions, num_nodes: int) -> Any:
    """Return the compute. Raises ProfileError where the workspace has no such, and JobError where
    it never has so many nodes: the job would wait for ever."""
    compute = find(azure, "compute")
    most = getattr(compute, "max_instances", None) or 1
    if num_nodes > most:
        raise JobError(
            f"resources.nodes is {num_nodes}, but the compute {azure.compute} has "
            f"{number_of(most, 'node')} at most",
            hint="ask for fewer with --nodes, or enlarge it: az ml compute update --max-instances",
        )
    return compute


def check_environment(azure: AzureOptions) -> bool:
    """Return whether the environment was found: an image, or a registry's, is not asked for.
    Raises ProfileError where the workspace has none such."""
    environment = azure.environment
    if environment is None or environment.startswith("azureml://"):
        return False
    version = re.split(r"[:@]", environment.removeprefix("azureml:"), maxsplit=1)[1]
    find(azure, "environment", **{"label" if "@" in environment else "version": version})
    return True


# A first profile.


def find_workspace(folder: Path, home: Path) -> AzureOptions:
    """Return the workspace of the config.json in a folder or above it, else the one that az uses by
    default. Raises SchedulerError."""
    keys = ("subscription_id", "resource_group", "workspace_name")
    places = [parent / name for parent in (folder, *folder.parents) for name in _WORKSPACE_FILES]
    for path in places:
        try:
            content = json.loads(path.read_bytes())
            return _workspace(*(str(content[key]) for key in keys))
        except (OSError, ValueError, KeyError, TypeError):  # others have a config.json, too
            continue
    az = Path(os.environ.get("AZURE_CONFIG_DIR") or home / ".azure")
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(az / "config")
        profile = json.loads((az / "azureProfile.json").read_text("utf-8-sig"))
        (subscription,) = (one["id"] for one in profile["subscriptions"] if one["isDefault"])
        defaults = parser["defaults"]
        return _workspace(subscription, defaults["group"], defaults["workspace"])
    except (OSError, ValueError, KeyError, TypeError, configparser.Error):
        raise SchedulerError(
            "no workspace of Azure is named anywhere",
            hint="put the workspace's config.json here (the studio offers it for download), or "
            "tell az: az configure --defaults group=NAME workspace=NAME",
        ) from None


def _workspace(subscription: str, group: str, name: str) -> AzureOptions:
    return AzureOptions(subscription=subscription, resource_group=group, workspace=name)


def detect_azure() -> Site:
    """Ask the workspace for its computes; raises SchedulerError or UserError."""
    azure = find_workspace(Path.cwd(), Path.home())
    client = client_of(azure)
    with asking(f"the computes of workspace {azure.workspace}"), quiet():
        computes = [one for one in client.compute.list() if one.type == "amlcompute"]
    partitions = []
    for compute in computes:
        cpus, gpus, mem_gb = _size(client, compute)
        most = compute.max_instances or 1
        partition = Partition(
            name=compute.name, num_nodes=most, cpus=cpus, mem_gb=mem_gb, gpus=gpus
        )
        partitions.append(partition)
    environment = f"azureml://registries/azureml/environments/{_LATEST}/labels/latest"
    return Site(
        scheduler="azure",
        gpu_request="gpus-per-node",
        partitions=tuple(partitions),
        azure=replace(azure, environment=environment),
        notes=("the environment is Azure's own for PyTorch: name another with Python and torch",),
    )


def _size(client: MLClient, compute: Any) -> tuple[int, int, float | None]:
    """Return the CPUs, GPUs and GB of a compute's nodes; no CPUs where that is not known."""
    with asking("the sizes of machines"), quiet():
        for size in client.compute.list_sizes():
            # The SDK's objects have Azure's names of values or its own: vCPUs, v_cp_us.
            values = {key.replace("_", "").lower(): value for key, value in vars(size).items()}
            if str(values.get("name")).lower() == str(compute.size).lower():
                cpus, gpus = values.get("vcpus") or 0, values.get("gpus") or 0
                return int(cpus), int(gpus), values.get("memorygb")
    return 0, 0, None


# The doctor's questions.


def examine(azure: AzureOptions, job: JobSpec, cluster: ClusterProfile) -> Iterator[Finding]:
    """Check SDK, login, workspace, compute and environment. Raises HpcdistError where something
    is wanting."""
    client = client_of(azure)
    packages = ("azure-ai-ml", "azure-identity")
    yield passed("sdk", ", ".join(f"{one} {metadata.version(one)}" for one in packages))
    with asking(f"workspace {azure.workspace}"), quiet():
        workspace = client.workspaces.get(azure.workspace)
    yield passed("workspace", f"you are known to {azure.workspace} in {workspace.location}")
    compute = check_compute(azure, job.resources.nodes)
    cpus, gpus, _ = _size(client, compute)
    each = f"{number_of(cpus, 'CPU')}, {number_of(gpus, 'GPU')}" if cpus else "size not known"
    most = number_of(getattr(compute, "max_instances", None) or 1, "node")
    tier = ", low-priority" if "low" in str(getattr(compute, "tier", "")).lower() else ""
    detail = f"{compute.name}: up to {most} {compute.size} ({each}){tier}"
    wants = job.resources.gpus if asks_for_gpus(job, cluster) else 0
    if cpus and wants > gpus and (gpus or job.launch.device == "cuda"):
        why = f"{detail}, and {wants} GPUs per node are asked for"
        raise JobError(why, hint="ask for fewer with --gpus, or name another azure.compute")
    yield passed("compute", detail)
    if check_environment(azure):
        yield passed("environment", f"{azure.environment} is there")
    else:
        what = azure.environment or azure.image
        yield skipped("environment", f"{what} is no environment of the workspace: the job tells")
