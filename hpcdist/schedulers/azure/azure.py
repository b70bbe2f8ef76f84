"""The scheduler of Azure Machine Learning: runs as command jobs of a workspace.

The keys of a job are those of the page "CLI (v2) command job YAML schema". Azure brings the folder
`code` to every node, makes it the working directory, and mounts the run's folder of a datastore
there; the command is executed once per node.

Azure starts a job again by itself whose low-priority nodes were taken away, and tells that nobody:
nodes get SIGTERM at most. A job that reached its time limit is not started again, and one of its
nodes cannot submit another: the verdict says that it can go on.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, JobError, ProfileError, SchedulerError
from hpcdist.base.secrets import Stars
from hpcdist.base.text import number_of, show_bytes, yaml_scalar
from hpcdist.cluster.profile import AzureOptions, ClusterProfile
from hpcdist.cluster.site import Site
from hpcdist.job.spec import JobSpec, job_to_dict
from hpcdist.runs.publishing import fetch
from hpcdist.runs.run import Run, slug
from hpcdist.runs.spec import LaunchPlan, NodePlan, RunSpec, Submission
from hpcdist.runs.verdict import State, Verdict
from hpcdist.schedulers.azure import site
from hpcdist.schedulers.azure.files import (
    ARCHIVE,
    CODE,
    BlobFolder,
    keep_logs,
    output_folder,
    write_code,
)
from hpcdist.schedulers.azure.node import KEY_VARIABLE, LIB, SNAPSHOT
from hpcdist.schedulers.azure.site import NotFoundError, SilentAzureError, asking, client_of, quiet
from hpcdist.schedulers.base import (
    Condition,
    Finding,
    JobPlace,
    LineMeaning,
    Plan,
    Rendezvous,
    Scheduler,
    Target,
    failed,
    passed,
)
from hpcdist.schedulers.hosts import LIFE_VARIABLE, age_of_job
from hpcdist.schedulers.jobs import condition_of, end_jobs, find_by_name, note_jobs
from hpcdist.schedulers.request import limit_line, product, time_limit_min
from hpcdist.schedulers.requeue import Decision, RequeueRefusedError

_JOB_FILE = "job.yml"
_OUTPUT = "run"
"""The output by whose name the command finds the mounted run directory."""
_NEEDED = ("subscription", "resource_group", "workspace", "compute")
_WORDS_OF_OTHERS = ("partition", "account", "qos", "constraint", "gpu_type", "mem_gb", "directives")
_DEFAULT_PORT = 6105
_AT_ONCE = 8
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

LINE_MEANINGS = (
    LineMeaning("$schema:", "The format, which the SDK checks."),
    LineMeaning("type: command", "A job that executes one command on each of its nodes."),
    LineMeaning("name:", "The run's id, in letters that Azure takes."),
    LineMeaning("display_name:", "The job's name in the studio."),
    LineMeaning("experiment_name:", "The studio lists jobs of one experiment together."),
    LineMeaning("code:", "The folder that is uploaded: hpcdist, the run's files, the snapshot."),
    LineMeaning("command:", "bash that every node executes; its last line starts the agent."),
    LineMeaning("environment:", "", ["azure.image|azure.environment"]),
    LineMeaning("environment_variables:", "Those of the job and the profile.", ["environment"]),
    LineMeaning("compute:", "", ["azure.compute"]),
    LineMeaning("distribution:", "One process per node, which is told of the others."),
    LineMeaning("resources:", "Nodes, and shared memory for the workers of data loaders."),
    LineMeaning("instance_count:", "", ["resources.nodes"]),
    LineMeaning("shm_size:", "", ["azure.shm_gb"]),
    LineMeaning("limits:", "Time limit in seconds.", ["resources.time_limit_min|time_limit_min"]),
    LineMeaning("outputs:", "The folder where nodes write the run, mounted.", ["azure.datastore"]),
)
"""Lines of the YAML, and the keys that they come from."""

Value: TypeAlias = "str | int | Mapping[str, Value]"


class AzureScheduler(Scheduler):
    """Runs as command jobs of a workspace."""

    name = "azure"
    title = "Azure"
    has_queue = True
    line_meanings = LINE_MEANINGS
    shares_files = False
    jobs_can_wait = False
    can_requeue = True
    longest_poll_s = 10.0  # with each question, what ranks have printed comes home

    def plan(
        self,
        job: JobSpec,
        cluster: ClusterProfile,
        *,
        busy_gpus: Collection[str] = (),  # noqa: ARG002 - those of this machine
    ) -> Plan:
        check_profile(cluster)
        values = job_to_dict(job)
        hidden = [key for key, value in Stars().value(values).items() if value != values[key]]
        if hidden:
            raise JobError(
                f"what looks like a secret stands in {' and '.join(hidden)}, and would be stored "
                "where all users of the workspace can read it",
                hint="have the program read it from the workspace's key vault, or from a datastore",
            )
        note = (
            "fsdp saves its checkpoints in parts, one per node, and Azure's nodes share no disk: "
            "if the job is started again, it begins anew"
        )
        is_in_parts = getattr(job, "strategy", None) == "fsdp" and job.resources.nodes > 1
        launch = LaunchPlan(
            nodes=[NodePlan() for _ in range(job.resources.nodes)],
            device=job.launch.device,
            backend=job.launch.backend,
            interface=cluster.interface,
            warning_signals=["SIGTERM"],
            limit_min=time_limit_min(job, cluster),
        )
        return Plan(launch=launch, notes=[note] if is_in_parts else [], cluster=cluster)

    def explain(self, job: JobSpec, plan: Plan) -> list[str]:
        """Return nodes, ranks, shared memory, the time limit and the price per hour."""
        cluster, azure, nodes = plan.cluster, plan.cluster.azure, job.resources.nodes
        limit_min = time_limit_min(job, cluster)
        timeout = None if limit_min is None else f"limits.timeout {math.ceil(limit_min * 60)} s"
        ranks = product(nodes, job.ranks_per_node, what="rank")
        lines = [
            f"nodes: {number_of(nodes, 'node')} of the compute {azure.compute}, each given whole",
            f"ranks: {ranks}, with equal shares of the node's CPUs, on its GPUs if it has any",
            f"shared memory: {azure.shm_gb} GiB per node (azure.shm_gb)",
            limit_line(job, cluster, timeout),
        ]
        if (price := cluster.node_price) is not None:
            lines.append(f"price: {nodes} x {price:g} = {nodes * price:g} per hour")
        return lines

    def render(self, job: JobSpec, target: Target, plan: Plan) -> str:
        return job_yaml(job, plan.cluster, target)

    def submit(self, job: JobSpec, target: Target, runs: Sequence[Run], script: str) -> list[str]:
        (run,) = runs
        azure, name = workspace_of(run), name_of(run)
        site.check_compute(azure, job.resources.nodes)
        site.check_environment(azure)
        snapshot = Path(target.own_folders[-1]) if target.own_folders else None
        size = write_code(run, target.folder, snapshot)
        file = target.folder / _JOB_FILE
        files.write_whole(file, script)
        said = create(azure, file, name)
        shutil.rmtree(target.folder / CODE, ignore_errors=True)
        note_jobs(
            runs,
            [name],
            submission=Submission(scheduler=self.name),
            target=target,
            take_back=lambda: _cancel(azure, name),
        )
        return [f"uploaded {show_bytes(size)} to the workspace {azure.workspace}", *said]

    def conditions(self, runs: Sequence[Run]) -> dict[str, Condition]:
        """Return what Azure says; what the nodes of a run have published is brought home first: its
        logs and events while it goes on, and its verdict once it has ended."""
        found = _ask_jobs(runs)

        def look(run: Run) -> Condition:
            job, why = found[run.id], None
            if job is not None and job.condition().state != "pending":
                try:
                    fetch(run, self.source_of(run))
                    if not (job.is_active or run.has_started()):
                        keep_logs(run, workspace_of(run), job.name)
                except (OSError, HpcdistError) as error:
                    why = files.reason(error) if isinstance(error, OSError) else error.message
            condition = condition_of(run, run.read_submission(), job, self.title)
            if why is None:
                return condition
            why = f"its run directory cannot be brought here: {why}"
            reason = "; ".join(filter(None, [condition.reason, why]))
            return msgspec.structs.replace(condition, reason=reason)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return dict(zip([run.id for run in runs], pool.map(look, runs), strict=True))

    def source_of(self, run: Run) -> BlobFolder:
        return output_folder(workspace_of(run), name_of(run))

    def cancel(self, runs: Sequence[Run]) -> None:
        """End the jobs of runs, whether Azure lists them or not."""
        workspaces = {name_of(run): workspace_of(run) for run in runs}

        def kill(names: Sequence[str]) -> None:
            for name in names:
                _cancel(workspaces[name], name)

        end_jobs(
            runs,
            [*workspaces],
            kill=kill,
            list_living=lambda: {
                job.name for job in _ask_jobs(runs).values() if job is not None and job.is_active
            },
            hint="Azure takes minutes to end a job on nodes that do not answer: see the studio",
        )

    # Within a job.

    def place(self) -> JobPlace:
        """Return the place by the variables that Azure gives each process of a job with
        `distribution: pytorch`: one process per node, so that its world is the nodes."""
        num_nodes = int(os.environ.get("WORLD_SIZE") or 1)
        rendezvous = None
        if num_nodes > 1:  # a name is looked up, for agents say which address they mean
            first = os.environ["MASTER_ADDR"]
            (*_, (address, *_)), *_ = socket.getaddrinfo(first, None, type=socket.SOCK_STREAM)
            rendezvous = Rendezvous(
                address=str(address),
                port=int(os.environ.get("MASTER_PORT") or _DEFAULT_PORT),
                secret=Path(os.environ[KEY_VARIABLE]).read_text().strip(),
            )
        return JobPlace(
            node_rank=int(os.environ.get("NODE_RANK") or os.environ.get("RANK") or 0),
            num_nodes=num_nodes,
            host=socket.gethostname(),
            age_s=age_of_job(),
            rendezvous=rendezvous,
        )

    def life(self) -> int:
        """Return how often the job was started before, which its output shows."""
        return int(os.environ.get(LIFE_VARIABLE) or 0)

    def decide(self, verdict: Verdict) -> Decision:
        """Leave a kill or a preemption, and the loss of a node, to Azure; end at the time limit."""
        if verdict.kind == "time_limit":
            return Decision(sequel="final", cause="time_limit")
        if verdict.kind == "preempted" or verdict.signal == "SIGTERM":
            return Decision(sequel="open", cause="kill or requeue")
        return Decision(sequel="open", cause="nothing")

    def requeue(self, run: Run) -> None:
        raise RequeueRefusedError(f"Azure starts {run.id} again by itself, or not at all")

    # The site, and whether it is fit.

    def detect_site(self) -> Site:
        return site.detect_azure()

    def examine_for(self, job: JobSpec, cluster: ClusterProfile) -> Iterator[Finding]:
        """Check SDK, login, workspace, compute, environment and datastore, up to the first that is
        wanting."""
        names = ["datastore", "environment", "compute", "workspace", "sdk"]
        try:
            azure = check_profile(cluster)
            for finding in site.examine(azure, job, cluster):
                names.remove(finding.name)
                yield finding
            site.find(azure, "datastore")
            list(output_folder(azure, "none").list_files())
        except OSError as error:
            advice = "you need the role Storage Blob Data Reader on its account: ask its owner"
            yield failed("datastore", f"it cannot be read: {error.strerror}", advice)
        except HpcdistError as error:
            yield failed(names[-1], error.message, str(error.hint))
        else:
            yield passed("datastore", f"{azure.datastore} can be read: runs are kept in hpcdist/")

    def explain_end(self, run: Run) -> str:
        """Return where Azure tells more of a job's end."""
        try:
            found = _ask_jobs([run])[run.id]
        except SchedulerError:
            return ""
        return f"Azure says {found.status}; its page: {found.url}" if found else ""


