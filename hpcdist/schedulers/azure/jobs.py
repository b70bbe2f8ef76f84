"""Jobs of a workspace: creating, looking at and ending them, through the SDK."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hpcdist.base.errors import JobError, ProfileError, SchedulerError
from hpcdist.base.text import number_of
from hpcdist.cluster.profile import AzureOptions
from hpcdist.runs.run import Run
from hpcdist.runs.spec import RunSpec, Submission
from hpcdist.runs.verdict import State
from hpcdist.schedulers.azure.client import (
    NotFoundError,
    SilentAzureError,
    asking,
    client_of,
    quiet,
    unknown_name,
    without_git,
)
from hpcdist.schedulers.azure.request import job_name
from hpcdist.schedulers.base import Condition
from hpcdist.schedulers.jobs import find_by_name

if TYPE_CHECKING:
    from azure.ai.ml import MLClient
    from azure.ai.ml.entities import Compute

AT_ONCE = 8
"""Questions to Azure at one time."""

_STATES: dict[str, tuple[State, str | None]] = {
    "NotStarted": ("pending", "Azure has not started it"),
    "Queued": ("pending", "it waits for nodes of its compute"),
    "Scheduled": ("pending", "it waits for nodes of its compute"),
    "Preparing": ("pending", "Azure prepares its environment, which takes minutes when it is new"),
    "Provisioning": ("pending", "Azure starts its nodes"),
    "Starting": ("pending", "its nodes fetch the image and the code"),
    "Paused": ("pending", "it is paused: see the studio"),
    "Running": ("running", None),
    "Finalizing": ("running", "Azure stores its outputs"),
    "CancelRequested": ("running", "Azure is ending it"),
    "NotResponding": ("running", "its nodes have stopped answering Azure"),
    "Completed": ("done", None),
    "Failed": ("failed", "Azure says it failed"),
    "Canceled": ("cancelled", "it was cancelled, in the studio or from elsewhere"),
}
"""Azure's word -> the state, and why it is so."""


class AzureJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as Azure tells it; its id is its name."""

    name: str
    status: str
    url: str = ""
    """Its page in the studio."""
    task: str = ""
    exit_code: int | None = None

    @property
    def job_id(self) -> str:
        return self.name

    @property
    def is_active(self) -> bool:
        return self.condition().state in ("pending", "running", "unknown")

    @property
    def has_nodes(self) -> bool:
        """It runs, or it has ended: there may be something of its nodes."""
        return self.condition().state != "pending"

    def condition(self) -> Condition:
        state, reason = _STATES.get(self.status, ("unknown", f"Azure calls it {self.status}"))
        if state in ("failed", "unknown") and self.url:
            reason = f"{reason}; its page: {self.url}"
        return Condition(state=state, reason=reason)


def ask_jobs(azure: AzureOptions, names: Collection[str]) -> list[AzureJob]:
    """Return those of the named jobs that the workspace has. Raises SchedulerError."""
    client = client_of(azure)
    with quiet(), ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda name: _ask_job(client, name), sorted(names)))
    return [job for job in found if job is not None]


def _ask_job(client: MLClient, name: str) -> AzureJob | None:
    try:
        with asking(f"the job {name}"):
            job = client.jobs.get(name)
    except NotFoundError:
        return None
    status = str(getattr(job.status, "value", job.status))
    return AzureJob(name=name, status=status, url=job.studio_url or "")


def jobs_of(runs: Sequence[Run]) -> dict[str, AzureJob | None]:
    """Return the job by run id; None where Azure has none. Raises SchedulerError."""
    found: dict[str, AzureJob | None] = {}
    for azure, theirs in by_workspace(runs).items():
        known = {job.name: job for job in ask_jobs(azure, [*map(name_of, theirs)])}
        found |= {run.id: known.get(name_of(run)) for run in theirs}
    return found


def workspace_of(run: Run) -> AzureOptions:
    """Return the workspace that a run was planned for."""
    return (run.read_spec() or RunSpec()).cluster.profile.azure


def name_of(run: Run) -> str:
    """Return the name of a run's job; of one that is being submitted, as it was planned."""
    return (run.read_submission() or Submission()).job_id or job_name(run.id)


