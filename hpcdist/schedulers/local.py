"""The local scheduler: this machine as a cluster of simulated nodes.

Each node has its own agent, its own loopback address and its own share of the CPUs and GPUs, so
that what runs here is what runs on a cluster.
"""

# ruff: noqa: ARG002 - the protocol has the arguments
from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import JobError, SchedulerError
from hpcdist.base.progress import poll
from hpcdist.base.text import number_of
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.machine.containers import HOST_RUNTIMES
from hpcdist.machine.cpus import share_cpus, threads_per_rank, usable_cpus
from hpcdist.machine.gpus import Gpu, list_gpus, why_not_used
from hpcdist.machine.memory import free_bytes
from hpcdist.machine.ports import local_addresses
from hpcdist.machine.process import (
    ProcessId,
    descendants,
    is_alive,
    is_cleaner,
    send_signal,
    works_in,
)
from hpcdist.runs.run import Run
from hpcdist.runs.spec import LaunchPlan, NodePlan, Submission
from hpcdist.runs.verdict import State, cancelled_verdict
from hpcdist.schedulers.base import Condition, Finding, Plan, Scheduler, Target, passed
from hpcdist.schedulers.batch import is_new
from hpcdist.schedulers.request import render
from hpcdist.schedulers.tasks import (
    NODE_VARIABLE,
    agents_of,
    start_in_background,
    write_tasks,
)

_RANK_BYTES = 100e6
"""Least memory of a forked rank, before any model or data; an agent has three times as much."""
_PATIENCE_S = 0.9
"""Time that agents have, beyond the ranks' grace, to end a run in order before they are killed."""
_KILL_PATIENCE_S = 5.0
_POLL_S = 0.02
_STARTING_S = 60.0
_NODES = (
    "for node in $(seq 0 $(($1 - 1))); do "
    f'{NODE_VARIABLE}=$node /bin/bash -c "$2" >> "$3/$$_${{node}}_log.out" 2>&1 & done; wait'
)
"""Starts the script for each node, and waits for all: number of nodes, script, folder of logs."""


