"""The typed content of spec.json and submission.json, and a scheduler's accounting.

A file whose keys have values of other types counts as damaged, see `hpcdist.base.files.read_as`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from hpcdist.base import files
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import Checkpoint, JobSpec
from hpcdist.machine.containers import InContainer
from hpcdist.machine.process import ProcessId
from hpcdist.runs.verdict import UnixTime

FolderName = Annotated[str, msgspec.Meta(pattern=r"^[^./][^/]*$")]
"""The name of a folder beside the run."""


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One node as the scheduler planned it."""

    address: str | None = None
    """Where the others reach it; None: its host name."""
    rank_cpus: list[list[int]] | None = None
    """CPUs of each rank; None: an equal share of those that the agent may use."""
    gpus: list[str] | None = None
    """UUIDs of its GPUs; None: as CUDA_VISIBLE_DEVICES says."""


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks as a scheduler lays them out over the nodes."""

    nodes: list[NodePlan]
    device: str
    """cpu or cuda; auto: as the nodes have it."""
    backend: str
    """gloo or nccl; auto: as the device wants it."""
    num_threads: int | None = None
    """CPU threads per rank; None: the rank's share of the CPUs."""
    environment: dict[str, str] = {}
    """Variables for the agents and ranks; what the user has set stays."""
    warning_signals: list[str] = []
    """Signals that the scheduler sends to the agents before it ends the job, such as SIGUSR2."""
    enforces_limits: bool = False
    """The agents see to resources.mem_gb and time_limit_min, since no scheduler does."""
    limit_min: float | None = None
    """Time limit of which node 0's agent warns the ranks by its own clock: the scheduler's warning
    comes at the limit itself. None: the scheduler warns before."""
    container: InContainer | None = None
    """The start of the ranks in an image; None: there is no image."""
    interface: str | None = None
    """Network interface for gloo and NCCL; None: the one by which node 0 is reached."""


class UsedCluster(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster profile that a run was planned with."""

    name: str | None = None
    """None: no profile was chosen."""
    profile: ClusterProfile = ClusterProfile()
    """Secrets of its environment are starred out."""


class UsedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The copy of a git work tree that a run executes."""

    folder: str | None = None
    """Where it is."""
    source: str | None = None
    """The work tree."""
    cwd: str | None = None
    """The working directory in `folder`."""
    python_path: str | None = None
    """PYTHONPATH of the run, where the snapshot changes it."""


class UsedContainer(msgspec.Struct, frozen=True, kw_only=True):
    """The image that the ranks of a run ran in."""

    image: str | None = None
    """Path, or reference to a registry."""
    runtime: str | None = None
    identity: str | None = None
    """Tells an image from a changed one: the id of a .sif, or size and time of another file."""

    @property
    def described(self) -> str | None:
        """The image and its identity, in one text."""
        return self.image if self.identity is None else f"{self.image} ({self.identity})"


class SweepPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The sweep that a run belongs to, and its place there."""

    id: FolderName | None = None
    index: int | None = None
    """From 0, in the order of the points."""
    num_points: int | None = None
    point: dict[str, Any] | None = None
    """Key of the job -> its value at this point."""
    repeat: int | None = None
    """From 0, among the runs with these values."""
    label: str | None = None
    """The point in one line."""
    comparison: str | None = None
    """Name of the comparison whose variants the points are."""
    variant: str | None = None
    job_name: str | None = None
    """The scheduler's name for the array that the run is part of; None: the run's id."""
    task: int | None = None
    """The run's number in that array."""


class Planned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was foreseen of a run before it was submitted; None where nothing was."""

    wait_s: float | None = None
    """Time until it starts, at the latest as things stood."""
    duration_s: float | None = None
    memory_bytes: float | None = None
    """Peak of the rank that uses most: resident on CPUs, allocated on GPUs."""
    estimate_bytes: float | None = None
    """The same as torch's tracker has it, before earlier runs corrected it."""


class JobOutline(JobSpec, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The keys of a job that commands need, whatever its workload."""

    name: str = ""
    workload: str = ""
    checkpoint: Checkpoint = Checkpoint()


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """spec.json: all that was decided about a run, and what it was decided with."""

    id: str | None = None
    created_s: UnixTime | None = None
    """Unix time."""
    scheduler: str | None = None
    cluster: UsedCluster = UsedCluster()
    job: dict[str, Any] = {}
    """The job by its keys, as `job_to_dict` writes it. Values that look secret are starred out."""
    hidden: list[str] = []
    """Keys of the job that have stars: private.json has their values."""
    plan: LaunchPlan | None = None
    job_source: str | None = None
    """Name or path of the job, as the user gave it."""
    cwd: str | None = None
    """The directory that the run was submitted from."""
    snapshot: UsedSnapshot | None = None
    container: UsedContainer | None = None
    """None: no image."""
    host: str | None = None
    """Where the run was submitted."""
    versions: dict[str, str | None] = {}
    """Package -> version."""
    commit: str | None = None
    """The git commit that `cwd` is at; None: not in a git work tree."""
    has_changes: bool | None = None
    """Some tracked file has changes that are not committed."""
    submission: str | None = None
    """Name that a laptop gave the submission, so that it is made once; None: made here."""
    sweep: SweepPlace | None = None
    """None: the run is by itself."""
    planned: Planned | None = None
    """What `hpcdist plan` or the submission foresaw; None: nothing."""
    job_name: str | None = None
    """The scheduler's name for the job of a run that was resumed; None: as it was planned."""

    @property
    def outline(self) -> JobOutline:
        """The keys of the job that all commands need; their defaults where they are damaged."""
        try:
            return files.convert(self.job, JobOutline)
        except msgspec.ValidationError:
            return JobOutline()


class Submission(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """submission.json: which job of which scheduler a run is."""

    scheduler: str | None = None
    job_id: str | None = None
    """Id of the job; an element of an array has its place there in it."""
    job_name: str | None = None
    """An id alone may be another job's by now."""
    folder: str | None = None
    """Holds the script, and submitit's files."""
    process: ProcessId | None = None
    """Process on the host of the submission: submitit's controller, or srun."""
    step: bool = False
    """The run is a step in an allocation, and no job of its own."""


class Accounting(msgspec.Struct, frozen=True, kw_only=True):
    """Books of a scheduler on a run's job, over all its lives; None where a value is unknown."""

    job_id: str
    state: str
    """The scheduler's own word."""
    queue_wait_s: float | None = None
    """Time in the queue since it could have started: without the time in which it waited for other
    jobs or was held. All lives together."""
    elapsed_s: float | None = None
    """Running, all lives together; so far where it goes on."""
    exit_code: int | None = None
    nodes: list[str] = []
    """Nodes of the last life, in the scheduler's order."""
    max_rss_bytes: int | None = None
    """Largest resident memory of a task, all processes on its node included."""
