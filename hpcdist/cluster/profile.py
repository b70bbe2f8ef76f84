"""A cluster profile: how jobs are asked for on one cluster, as a typed and frozen value.

Profiles stand in hpcdist.yaml, of the project or of the user; the line under a field says what the
key means.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from hpcdist.base.errors import UserError
from hpcdist.cluster.schedulers import scheduler_choices
from hpcdist.job.spec import Container, Count, Positive, Section

if TYPE_CHECKING:
    SchedulerChoice = str
else:  # msgspec checks the names, and no second list of them is kept
    SchedulerChoice = Literal[tuple(scheduler_choices())]


def _like(pattern: str, description: str) -> Meta:
    return Meta(pattern=rf"^(?:{pattern})$(?!\n)", description=description)


_SIGN = r"[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
_LINE = _like(rf"(?=.*\S){_SIGN}+", "one line of text")
_WORD = _like(rf"(?!-)(?:(?!\s){_SIGN})+", "one word, as the scheduler knows it")
_SETUP = _like(rf"(?:{_SIGN}|[\n\t])*", "bash without control characters")
_DIRECTIVE = _like(rf"-{_SIGN}*", "options of the scheduler, such as --exclusive")
_HOST = _like(
    rf"[A-Za-z0-9_][A-Za-z0-9_.@%+-]*(?::(?=.*\S){_SIGN}+)?",
    "HOST or HOST:FOLDER, as ssh takes it: me@login.site.org",
)
_HOST_NAME = _like(r"[A-Za-z0-9][A-Za-z0-9._-]*", "the name of a node")
_GPUS = _like(r'(?:[^{}"\\\r\n]|\{gpus\})+', "one line without quotes, with {gpus} for the number")
_LAUNCHER = _like(
    r"(?=.*\{host\})(?=.*\{command\})(?:[^{}\r\n]|\{host\}|\{command\})+",
    "one line with {host} and {command}, such as: ssh {host} {command}",
)
_SUBSCRIPTION = _like("[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", "an id")
_AZURE_NAME = _like(r"[A-Za-z0-9_.()-]{1,90}", "the name of one")
_ENVIRONMENT = _like(
    r"(?:azureml:)?[A-Za-z0-9][A-Za-z0-9_.-]*(?::[A-Za-z0-9_.-]+|@[A-Za-z0-9_.-]+)"
    r"|azureml://registries/[A-Za-z0-9_.-]+/environments/[A-Za-z0-9_.-]+"
    r"/(?:versions|labels)/[A-Za-z0-9_.-]+",
    "NAME:VERSION, NAME@latest or azureml://registries/NAME/environments/NAME/versions/VERSION",
)
_IMAGE = _like(r"[a-z0-9][A-Za-z0-9_.:/@-]*", "as docker pull takes it: pytorch/pytorch:TAG")


class Host(msgspec.Struct, frozen=True):
    """A host as ssh knows it, and the folder there that holds the projects."""

    name: str
    folder: str = "hpcdist"
    """Relative to the home there."""

    def __str__(self) -> str:
        return self.name if self.folder == Host(self.name).folder else f"{self.name}:{self.folder}"


def parse_host(text: str, *, origin: str) -> Host:
    """Return the host that HOST[:FOLDER] names; UserError where it names none."""
    if not re.match(str(_HOST.pattern), text):
        raise UserError(f"{origin} is {text!r}, must be {_HOST.description}")
    return Host(*text.split(":", 1))


class LsfOptions(Section, frozen=True, kw_only=True):
    """Differences between LSF sites; read by LSF alone."""

    gpu: Annotated[str, _GPUS] | None = "num={gpus}:mode=exclusive_process"
    """Value of -gpu; {gpus} is the number per host. null: the option is not sent."""
    mem_per: Literal["slot", "host", "job"] = "slot"
    """The unit that the site's rusage[mem=...] is counted per."""
    launcher: Annotated[str, _LAUNCHER] = "blaunch -z {host} {command}"
    """Command that starts another on a host of the job."""