scheduler = AzureScheduler()


def workspace_of(run: Run) -> AzureOptions:
    """Return the workspace that a run was planned for."""
    return (run.read_spec() or RunSpec()).cluster.profile.azure


def name_of(run: Run) -> str:
    """Return the name of a run's job; of one that is being submitted, as it was planned."""
    return (run.read_submission() or Submission()).job_id or job_name(run.id)


def job_name(name: str) -> str:
    """Return the name of a run as Azure takes it: letters, digits, dashes and underscores; the SDK
    makes capitals small."""
    return re.sub(r"[^a-z0-9_-]", "-", name.lower())


# Jobs.


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

    def condition(self) -> Condition:
        state, reason = _STATES.get(self.status, ("unknown", f"Azure calls it {self.status}"))
        if state in ("failed", "unknown") and self.url:
            reason = f"{reason}; its page: {self.url}"
        return Condition(state=state, reason=reason)


def _ask_jobs(runs: Sequence[Run]) -> dict[str, AzureJob | None]:
    """Return the job by run id; None where Azure has none. Raises SchedulerError."""
    with quiet(), ThreadPoolExecutor(_AT_ONCE) as pool:
        jobs = list(pool.map(lambda run: _ask_job(workspace_of(run), name_of(run)), runs))
    return {run.id: job for run, job in zip(runs, jobs, strict=True)}


