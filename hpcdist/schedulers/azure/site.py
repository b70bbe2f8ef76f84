"""The workspace: which one is meant, what it offers, and the doctor's questions to it."""

from __future__ import annotations

import configparser
import json
import os
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hpcdist.base.errors import HpcdistError, SchedulerError
from hpcdist.base.text import number_of
from hpcdist.cluster.profile import AzureOptions, ClusterProfile
from hpcdist.cluster.site import Partition, Site
from hpcdist.job.spec import JobSpec
from hpcdist.runs.run import Run
from hpcdist.schedulers.azure.client import INSTALL, asking, client_of, quiet, unknown_name
from hpcdist.schedulers.azure.jobs import (
    check_environment,
    find_compute,
    is_of_registry,
    jobs_of,
)
from hpcdist.schedulers.azure.request import check_profile
from hpcdist.schedulers.azure.storage import output_folder
from hpcdist.schedulers.base import Finding, failed, passed, skipped, warned
from hpcdist.schedulers.request import asks_for_gpus

if TYPE_CHECKING:
    from azure.ai.ml import MLClient

_PACKAGES = ("azure-ai-ml", "azure-identity")
_LATEST = "AzureML-acpt-pytorch-2.8-cuda12.6"
_WORKSPACE_FILES = ("config.json", ".azureml/config.json")
_WHERE = (
    "put the workspace's config.json here (the studio offers it for download), or tell az: "
    "az configure --defaults group=NAME workspace=NAME"
)


# Which workspace is meant.


def find_workspace(folder: Path, home: Path) -> AzureOptions:
    """Return the workspace of the config.json in a folder or above it, else the one that az uses by
    default. Raises SchedulerError."""
    for parent in (folder, *folder.parents):
        for name in _WORKSPACE_FILES:
            found = _of_config_file(parent / name)
            if found is not None:
                return found
    return _of_az(Path(os.environ.get("AZURE_CONFIG_DIR") or home / ".azure"))


def _of_config_file(path: Path) -> AzureOptions | None:
    try:
        value = json.loads(path.read_bytes())
        names = ("subscription_id", "resource_group", "workspace_name")
        subscription, group, workspace = (str(value[name]) for name in names)
    except (OSError, ValueError, KeyError, TypeError):  # others have a config.json, too
        return None
    return AzureOptions(subscription=subscription, resource_group=group, workspace=workspace)


def _of_az(folder: Path) -> AzureOptions:
    parser = configparser.ConfigParser(interpolation=None)
    subscription = None
    try:
        parser.read(folder / "config")
        profile = json.loads((folder / "azureProfile.json").read_text("utf-8-sig"))
        (subscription,) = (one["id"] for one in profile["subscriptions"] if one["isDefault"])
    except (OSError, ValueError, KeyError, TypeError, configparser.Error):
        pass
    group = parser.get("defaults", "group", fallback=None)
    workspace = parser.get("defaults", "workspace", fallback=None)
    if not (subscription and group and workspace):
        raise SchedulerError("no workspace of Azure is named anywhere", hint=_WHERE)
    return AzureOptions(subscription=subscription, resource_group=group, workspace=workspace)


def detect_azure() -> Site:
    """Ask the workspace for its computes; raises SchedulerError or UserError."""
    azure = find_workspace(Path.cwd(), Path.home())
    client = client_of(azure)
    with asking(f"the computes of workspace {azure.workspace}"), quiet():
        computes = [one for one in client.compute.list() if one.type == "amlcompute"]
        sizes = _sizes(client)
    partitions = []
    for compute in computes:
        size = sizes.get(str(compute.size).lower(), {})
        partitions.append(
            Partition(
                name=compute.name,
                num_nodes=compute.max_instances or 1,
                cpus=int(size.get("vcpus") or 0),
                mem_gb=size.get("memorygb"),
                gpus=int(size.get("gpus") or 0),
            )
        )
    return Site(
        scheduler="azure",
        gpu_request="gpus-per-node",
        partitions=tuple(partitions),
        azure=msgspec.structs.replace(
            azure, environment=f"azureml://registries/azureml/environments/{_LATEST}/labels/latest"
        ),
        notes=("the environment is Azure's own for PyTorch: name another with Python and torch",),
    )


def _sizes(client: MLClient) -> dict[str, dict[str, Any]]:
    """Return what is known of each size of machines, by its name in small letters."""
    found = [_plain(size) for size in client.compute.list_sizes()]
    return {str(one.get("name")).lower(): one for one in found}


def _plain(entity: object) -> dict[str, Any]:
    """Return the values of one of the SDK's objects, which has them by Azure's names or by its own:
    currentValue, current_value."""
    return {key.replace("_", "").lower(): value for key, value in vars(entity).items()}


# The doctor's questions.