class LocalScheduler(Scheduler):
    """Runs as processes of this machine."""

    name = "local"
    title = "this machine"
    runs_here = True
    container_runtimes = HOST_RUNTIMES
    can_enter = True
    longest_poll_s = 1.0  # asking this machine is cheap

    def plan(self, job: JobSpec, cluster: ClusterProfile) -> Plan:
        launch = lay_out(job)
        if launch.device == "cuda":
            return Plan(launch=launch, cluster=cluster)
        is_asked = job.launch.device == "cpu"
        why = "as launch.device says" if is_asked else why_not_used() or "no GPU here"
        ranks = number_of(job.num_ranks, "rank")
        note = f"{why}: {ranks} on {len(usable_cpus())} CPUs, with gloo"
        return Plan(launch=launch, notes=[note], cluster=cluster)

    def render(self, job: JobSpec, target: Target, plan: Plan) -> str:
        setup = plan.cluster.setup
        lines = ["# From the cluster profile.", *setup] if setup else []
        return render("local.sh", job, target, plan, setup=lines)

    def submit(self, job: JobSpec, target: Target, runs: Sequence[Run], script: str) -> list[str]:
        """Start the agents in the background, in a session of their own."""
        (run,) = runs
        target.make_folders()
        files.write_whole(target.script_file, script)
        write_tasks(target.submitit_folder, dict(enumerate(agents_of(runs, self.name))))
        # Not by its path, where others of a project's group could exchange it at this moment.
        argv = ["/bin/bash", "-c", _NODES, "hpcdist", str(job.resources.nodes), script]
        folder = target.submitit_folder
        process = start_in_background([*argv, str(folder)], folder / "controller.log", os.environ)
        try:
            run.write_submission(
                Submission(
                    scheduler=self.name,
                    job_id=str(process.pid) if process else None,
                    job_name=target.name,
                    folder=str(target.folder),
                    process=process,
                )
            )
        except BaseException:
            _kill_all(filter(None, [process]))
            raise
        return []

    def conditions(self, runs: Sequence[Run]) -> dict[str, Condition]:
        """Look at the processes: running while an agent lives, pending while only the script."""
        return {run.id: Condition(state=_state(run)) for run in runs}

    def cancel(
        self,
        runs: Sequence[Run],
        *,
        number: signal.Signals = signal.SIGTERM,
        is_urgent: Callable[[], bool] = lambda: False,
    ) -> None:
        """Ask the agents to end the runs; kill what does not obey.

        Raises SchedulerError where a run is on another host, or cannot be killed.
        """
        for process in (process for run in runs for process in _processes(run)):
            if is_alive(process) is None:
                raise SchedulerError(
                    f"the run is on host {process.host}, and cannot be seen from here",
                    hint=f"cancel it there: ssh {process.host} hpcdist cancel ...",
                )
        for run in runs:
            if number == signal.SIGTERM:  # in held nodes, that alone is the end of those
                with suppress(OSError):  # a full disk must not keep a run alive
                    run.ask_to_cancel()
            for agent in _marked(run, _agents(run)):
                send_signal(agent.pid, number)
                send_signal(agent.pid, signal.SIGCONT)  # to one that is stopped
        for run in runs:
            poll(
                lambda run=run: is_urgent() or not _marked(run, _agents(run)) or None,  # type: ignore[misc]
                interval_s=_POLL_S,
                limit_s=run.spec.outline.launch.grace_s + _PATIENCE_S,
            )
            poll(
                lambda run=run: not _kill_all(_marked(run, _processes(run))) or None,  # type: ignore[misc]
                interval_s=_POLL_S,
                limit_s=_KILL_PATIENCE_S,
            )
            if left := _marked(run, _processes(run)):
                raise SchedulerError(
                    f"processes of the run cannot be killed: {', '.join(str(p.pid) for p in left)}",
                    hint="they may wait for a device or a file system; see their state with ps",
                )
            run.write_verdict(cancelled_verdict())

    def enter(self, run: Run, host: str, command: Sequence[str], *, is_terminal: bool) -> list[str]:
        if host != socket.gethostname():
            raise SchedulerError(
                f"the run is on host {host}", hint=f"attach there: ssh {host} -t hpcdist attach ..."
            )
        return list(command)

    def examine(self, job: JobSpec, cluster: ClusterProfile) -> Iterator[Finding]:
        gpus = list_gpus()
        there = f"{len(gpus)} GPUs, {sum(gpu.is_idle for gpu in gpus)} idle" if gpus else "no GPU"
        free = free_bytes() / 1e9
        yield passed("machine", f"{len(usable_cpus())} CPUs, {there}, {free:.1f} GB of memory free")


scheduler = LocalScheduler()


# The layout of the ranks.


def lay_out(job: JobSpec) -> LaunchPlan:
    """Lay the ranks out over this machine.

    Raises JobError where the machine has not enough memory or GPUs.
    """
    num_nodes, per_node = job.resources.nodes, job.ranks_per_node
    num_ranks = num_nodes * per_node
    needed, free = (num_ranks + 3 * num_nodes) * _RANK_BYTES, free_bytes()
    if needed > free:
        raise JobError(
            f"{num_ranks} ranks on this machine need at least {needed / 1e9:.0f} GB of memory, "
            f"{free / 1e9:.0f} GB are free",
            hint="ask for fewer with --nodes and --gpus",
        )
    cpus = usable_cpus()
    shares = share_cpus(cpus, num_ranks, per_share=job.cpus_per_rank)
    num_threads = threads_per_rank(len(cpus), num_ranks, cpus_per_rank=job.cpus_per_rank)
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if wanted.isdecimal() and int(wanted):
        num_threads = int(wanted)
    launch = LaunchPlan(
        nodes=[
            NodePlan(address=address, rank_cpus=shares[node * per_node : (node + 1) * per_node])
            for node, address in enumerate(islice(local_addresses(), num_nodes))
        ],
        device="cpu",
        backend="gloo",
        num_threads=num_threads,
        environment={"OMP_NUM_THREADS": str(num_threads)},
        warning_signals=["SIGUSR2"],
        enforces_limits=True,
        interface="lo",
    )
    gpus = [] if job.launch.device == "cpu" else list_gpus()
    if gpus:
        return _on_gpus(job, launch, gpus)
    if job.launch.device == "cuda":
        raise JobError(
            "launch.device is cuda, but this machine shows no GPU "
            f"({why_not_used() or 'NVML and the driver of AMD find none'})",
            hint="use launch.device=auto or cpu, or submit to a cluster with GPUs",
        )
    if job.launch.backend == "nccl":
        raise JobError(
            "launch.backend is nccl, which needs GPUs, and this machine shows none",
            hint="use launch.backend=auto or gloo",
        )
    return launch