def _ask_job(azure: AzureOptions, name: str) -> AzureJob | None:
    client = client_of(azure)
    try:
        with asking(f"the job {name}"):
            job = client.jobs.get(name)
    except NotFoundError:
        return None
    status = str(getattr(job.status, "value", job.status))
    return AzureJob(name=name, status=status, url=job.studio_url or "")


def create(azure: AzureOptions, file: Path, name: str) -> list[str]:
    """Create the job that a file describes; return what there is to say of it.

    Whatever the error, the job may be there: its name is looked for. Raises SchedulerError, and
    SubmissionUnclearError where Azure does not tell.
    """
    client = client_of(azure)
    from azure.ai.ml import load_job

    def look() -> list[AzureJob]:
        job = _ask_job(azure, name)
        return [job] if job else []

    # The SDK is to send nothing of the user's git repository: its URL may hold a password.
    git_folder = os.environ.get("GIT_DIR")
    os.environ["GIT_DIR"] = os.devnull
    try:
        with asking(f"the job {name}", wrong=SchedulerError), quiet():
            client.jobs.create_or_update(load_job(file))
    except SilentAzureError as error:
        if find_by_name(name, error, look) is None:
            raise
        return [f"Azure gave no answer, but has the job {name}: {error.message}"]
    except SchedulerError as error:  # such as that a repeated request would change the job
        if not look():
            raise
        return [f"Azure gave an error, but has the job {name}: {error.message}"]
    finally:
        del os.environ["GIT_DIR"]
        if git_folder is not None:
            os.environ["GIT_DIR"] = git_folder
    return []


