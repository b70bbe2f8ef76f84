"""The scheduler of Azure Machine Learning: runs as command jobs of a workspace.

The keys of a job are those of the page "CLI (v2) command job YAML schema". Azure brings the folder
`upload` to every node, mounts the run's folder of a datastore, and executes the command once there.

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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import yaml

from hpcdist.base import errors, files
from hpcdist.base.progress import poll
from hpcdist.base.secrets import Stars
from hpcdist.base.text import show_bytes
from hpcdist.cluster.profile import AzureOptions, ClusterProfile
from hpcdist.job.spec import JobSpec, job_to_dict
from hpcdist.runs.run import Run, slug
from hpcdist.runs.spec import LaunchPlan, NodePlan, Submission
from hpcdist.runs.verdict import State, Verdict, cancelled_verdict
from hpcdist.schedulers import base
from hpcdist.schedulers.azure import workspace
from hpcdist.schedulers.azure.node import KEY_VARIABLE, LIB, SNAPSHOT
from hpcdist.schedulers.azure.workspace import (
    NotFoundError,
    SilentAzureError,
    asking,
    client_of,
    quiet,
)
from hpcdist.schedulers.base import Condition, JobPlace, Plan, Scheduler, Target
from hpcdist.schedulers.batch import Job, condition_of
from hpcdist.schedulers.hosts import LIFE_VARIABLE, age_of_job
from hpcdist.schedulers.request import refuse_keys, time_limit_min
from hpcdist.schedulers.requeue import Decision

_OUTPUT = "run"
"""The output by whose name the command finds the mounted run directory."""
_NEEDED = ("subscription", "resource_group", "workspace", "compute")
_WORDS_OF_OTHERS = ("partition", "account", "qos", "constraint", "gpu_type", "mem_gb", "directives")
_QUESTIONS_AT_ONCE = 8
_GONE_LIMIT_S = 180.0

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


class AzureScheduler(Scheduler):
    """Runs as command jobs of a workspace."""

    name = "azure"
    title = "Azure"
    has_queue = True
    shares_files = False
    jobs_can_wait = False
    can_requeue = True
    longest_poll_s = 10.0  # with each question, what ranks have printed comes home

    def plan(self, job: JobSpec, cluster: ClusterProfile) -> Plan:
        check_profile(cluster)
        values = job_to_dict(job)
        hidden = [key for key, value in Stars().value(values).items() if value != values[key]]
        if hidden:
            raise errors.JobError(
                f"what looks like a secret stands in {' and '.join(hidden)}, and would be stored "
                "where all users of the workspace can read it",
                hint="have the program read it from the workspace's key vault, or from a datastore",
            )
        launch = LaunchPlan(
            nodes=[NodePlan() for _ in range(job.resources.nodes)],
            device=job.launch.device,
            backend=job.launch.backend,
            interface=cluster.interface,
            warning_signals=["SIGTERM"],
            limit_min=time_limit_min(job, cluster),
        )
        return Plan(launch=launch, cluster=cluster)

    def render(self, job: JobSpec, target: Target, plan: Plan) -> str:
        return job_yaml(job, plan.cluster, target)

    def submit(self, job: JobSpec, target: Target, runs: Sequence[Run], script: str) -> list[str]:
        (run,) = runs
        azure, name = workspace_of(run), name_of(run)
        workspace.check_compute(azure, job.resources.nodes)
        snapshot = Path(target.own_folders[-1]) if target.own_folders else None
        size = workspace.write_code(run, target.folder, snapshot)
        files.write_whole(target.folder / "job.yml", script)
        said = create(azure, target.folder / "job.yml", name)
        shutil.rmtree(target.folder / workspace.CODE, ignore_errors=True)
        submission = Submission(
            scheduler=self.name,
            job_id=name,
            job_name=target.name,
            folder=str(target.folder),
        )
        try:
            run.write_submission(submission)
        except OSError:  # nobody would know of the job
            _cancel(azure, name)
            raise
        return [f"uploaded {show_bytes(size)} to the workspace {azure.workspace}", *said]

    def conditions(self, runs: Sequence[Run]) -> dict[str, Condition]:
        """Return what Azure says; what the nodes of a run have published is brought home first: its
        logs and events while it goes on, and its verdict once it has ended."""
        found = _ask_jobs(runs)

        def look(run: Run) -> Condition:
            job = found[run.id]
            condition = condition_of(run, run.read_submission(), job, self.title)
            if job is None or job.state == "pending":
                return condition
            try:
                self.fetch(run)
            except (OSError, errors.HpcdistError) as error:
                why = files.reason(error) if isinstance(error, OSError) else error.message
                why = f"its run directory cannot be brought here: {why}"
                reason = "; ".join(filter(None, [condition.reason, why]))
                return msgspec.structs.replace(condition, reason=reason)
            return condition_of(run, run.read_submission(), job, self.title)

        with ThreadPoolExecutor(_QUESTIONS_AT_ONCE) as pool:
            return dict(zip([run.id for run in runs], pool.map(look, runs), strict=True))

    def fetch(self, run: Run, *, with_checkpoints: bool = False) -> None:
        published = workspace.Output(workspace_of(run), name_of(run))
        workspace.fetch(run, published, with_checkpoints=with_checkpoints)

    def cancel(self, runs: Sequence[Run], **_: Any) -> None:
        """End the jobs of runs, whether Azure says how they are or not."""
        for run in runs:
            run.ask_to_cancel()
        for run in runs:
            _cancel(workspace_of(run), name_of(run))

        def living() -> list[str]:
            return [job.id for job in _ask_jobs(runs).values() if job is not None and job.is_active]

        if not poll(lambda: not living() or None, interval_s=1.0, limit_s=_GONE_LIMIT_S):
            raise errors.SchedulerError(
                f"jobs {', '.join(living())} have not ended within {_GONE_LIMIT_S:g} s",
                hint="Azure takes minutes to end a job on nodes that do not answer: see the studio",
            )
        for run in runs:
            run.write_verdict(cancelled_verdict())

    # Within a job.

    def place(self) -> JobPlace:
        """Return the place by the variables that Azure gives each process of a job with
        `distribution: pytorch`: one process per node, so that its world is the nodes."""
        num_nodes = int(os.environ.get("WORLD_SIZE") or 1)
        rendezvous = None
        if num_nodes > 1:  # a name is looked up, for agents say which address they mean
            first = os.environ["MASTER_ADDR"]
            (*_, (address, *_)), *_ = socket.getaddrinfo(first, None, type=socket.SOCK_STREAM)
            rendezvous = base.Rendezvous(
                address=str(address),
                port=int(os.environ.get("MASTER_PORT") or 6105),
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
        was_told = verdict.kind == "preempted" or verdict.signal == "SIGTERM"
        return Decision(sequel="open", cause="kill or requeue" if was_told else "nothing")

    def examine(self, job: JobSpec, cluster: ClusterProfile) -> Iterator[base.Finding]:
        """Check the SDK, the login, and the compute of the workspace."""
        try:
            azure = check_profile(cluster)
            compute = workspace.check_compute(azure, job.resources.nodes)
        except errors.HpcdistError as error:
            yield base.failed("workspace", error.message, str(error.hint))
        else:
            found = f"{azure.workspace} knows you, and has {compute.name}: nodes {compute.size}"
            yield base.passed("workspace", found)


scheduler = AzureScheduler()


def workspace_of(run: Run) -> AzureOptions:
    """Return the workspace that a run was planned for."""
    return run.spec.cluster.profile.azure


def name_of(run: Run) -> str:
    """Return the name of a run's job; of one that is being submitted, as it was planned."""
    return (run.read_submission() or Submission()).job_id or job_name(run.id)


