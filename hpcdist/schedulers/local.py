"""The local scheduler: this machine as a cluster of simulated nodes, through submitit.

submitit's own local executor knows one node only, so N nodes are N tasks of it. Each has its own
agent, its own loopback address and its own share of the CPUs and GPUs, so that what runs here is
what runs on a cluster.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import JobError, SchedulerError
from hpcdist.base.text import number_of
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.machine.cpus import share_cpus, threads_per_rank, usable_cpus
from hpcdist.machine.gpus import Gpu, list_gpus
from hpcdist.machine.memory import free_bytes
from hpcdist.machine.ports import local_addresses, ports_are_free
from hpcdist.machine.process import (
    ProcessId,
    descendants,
    identify,
    is_alive,
    is_cleaner,
    send_signal,
)
from hpcdist.runs.run import Run
from hpcdist.runs.spec import LaunchPlan, NodePlan, Submission, threads_of_user
from hpcdist.runs.verdict import State, cancelled_verdict
from hpcdist.schedulers import Condition, Plan, Target, Task
from hpcdist.schedulers.local_explanation import explanation
from hpcdist.schedulers.script import comment, render
from hpcdist.workloads import load_workload

_AGENT_BYTES = 300e6
_RANK_BYTES = 100e6
"""What an agent with its forkserver, and a forked rank, need at least before any model or data."""

_PATIENCE_S = 0.9
"""How long agents have, beyond the ranks' grace, to end a run in order before they are killed."""

_KILL_PATIENCE_S = 5.0
_POLL_S = 0.02
_NO_LIMIT_MIN = 60 * 24 * 365
_STARTING_S = 60.0


class LocalScheduler:
    """See the module."""

    name = "local"

    def plan(
        self, job: JobSpec, cluster: ClusterProfile, *, without_gpus: Collection[str] = ()
    ) -> Plan:
        """Lay the ranks out over this machine, without the GPUs of these UUIDs.

        Raises JobError where the machine has not enough memory or GPUs, or no free port.
        """
        resources = job.resources
        _check_memory(resources.nodes, job.ranks_per_node)
        _check_ports(job)
        gpus = [] if job.launch.device == "cpu" else list_gpus()
        left = [gpu for gpu in gpus if gpu.uuid not in without_gpus]
        launch = _on_gpus(job, left) if gpus else _on_cpus(job)
        load_workload(job).check_device(launch.device)
        return Plan(notes=_notes(job, launch), launch=launch, cluster=cluster)

    def explain(self, job: JobSpec, plan: Plan) -> list[str]:
        """How the ranks share this machine."""
        return explanation(job, plan.launch)

    def render(self, job: JobSpec, target: Target, plan: Plan) -> str:
        """The script that starts one node's agent."""
        return render(
            "local.sh.j2",
            job_comment=comment(job.name),
            num_nodes=job.resources.nodes,
            cwd=target.cwd,
            setup=plan.cluster.setup,
            settings=plan.cluster.environment | target.environment,
            python=plan.cluster.python or sys.executable,
            environment=plan.launch.environment,
            submitit_folder=str(target.submitit_folder),
        )

    def submit(
        self,
        job: JobSpec,
        target: Target,
        runs: Sequence[Run],
        script: str,
        *,
        agents: Sequence[Task],
    ) -> list[str]:
        """Start the agents in the background, in a session of their own."""
        (run,), (agent,) = runs, agents
        from submitit.local.local import LocalExecutor, LocalJob

        class SimulatedNodes(LocalExecutor):
            """submitit's local executor, its tasks being nodes: run our script, and stay out of
            reach of the terminal's Ctrl-C, so that the agents can end their ranks in order."""

            @property
            def _submitit_command_str(self) -> str:
                return shlex.join(["/bin/bash", str(target.script_file)])

            def _submit_command(self, command: str) -> Any:
                process = _start_controller(run, command, job)
                # A program that goes on after submitting must not keep the ended run as a zombie.
                threading.Thread(target=process.wait, daemon=True).start()
                return LocalJob(
                    folder=self.folder,
                    job_id=str(process.pid),
                    tasks=list(range(job.resources.nodes)),
                    process=process,
                )

        files.write_whole(target.script_file, script)
        executor = SimulatedNodes(folder=target.submitit_folder)
        executor.update_parameters(tasks_per_node=job.resources.nodes)
        submitted = executor.submit(agent)
        controller = identify(int(submitted.job_id))
        try:
            run.write_submission(
                Submission(
                    scheduler=self.name,
                    job_id=submitted.job_id,
                    submitted_s=time.time(),
                    process=controller,
                )
            )
        except BaseException:
            _kill_all(_listed(controller))
            raise
        return []

    def conditions(self, runs: Sequence[Run]) -> dict[str, Condition]:
        """From the processes: running while an agent lives, pending while only submitit does."""
        return {run.id: Condition(state=_state(run)) for run in runs}

    def cancel(self, runs: Sequence[Run]) -> None:
        """Ask the agents to end the runs; kill what does not obey.

        Raises SchedulerError where a run is on another host, or cannot be killed.
        """
        for run in runs:
            self._cancel(run)

    def _cancel(self, run: Run) -> None:
        _refuse_remote(_processes(run))
        for agent in _living(_agents(run)):
            send_signal(agent.pid, signal.SIGTERM)
        _wait_until(lambda: not _living(_agents(run)), _patience_s(run))
        _wait_until(lambda: not _kill_all(_processes(run)), _KILL_PATIENCE_S)
        if left := _living(_processes(run)):
            raise SchedulerError(
                f"processes of the run cannot be killed: {', '.join(str(p.pid) for p in left)}",
                hint="they may wait for a device or a file system; see their state with ps",
            )
        run.write_verdict(cancelled_verdict())