def by_workspace(runs: Sequence[Run]) -> dict[AzureOptions, list[Run]]:
    """Return the runs of each workspace."""
    found: dict[AzureOptions, list[Run]] = defaultdict(list)
    for run in runs:
        found[workspace_of(run)].append(run)
    return found


def create(azure: AzureOptions, file: Path, name: str) -> list[str]:
    """Create the job that a file describes; return what there is to say of it.

    Whatever the error, the job may be there: its name is looked for. Raises SchedulerError, and
    SubmissionUnclearError where Azure does not tell.
    """
    client = client_of(azure)
    from azure.ai.ml import load_job

    try:
        with asking(f"the job {name}", wrong=SchedulerError), quiet(), without_git():
            client.jobs.create_or_update(load_job(file))
    except SilentAzureError as error:
        if find_by_name(name, error, lambda: ask_jobs(azure, [name])) is None:
            raise
        return [f"Azure gave no answer, but has the job {name}: {error.message}"]
    except SchedulerError as error:  # such as that a repeated request would change the job
        if not ask_jobs(azure, [name]):
            raise
        return [f"Azure gave an error, but has the job {name}: {error.message}"]
    return []


def cancel(azure: AzureOptions, names: Sequence[str]) -> None:
    """Have Azure end jobs; those that have ended are none of its business."""
    client = client_of(azure)
    for name in names:
        try:
            with asking(f"the end of the job {name}"):
                client.jobs.begin_cancel(name, polling=False)
        except NotFoundError:
            continue
        except SchedulerError:
            job = _ask_job(client, name)
            if job is not None and job.is_active:
                raise


# Before the submission.


def check_compute(azure: AzureOptions, num_nodes: int) -> None:
    """Raise ProfileError where the workspace has no such compute, and JobError where it never has
    so many nodes: the job would wait for ever."""
    most = getattr(find_compute(azure), "max_instances", None) or 1
    if num_nodes > most:
        raise JobError(
            f"resources.nodes is {num_nodes}, but the compute {azure.compute} has "
            f"{number_of(most, 'node')} at most",
            hint="ask for fewer with --nodes, or enlarge it: az ml compute update --max-instances",
        )


def find_compute(azure: AzureOptions) -> Compute:
    """Return the profile's compute; ProfileError where the workspace has none of that name."""
    client, name = client_of(azure), str(azure.compute)
    try:
        with asking(f"compute {name}"):
            return client.compute.get(name)
    except NotFoundError:
        with asking(f"workspace {azure.workspace}", wrong=ProfileError, hint=_WORKSPACE):
            known = [one.name for one in client.compute.list()]
        raise unknown_name("compute", name, known) from None


_WORKSPACE = "check azure.subscription, azure.resource_group and azure.workspace of the profile"


def is_of_registry(azure: AzureOptions) -> bool:
    return (azure.environment or "").startswith("azureml://")


def check_environment(azure: AzureOptions) -> None:
    """Raise ProfileError where the workspace has no such environment; a registry's are not asked
    for."""
    if azure.environment is None or is_of_registry(azure):
        return
    environment = azure.environment.removeprefix("azureml:")
    name, version = re.split(r"[:@]", environment, maxsplit=1)
    label = version if "@" in environment else None
    client = client_of(azure)
    try:
        with asking(f"environment {environment}"):
            client.environments.get(name, version=None if label else version, label=label)
    except NotFoundError:
        with asking("the list of environments"):
            known = [one.name for one in client.environments.list()]
        if name in known:
            raise ProfileError(
                f"azure.environment is {environment}, and the workspace has no such version of it",
                hint=f"{name}@latest is the last; `az ml environment list --name {name}` lists all",
            ) from None
        raise unknown_name("environment", environment, known) from None