def job_name(name: str) -> str:
    """Return the name of a run as Azure takes it: letters, digits, dashes and underscores; the SDK
    makes capitals small."""
    return re.sub(r"[^a-z0-9_-]", "-", name.lower())


# Jobs.


def _ask_jobs(runs: Sequence[Run]) -> dict[str, Job | None]:
    """Return the job by run id; None where Azure has none. Raises SchedulerError."""
    with quiet(), ThreadPoolExecutor(_QUESTIONS_AT_ONCE) as pool:
        jobs = list(pool.map(lambda run: _ask_job(workspace_of(run), name_of(run)), runs))
    return {run.id: job for run, job in zip(runs, jobs, strict=True)}


def _ask_job(azure: AzureOptions, name: str) -> Job | None:
    client = client_of(azure)
    try:
        with asking(f"the job {name}"):
            job = client.jobs.get(name)
    except NotFoundError:
        return None
    word = str(getattr(job.status, "value", job.status))
    state, reason = _STATES.get(word, ("unknown", f"Azure calls it {word}"))
    if state in ("failed", "unknown") and job.studio_url:
        reason = f"{reason}; its page: {job.studio_url}"
    return Job(id=name, name="", state=state, word=word, reason=reason)


def create(azure: AzureOptions, file: Path, name: str) -> list[str]:
    """Create the job that a file describes; return what there is to say of it.

    Whatever the error, the job may be there: its name is looked for. Raises SchedulerError, and
    SubmissionUnclearError where Azure does not tell.
    """
    client = client_of(azure)
    from azure.ai.ml import load_job

    # The SDK is to send nothing of the user's git repository: its URL may hold a password.
    git_folder = os.environ.get("GIT_DIR")
    os.environ["GIT_DIR"] = os.devnull
    try:
        with asking(f"the job {name}"), quiet():
            client.jobs.create_or_update(load_job(file))
    except errors.SchedulerError as error:  # such as that a repeated request would change the job
        with suppress(errors.SchedulerError):
            if _ask_job(azure, name) is not None:
                return [f"Azure gave an error, but has the job {name}: {error.message}"]
        if not isinstance(error, SilentAzureError):
            raise
        # Azure may have the request still.
        raise base.unclear_submission(name, error.message) from error
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
    except errors.SchedulerError:
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
        raise errors.ProfileError(
            f"the cluster profile: {keys} {'are' if len(missing) > 1 else 'is'} not set",
            hint="`hpcdist cluster copy azure` prints a profile to be filled in",
        )
    refuse_keys(cluster, _WORDS_OF_OTHERS, "Azure")
    return azure


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def job_yaml(job: JobSpec, cluster: ClusterProfile, target: Target) -> str:
    """Return the job as `az ml job create --file` and the SDK read it; pure.

    Raises ProfileError for a profile that lacks something.
    """
    azure, name = check_profile(cluster), job_name(target.name)
    title = "".join(c if c.isprintable() else " " for c in job.name)
    settings = cluster.environment | target.environment
    named = str(azure.environment)
    environment = named if named.startswith("azureml:") else f"azureml:{named}"
    document: dict[str, Any] = {
        "$schema": "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json",
        "type": "command",
        "name": name,
        "display_name": title,
        "experiment_name": slug(job.name).replace(".", "-"),
        "code": workspace.CODE,
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
    output = {"type": "uri_folder", "mode": "rw_mount", "path": path}
    document["outputs"] = {_OUTPUT: output}
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1e9)
    return f"# hpcdist: {' '.join(title.split())}\n{text}"


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
            f"tar -xzf {workspace.ARCHIVE} || exit 1",
            f"export PYTHONPATH={entries}${{PYTHONPATH:+:$PYTHONPATH}}",
            f"exec {python} -u -m hpcdist.schedulers.azure.node ${{{{outputs.{_OUTPUT}}}}}",
        ]
    )