scheduler = LocalScheduler()


# Laying out the ranks.


def _on_cpus(job: JobSpec) -> LaunchPlan:
    resources = job.resources
    cpus = usable_cpus()
    per_node = job.ranks_per_node
    num_ranks = resources.nodes * per_node
    shares = share_cpus(cpus, num_ranks, per_share=job.cpus_per_rank)
    num_threads = threads_of_user(os.environ) or threads_per_rank(
        len(cpus), num_ranks, cpus_per_rank=job.cpus_per_rank
    )
    if job.launch.device == "cuda":
        raise JobError(
            "launch.device is cuda, but this machine shows no GPU (NVML finds none)",
            hint="use launch.device=auto or cpu, or submit to a cluster with GPUs",
        )
    if job.launch.backend == "nccl":
        raise JobError(
            "launch.backend is nccl, which needs GPUs, and this machine shows none",
            hint="use launch.backend=auto or gloo",
        )
    return LaunchPlan(
        nodes=[
            NodePlan(
                address=address,
                rank_cpus=shares[node * per_node : (node + 1) * per_node],
            )
            for node, address in enumerate(islice(local_addresses(), resources.nodes))
        ],
        device="cpu",
        backend="gloo",
        num_threads=num_threads,
        environment=_environment(num_threads),
        warning_signals=["SIGUSR2"],
        enforces_limits=True,
        interface="lo",
    )


def _environment(num_threads: int) -> dict[str, str]:
    """What the libraries of agents and ranks read as they are loaded."""
    return {"OMP_NUM_THREADS": str(num_threads)}


def _on_gpus(job: JobSpec, gpus: Sequence[Gpu]) -> LaunchPlan:
    on_cpus = _on_cpus(msgspec.structs.replace(job, launch=_auto_device(job)))
    per_node = _gpus_per_node(job, gpus)
    chosen = choose_gpus(gpus, job.resources.nodes * per_node)
    nodes = [
        msgspec.structs.replace(
            node, gpus=[gpu.uuid for gpu in chosen[index * per_node : (index + 1) * per_node]]
        )
        for index, node in enumerate(on_cpus.nodes)
    ]
    backend = "nccl" if job.launch.backend == "auto" else job.launch.backend
    return msgspec.structs.replace(on_cpus, nodes=nodes, device="cuda", backend=backend)


def _gpus_per_node(job: JobSpec, gpus: Sequence[Gpu]) -> int:
    """Those asked for; a rank that can drive several takes what there is."""
    if job.gpus_per_rank == 1:
        return job.resources.gpus
    idle = sum(gpu.is_idle for gpu in gpus)
    return min(job.resources.gpus, max(idle, 1))


def _auto_device(job: JobSpec) -> Any:
    return msgspec.structs.replace(job.launch, device="auto", backend="auto")


def choose_gpus(gpus: Sequence[Gpu], number: int) -> list[Gpu]:
    """So many idle GPUs; busy ones are never taken.

    Raises JobError that says what is free and who holds the rest.
    """
    idle = [gpu for gpu in gpus if gpu.is_idle]
    if len(idle) >= number:
        return idle[:number]
    in_use = [gpu for gpu in gpus if not gpu.is_idle]
    busy = "; ".join(f"GPU {gpu.index} ({gpu.name}): {_use(gpu)}" for gpu in in_use)
    free = ", ".join(f"GPU {gpu.index}" for gpu in idle) or "none"
    raise JobError(
        f"{number} GPUs are asked for (nodes x gpus), {len(idle)} of {len(gpus)} are idle: {free}"
        + (f"; in use: {busy}" if busy else ""),
        hint="ask for fewer with --nodes and --gpus, or run on the CPUs: --set launch.device=cpu",
    )


def _use(gpu: Gpu) -> str:
    used = f"{gpu.used_bytes / 1e9:.1f} of {gpu.total_bytes / 1e9:.1f} GB in use"
    return f"{used} by {', '.join(gpu.holders) or 'a process that cannot be seen from here'}"


def _notes(job: JobSpec, launch: LaunchPlan) -> list[str]:
    ranks = job.resources.nodes * job.ranks_per_node
    threads = launch.num_threads
    if launch.device == "cuda":
        return []
    why = "as launch.device says" if job.launch.device == "cpu" else "no GPU here"
    note = (
        f"{why}: {ranks} {'rank' if ranks == 1 else 'ranks'} on {len(usable_cpus())} CPUs, "
        f"{'1 thread' if threads == 1 else f'up to {threads} threads'} each, with gloo"
    )
    return [note]