class AzureDoctor:
    """The checks of doctor that ask Azure."""

    def examine_for(self, job: JobSpec, cluster: ClusterProfile) -> Iterator[Finding]:
        """Check SDK, login, workspace, compute, quota, environment and datastore."""
        try:
            azure = check_profile(cluster)
            client = client_of(azure)
        except HpcdistError as error:
            yield failed("sdk", error.message, error.hint or INSTALL)
            return
        yield passed("sdk", ", ".join(f"{one} {metadata.version(one)}" for one in _PACKAGES))
        try:
            with asking(f"workspace {azure.workspace}"), quiet():
                workspace = client.workspaces.get(azure.workspace)
        except SchedulerError as error:
            yield failed("workspace", error.message, error.hint)
            return
        yield passed("workspace", f"you are known to {azure.workspace} in {workspace.location}")
        yield from _told("compute", _compute(client, azure, job, cluster))
        yield from _told("environment", _environment(azure))
        yield from _told("datastore", _datastore(client, azure))

    def explain_end(self, run: Run) -> str:
        """Return where Azure tells more of a job's end."""
        try:
            found = jobs_of([run])[run.id]
        except SchedulerError:
            return ""
        return f"Azure says {found.status}; its page: {found.url}" if found else ""


def _told(name: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield findings, and the error that ends them as one more."""
    try:
        yield from findings
    except HpcdistError as error:
        yield failed(name, error.message, error.hint)


def _compute(
    client: MLClient, azure: AzureOptions, job: JobSpec, cluster: ClusterProfile
) -> Iterator[Finding]:
    compute = find_compute(azure)
    size = _sizes_or_none(client).get(str(compute.size).lower(), {})
    most = getattr(compute, "max_instances", None) or 1
    gpus, cpus = int(size.get("gpus") or 0), int(size.get("vcpus") or 0)
    each = f"{number_of(cpus, 'CPU')}, {number_of(gpus, 'GPU')}" if size else "size not known"
    tier = ", low-priority" if "low" in str(getattr(compute, "tier", "")).lower() else ""
    detail = f"{compute.name}: up to {number_of(most, 'node')} {compute.size} ({each}){tier}"
    wants = job.resources.gpus if asks_for_gpus(job, cluster) else 0
    nodes = job.resources.nodes
    if nodes > most:
        yield failed("compute", f"{detail}, and {nodes} are asked for", "ask for fewer: --nodes")
    elif size and wants > gpus and (gpus or job.launch.device == "cuda"):
        what = f"{detail}, and {wants} GPUs per node are asked for"
        yield failed("compute", what, "ask for fewer with --gpus, or name another azure.compute")
    else:
        yield passed("compute", detail)
    if size:
        yield _quota(client, size, nodes)


def _sizes_or_none(client: MLClient) -> dict[str, dict[str, Any]]:
    with asking("the sizes of machines"), quiet():
        return _sizes(client)


def _quota(client: MLClient, size: dict[str, Any], nodes: int) -> Finding:
    """Compare the CPUs of a job's nodes with what the subscription may have of their family."""
    family = re.sub(r"[^a-z0-9]|family$", "", str(size.get("family")).lower())
    with asking("the quota"), quiet():
        usages = [_plain(one) for one in client.compute.list_usage()]
    for usage in usages:
        names = usage.get("name") or {}
        named = names if isinstance(names, dict) else vars(names)
        words = re.sub(r"[^a-z0-9]", "", " ".join(map(str, named.values())).lower())
        if family and family in words:
            used = usage.get("currentvalue") or 0
            limit = usage.get("limit") or 0
            needed = nodes * int(size.get("vcpus") or 0)
            detail = f"{used} of {limit} CPUs of this family are in use, and {needed} are needed"
            if needed > limit:
                return failed("quota", detail, "ask for more in the portal: Quotas")
            if needed > limit - used:
                return warned("quota", detail, "the job waits for nodes that others give back")
            return passed("quota", detail)
    return skipped("quota", "the subscription's quota for this family is not known")


def _environment(azure: AzureOptions) -> Iterator[Finding]:
    if azure.image is not None:
        yield skipped("environment", f"the image {azure.image} is pulled by the job")
    elif is_of_registry(azure):
        yield skipped(
            "environment", f"{azure.environment} is in a registry: only the job can check it"
        )
    else:
        check_environment(azure)
        yield passed("environment", f"{azure.environment} is there")


def _datastore(client: MLClient, azure: AzureOptions) -> Iterator[Finding]:
    with asking("the list of datastores"), quiet():
        known = [one.name for one in client.datastores.list()]
    if azure.datastore not in known:
        raise unknown_name("datastore", azure.datastore, known)
    try:
        list(output_folder(azure, "none").list_files())
    except OSError as error:
        advice = "you need the role Storage Blob Data Reader on its account: ask its owner"
        yield failed("datastore", f"{azure.datastore} cannot be read: {error.strerror}", advice)
    else:
        yield passed("datastore", f"{azure.datastore} can be read: runs are kept in its hpcdist/")