class AzureOptions(Section, frozen=True, kw_only=True):
    """The place of jobs in Azure Machine Learning; read by Azure alone."""

    subscription: Annotated[str, _SUBSCRIPTION] | None = None
    """Id of the subscription that is charged."""
    resource_group: Annotated[str, _AZURE_NAME] | None = None
    """Resource group of the workspace."""
    workspace: Annotated[str, _AZURE_NAME] | None = None
    """Workspace that the jobs belong to."""
    compute: Annotated[str, _AZURE_NAME] | None = None
    """Compute cluster, or instance, of the workspace; its nodes are given whole."""
    environment: Annotated[str, _ENVIRONMENT] | None = None
    """Environment that has Python and torch, of the workspace or of a registry."""
    image: Annotated[str, _IMAGE] | None = None
    """Docker image with Python and torch, in place of an environment."""
    datastore: Annotated[str, _AZURE_NAME] = "workspaceblobstore"
    """Datastore of the workspace that keeps the run directories, in the folder hpcdist."""
    shm_gb: Count = 8
    """Shared memory (/dev/shm) per node in GiB, which the workers of data loaders need."""


class ClusterProfile(Section, frozen=True, kw_only=True):
    """One cluster, or one way to use it."""

    scheduler: SchedulerChoice = "auto"
    """Scheduler; auto: the one that answers."""
    partition: Annotated[str, _WORD] | None = None
    """Partition (Slurm) or queue (LSF, PBS); unset: the site's default."""
    account: Annotated[str, _WORD] | None = None
    """Account, or project, that is charged."""
    qos: Annotated[str, _WORD] | None = None
    """Quality of service (Slurm)."""
    constraint: Annotated[str, _LINE] | None = None
    """Features that the nodes must have (Slurm's --constraint), the content of LSF's
    select[...], or what stands in each chunk of PBS's -l select."""
    gpu_request: Literal["gpus-per-node", "gres", "none"] = "gpus-per-node"
    """Request for GPUs: --gpus-per-node=N (LSF: as lsf.gpu says; PBS: ngpus=N), --gres=gpu:N
    (Slurm), or none, where nodes have no GPUs or are given whole."""
    gpu_type: Annotated[str, _WORD] | None = None
    """Type of the GPUs, as in --gres=gpu:a100:2, or gmodel= of LSF's -gpu; unset: any."""
    cpus_per_gpu: Count | None = None
    """CPUs per rank, unless the job says so; unset: 1."""
    mem_gb: Positive | None = None
    """Memory per node in GB (10**9 bytes), unless the job says so; unset: the site's default."""
    time_limit_min: Positive | None = None
    """Time limit in minutes, unless the job says so; unset: the site's default."""
    setup: list[Annotated[str, _SETUP]] = []  # noqa: RUF012 - msgspec gives every struct its own
    """Lines of bash that every job runs first: module load, source venv/bin/activate."""
    environment: dict[str, str] = {}  # noqa: RUF012 - msgspec gives every struct its own
    """Environment variables for every job."""
    interface: Annotated[str, _WORD] | None = None
    """Network interface for gloo and NCCL between nodes; unset: the one by which node 0 is
    reached."""
    directives: list[Annotated[str, _DIRECTIVE]] = []  # noqa: RUF012 - msgspec gives every struct its own
    """Further options for the scheduler, such as --exclusive, one per item; of LSF's -R the
    sections are merged with hpcdist's own."""
    lsf: LsfOptions = LsfOptions()
    """Differences between LSF sites."""
    azure: AzureOptions = AzureOptions()
    """The workspace of Azure Machine Learning, and what a job gets there."""
    container: Container = Container()
    """The image of every job that names none: keys as in the section container of a job."""
    exclude: list[Annotated[str, _HOST_NAME]] = []  # noqa: RUF012 - msgspec gives every struct its own
    """Nodes that jobs are not to run on (Slurm, LSF), besides those on which runs of yours failed
    again and again (`hpcdist cluster nodes`)."""
    nodes_ledger: Annotated[str, _LINE] | None = None
    """File of such nodes that a group has in common, read beside your own."""
    python: Annotated[str, _LINE] | None = None
    """Interpreter that runs the job, such as .venv/bin/python; unset: the one that submits."""
    host: Annotated[str, _HOST] | None = None
    """Login node that jobs are submitted from by ssh, HOST or HOST:FOLDER, with the folder that
    holds the projects (hpcdist in the home, if unset). Not used where the scheduler's own commands
    are at hand."""
    price_per_hour: Positive | None = None
    """Price of one node for an hour, in any currency."""
    notify: list[str] = []  # noqa: RUF012 - msgspec gives every struct its own
    """Channels by which you are told of the end of each run: mail:ADDRESS (by the scheduler),
    apprise:env:VARIABLE (with the address of a service), command:PROGRAM ARGUMENTS."""