def _cancel(azure: AzureOptions, name: str) -> None:
    """Have Azure end a job; one that has ended, or that it does not have, is left."""
    try:
        with asking(f"the end of the job {name}"):
            client_of(azure).jobs.begin_cancel(name, polling=False)
    except NotFoundError:
        return
    except SchedulerError:
        job = _ask_job(azure, name)
        if job is not None and job.is_active:
            raise


# The request.


def check_profile(cluster: ClusterProfile) -> AzureOptions:
    """Return the section azure; ProfileError where a key is missing, or Azure has none such."""
    azure = cluster.azure
    missing = [key for key in _NEEDED if getattr(azure, key) is None]
    if azure.environment is None and azure.image is None:
        missing.append("environment")
    if missing:
        keys = " and ".join(f"azure.{key}" for key in missing)
        raise ProfileError(
            f"the cluster profile: {keys} {'are' if len(missing) > 1 else 'is'} not set",
            hint="`hpcdist cluster detect --scheduler azure` finds them, `hpcdist cluster copy "
            "azure` prints a profile to be filled in",
        )
    of_others = [key for key in _WORDS_OF_OTHERS if getattr(cluster, key)]
    of_others += ["gpu_request"] if cluster.gpu_request == "gres" else []
    for key in of_others:
        raise ProfileError(
            f"the cluster profile: {key} is {getattr(cluster, key)}, and Azure has none",
            hint=f"leave {key} out; what a node has is decided by the compute {azure.compute}",
        )
    return azure