def _check_memory(nodes: int, ranks_per_node: int) -> None:
    needed = nodes * _AGENT_BYTES + nodes * ranks_per_node * _RANK_BYTES
    available = free_bytes()
    if needed > available:
        raise JobError(
            f"{nodes} nodes x {ranks_per_node} gpus are {nodes * ranks_per_node} ranks on this "
            f"machine: they need at least {needed / 1e9:.0f} GB of memory, "
            f"{available / 1e9:.0f} GB are free",
            hint="ask for fewer with --nodes and --gpus",
        )


def _check_ports(job: JobSpec) -> None:
    needed = 1 if job.resources.nodes == 1 else 2  # the ranks' store; where the agents meet
    port_range = job.launch.port_range
    if port_range and port_range[0] > port_range[1]:
        raise JobError(
            f"launch.port_range is {port_range[0]} to {port_range[1]}: the first port comes after "
            "the last",
            hint=f"write it as [{port_range[1]},{port_range[0]}]",
        )
    if not ports_are_free(next(local_addresses()), port_range, needed):
        chosen = f"{port_range[0]} to {port_range[1]}" if port_range else "not set"
        raise JobError(
            f"launch.port_range is {chosen}: fewer than {number_of(needed, 'port')} of it are free "
            "on this machine",
            hint="name a wider range, such as --set launch.port_range=[20000,29999]",
        )


# Processes.


def _start_controller(run: Run, command: str, job: JobSpec) -> subprocess.Popen[bytes]:
    """Start submitit's controller as its own start_controller does, but in a new session, and where
    no file of the user's can stand in for a module of the standard library."""
    environment = os.environ | {
        "SUBMITIT_LOCAL_NTASKS": str(job.resources.nodes),
        "SUBMITIT_LOCAL_COMMAND": command,
        "SUBMITIT_LOCAL_TIMEOUT_S": str(_NO_LIMIT_MIN * 60),
        "SUBMITIT_LOCAL_SIGNAL_DELAY_S": "30",
        "SUBMITIT_LOCAL_NODEID": "0",
        "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
        "SUBMITIT_STDERR_TO_STDOUT": "1",
        "SUBMITIT_EXECUTOR": "local",
        "SUBMITIT_LOCAL_WITH_SHELL": "",
    }
    with (run.submitit_folder / "controller.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "submitit.local._local", str(run.submitit_folder)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=run.submitit_folder,
            start_new_session=True,
        )


def _state(run: Run) -> State:
    submission = run.read_submission()
    agents = _agents(run)
    if any(is_alive(agent) is not False for agent in agents):
        return "running"  # on another host as far as can be known: its end is a verdict
    if submission is None and not agents:
        return "pending" if _is_new(run) else "lost"
    controller = None if submission is None else submission.process
    if not agents and controller is not None and is_alive(controller) is not False:
        return "pending"
    return "lost"


def _is_new(run: Run) -> bool:
    """Whether the run is being submitted now, and not left behind by a submission that was killed.

    submitit is started moments after the last file that is written into the run directory itself.
    """
    try:
        return time.time() - run.path.stat().st_mtime < _STARTING_S
    except OSError:  # deleted a moment ago
        return False


def _processes(run: Run) -> list[ProcessId]:
    """The agents and submitit's controller."""
    submission = run.read_submission() or Submission()
    return [*_agents(run), *_listed(submission.process)]


def _agents(run: Run) -> list[ProcessId]:
    found: list[ProcessId] = []
    try:
        paths = list(run.launch_folder.glob("agent-*.json"))
    except OSError:
        return found
    for path in paths:
        value = files.read_json(path)
        if isinstance(value, dict):
            found.extend(_listed(_process(value.get("process"))))
    return found


def _process(value: Any) -> ProcessId | None:
    try:
        return msgspec.convert(value, ProcessId)
    except msgspec.ValidationError:
        return None


def _listed(process: ProcessId | None) -> list[ProcessId]:
    return [] if process is None else [process]


def _living(processes: Iterable[ProcessId]) -> list[ProcessId]:
    return [process for process in processes if is_alive(process)]


def _refuse_remote(processes: Iterable[ProcessId]) -> None:
    for process in processes:
        if is_alive(process) is None:
            raise SchedulerError(
                f"the run is on host {process.host}, and cannot be seen from here",
                hint=f"cancel it there: ssh {process.host} hpcdist cancel ...",
            )


def _kill_all(processes: Iterable[ProcessId]) -> bool:
    """SIGKILL the living and all below them, tasks that are no agents yet too; False: none lived.

    What this misses goes with its agent: forkservers and ranks end when their parents do. Those
    that free shared memory end by themselves when it is free.
    """
    living = _living(processes)
    pids = [pid for process in living for pid in (process.pid, *descendants(process.pid))]
    for pid in pids:
        if not is_cleaner(pid):
            send_signal(pid, signal.SIGKILL)
    return bool(living)


def _patience_s(run: Run) -> float:
    return run.read_outline().launch.grace_s + _PATIENCE_S


def _wait_until(condition: Any, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