def _on_gpus(job: JobSpec, launch: LaunchPlan, gpus: Sequence[Gpu]) -> LaunchPlan:
    per_node = job.resources.gpus
    if job.gpus_per_rank != 1:  # a rank that can drive several takes what there is
        per_node = min(per_node, max(sum(gpu.is_idle for gpu in gpus), 1))
    uuids = [gpu.uuid for gpu in choose_gpus(gpus, job.resources.nodes * per_node)]
    nodes = [
        msgspec.structs.replace(node, gpus=uuids[index * per_node : (index + 1) * per_node])
        for index, node in enumerate(launch.nodes)
    ]
    backend = "nccl" if job.launch.backend == "auto" else job.launch.backend
    return msgspec.structs.replace(launch, nodes=nodes, device="cuda", backend=backend)


def choose_gpus(gpus: Sequence[Gpu], number: int) -> list[Gpu]:
    """Return so many idle GPUs; busy ones are never taken.

    Raises JobError that says what is free and who holds the rest.
    """
    idle = [gpu for gpu in gpus if gpu.is_idle]
    if len(idle) >= number:
        return idle[:number]
    busy = "".join(
        f"; GPU {gpu.index} is in use by {', '.join(gpu.holders) or 'a process of another user'}"
        for gpu in gpus
        if not gpu.is_idle
    )
    raise JobError(
        f"{number} GPUs are asked for (nodes x gpus), {len(idle)} of {len(gpus)} are idle{busy}",
        hint="ask for fewer with --nodes and --gpus, or run on the CPUs: --set launch.device=cpu",
    )


# Processes.


def _state(run: Run) -> State:
    submission, agents = run.read_submission(), _agents(run)
    # What is on another host lives as far as can be known: its end is a verdict.
    if any(is_alive(agent) is not False for agent in agents):
        return "running"
    if agents:
        return "lost"
    if submission is None:
        # It is being submitted now, or was left behind by a submission that was killed: its script
        # is started moments after the last file that is written into the run directory itself.
        return "pending" if is_new(run, _STARTING_S) else "lost"
    controller = submission.process
    return "pending" if controller and is_alive(controller) is not False else "lost"


def _processes(run: Run) -> list[ProcessId]:
    """Return the agents and the process that starts them."""
    submission = run.read_submission() or Submission()
    return [*_agents(run), *filter(None, [submission.process])]


class _AgentFile(msgspec.Struct):
    process: ProcessId


def _agents(run: Run) -> list[ProcessId]:
    found: list[ProcessId] = []
    with suppress(OSError):
        for path in run.agent_files():
            with suppress(msgspec.ValidationError):
                found.append(files.convert(files.read_json(path), _AgentFile).process)
    return found


def _marked(run: Run, processes: Iterable[ProcessId]) -> list[ProcessId]:
    """Return the living that are this user's and work in the run's directory: files of a copy, or
    of somebody else's making, name other processes."""
    return [one for one in processes if is_alive(one) and works_in(one.pid, run.path)]


def _kill_all(processes: Iterable[ProcessId]) -> bool:
    """SIGKILL the living and all below them, tasks that are no agents yet too; False: none lived.

    What this misses goes with its agent: forkservers and ranks end when their parents do. Those
    that free shared memory end by themselves when it is free.
    """
    living = [process for process in processes if is_alive(process)]
    for pid in [pid for process in living for pid in (process.pid, *descendants(process.pid))]:
        if not is_cleaner(pid):
            send_signal(pid, signal.SIGKILL)
    return bool(living)