def job_yaml(job: JobSpec, cluster: ClusterProfile, target: Target) -> str:
    """Return the job as `az ml job create --file` and the SDK read it; pure.

    Raises ProfileError for a profile that lacks something.
    """
    azure, name = check_profile(cluster), job_name(target.name)
    title = "".join(c if c.isprintable() else " " for c in job.name)
    settings = cluster.environment | target.environment
    named = str(azure.environment)
    environment = named if named.startswith("azureml:") else f"azureml:{named}"
    document: dict[str, Value] = {
        "$schema": "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json",
        "type": "command",
        "name": name,
        "display_name": title,
        "experiment_name": slug(job.name).replace(".", "-"),
        "code": CODE,
        "command": _command(cluster, target),
        "environment": {"image": azure.image} if azure.image else environment,
        "environment_variables": {k: v for k, v in settings.items() if k != "PYTHONPATH"},
        "compute": f"azureml:{azure.compute}",
        "distribution": {"type": "pytorch", "process_count_per_instance": 1},
        "resources": {"instance_count": job.resources.nodes, "shm_size": f"{azure.shm_gb}g"},
    }
    if (limit_min := time_limit_min(job, cluster)) is not None:
        document["limits"] = {"timeout": math.ceil(limit_min * 60)}
    path = f"azureml://datastores/{azure.datastore}/paths/hpcdist/{name}"
    output: Value = {"type": "uri_folder", "mode": "rw_mount", "path": path}
    document["outputs"] = {_OUTPUT: output}
    return "\n".join([f"# hpcdist: {' '.join(title.split())}", *_yaml(document), ""])


def _command(cluster: ClusterProfile, target: Target) -> str:
    """Return what each node executes in the folder of the code."""
    python_path = [LIB]
    if target.own_folders:  # what of the caller's PYTHONPATH is in the snapshot
        snapshot = target.own_folders[-1]
        python_path += [
            os.path.normpath(f"{SNAPSHOT}/{os.path.relpath(entry, snapshot)}")
            for entry in target.environment.get("PYTHONPATH", "").split(os.pathsep)
            if os.path.commonpath([entry or "/", snapshot]) == snapshot
        ]
    entries = ":".join(f'"$here"/{shlex.quote(folder)}' for folder in python_path)
    python = shlex.quote(cluster.python or "python")
    return "\n".join(
        [
            "here=$PWD",
            *cluster.setup,
            'cd "$here" || exit 1',
            f"tar -xzf {ARCHIVE} || exit 1",
            f"export PYTHONPATH={entries}${{PYTHONPATH:+:$PYTHONPATH}}",
            f"exec {python} -u -m hpcdist.schedulers.azure.node ${{{{outputs.{_OUTPUT}}}}}",
        ]
    )


def _yaml(values: Mapping[str, Any], indent: str = "") -> list[str]:
    """Return a mapping as lines of YAML; a text of several lines is a block."""
    lines = []
    for key, value in values.items():
        name = f"{indent}{yaml_scalar(key) if key != '$schema' else key}:"
        if isinstance(value, Mapping):
            lines += [name, *_yaml(value, f"{indent}  ")] if value else [f"{name} {{}}"]
        elif isinstance(value, str) and key == "command":
            lines += [f"{name} |-", *(f"{indent}  {line}" for line in value.split("\n"))]
        else:
            lines.append(f"{name} {yaml_scalar(value) if isinstance(value, str) else value}")
    return lines
