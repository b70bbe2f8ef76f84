"""The local scheduler: this machine as a cluster of simulated nodes, through submitit.

submitit's own local executor knows one node only, so N nodes are N tasks of it. Each has its own
agent, its own loopback address and its own share of the CPUs and GPUs, so that what runs here is
what runs on a cluster.
"""

from __future__ import annotations

import shlex
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec

from hpcdist.base import files
from hpcdist.base.errors import SchedulerError
from hpcdist.base.polling import poll
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.machine.cpus import usable_cpus
from hpcdist.machine.gpus import list_gpus
from hpcdist.machine.memory import free_bytes
from hpcdist.machine.process import (
    ProcessId,
    descendants,
    identify,
    is_alive,
    is_cleaner,
    send_signal,
    works_in,
)
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission
from hpcdist.runs.verdict import State, cancelled_verdict
from hpcdist.schedulers.base import (
    Condition,
    Finding,
    Plan,
    Scheduler,
    Target,
    passed,
    skipped,
)
from hpcdist.schedulers.jobs import is_new, note_jobs
from hpcdist.schedulers.local import layout
from hpcdist.schedulers.request import render

_PATIENCE_S = 0.9
"""Time that agents have, beyond the ranks' grace, to end a run in order before they are killed."""

_KILL_PATIENCE_S = 5.0
_POLL_S = 0.02
_STARTING_S = 60.0


class LocalScheduler(Scheduler):
    """Runs as processes of this machine."""

    name = "local"
    title = "this machine"
    runs_here = True
    takes_containers = True
    longest_poll_s = 1.0  # asking this machine is cheap

    def plan(
        self, job: JobSpec, cluster: ClusterProfile, *, busy_gpus: Collection[str] = ()
    ) -> Plan:
        launch = layout.lay_out(job, busy_gpus)
        return Plan(launch=launch, notes=layout.notes(job, launch), cluster=cluster)

    def explain(self, job: JobSpec, plan: Plan) -> list[str]:
        return layout.explain(job, plan.launch)

    def render(self, job: JobSpec, target: Target, plan: Plan) -> str:
        environment = plan.launch.environment
        return render("local.sh.j2", job, target, plan.cluster, environment=environment)

    def submit(self, job: JobSpec, target: Target, runs: Sequence[Run], script: str) -> list[str]:
        """Start the agents in the background, in a session of their own."""
        from submitit.local.local import LocalJob

        from hpcdist.schedulers.submitting import ScriptExecutor, start_local_controller

        (run,) = runs
        started: list[ProcessId] = []

        def start() -> str:
            files.write_whole(target.script_file, script)
            # Not by its path, where others of a project's group could exchange it at this moment.
            process = start_local_controller(
                shlex.join(["/bin/bash", "-c", script]),
                target.submitit_folder,
                num_tasks=job.resources.nodes,
                log=run.submitit_folder / "controller.log",
            )
            started.extend(filter(None, [identify(process.pid)]))
            # A program that goes on after submitting must not keep the ended run as a zombie.
            threading.Thread(target=process.wait, daemon=True).start()
            return str(process.pid)

        executor = ScriptExecutor(
            target.submitit_folder,
            job_class=LocalJob,
            num_tasks=job.resources.nodes,
            send=start,
            take_back=lambda _: _kill_all(started),
        )
        job_ids = executor.submit_all(self.agents(runs))
        process = started[0] if started else None
        note_jobs(
            runs,
            job_ids,
            submission=Submission(scheduler=self.name, process=process),
            target=target,
            take_back=lambda: _kill_all(started),
        )
        return []

    def conditions(self, runs: Sequence[Run]) -> dict[str, Condition]:
        """Look at the processes: running while an agent lives, pending while only submitit does."""
        return {run.id: Condition(state=_state(run)) for run in runs}

    def cancel(self, runs: Sequence[Run]) -> None:
        """Ask the agents to end the runs; kill what does not obey.

        Raises SchedulerError where a run is on another host, or cannot be killed.
        """
        self.end(runs, signal.SIGTERM, lambda: False)

    def end(
        self, runs: Sequence[Run], number: signal.Signals, is_urgent: Callable[[], bool]
    ) -> None:
        for run in runs:
            for process in _processes(run):
                if is_alive(process) is None:
                    raise SchedulerError(
                        f"the run is on host {process.host}, and cannot be seen from here",
                        hint=f"cancel it there: ssh {process.host} hpcdist cancel ...",
                    )
        for run in runs:
            for agent in _marked(run, _agents(run)):
                send_signal(agent.pid, number)
        for run in runs:
            _wait_or_kill(run, is_urgent)

    def enter(
        self,
        run: Run,  # noqa: ARG002 - its nodes are this host
        host: str,
        command: Sequence[str],
        *,
        is_terminal: bool,  # noqa: ARG002 - it is this one
    ) -> list[str]:
        if host != socket.gethostname():
            raise SchedulerError(
                f"the run is on host {host}", hint=f"attach there: ssh {host} -t hpcdist attach ..."
            )
        return list(command)

    def examine(self) -> Iterator[Finding]:
        gpus = list_gpus()
        there = f"{len(gpus)} GPUs, {sum(gpu.is_idle for gpu in gpus)} idle" if gpus else "no GPU"
        free = free_bytes() / 1e9
        yield passed("machine", f"{len(usable_cpus())} CPUs, {there}, {free:.1f} GB of memory free")

    def try_script(self, script: str) -> Finding:  # noqa: ARG002 - as the protocol has it
        return skipped("directives", "a run on this machine has none")


scheduler = LocalScheduler()


def _wait_or_kill(run: Run, is_urgent: Callable[[], bool]) -> None:
    poll(
        lambda: is_urgent() or not _marked(run, _agents(run)) or None,
        interval_s=_POLL_S,
        limit_s=run.read_outline().launch.grace_s + _PATIENCE_S,
    )
    poll(
        lambda: not _kill_all(_marked(run, _processes(run))) or None,
        interval_s=_POLL_S,
        limit_s=_KILL_PATIENCE_S,
    )
    if left := _marked(run, _processes(run)):
        raise SchedulerError(
            f"processes of the run cannot be killed: {', '.join(str(p.pid) for p in left)}",
            hint="they may wait for a device or a file system; see their state with ps",
        )
    run.write_verdict(cancelled_verdict())


def _state(run: Run) -> State:
    submission, agents = run.read_submission(), _agents(run)
    if any(is_alive(agent) is not False for agent in agents):
        return "running"  # on another host as far as can be known: its end is a verdict
    if submission is None and not agents:
        # It is being submitted now, or was left behind by a submission that was killed: submitit is
        # started moments after the last file that is written into the run directory itself.
        return "pending" if is_new(run, _STARTING_S) else "lost"
    controller = None if submission is None else submission.process
    if not agents and controller is not None and is_alive(controller) is not False:
        return "pending"
    return "lost"


def _processes(run: Run) -> list[ProcessId]:
    """Return the agents and submitit's controller."""
    submission = run.read_submission() or Submission()
    return [*_agents(run), *filter(None, [submission.process])]


def _agents(run: Run) -> list[ProcessId]:
    found: list[ProcessId] = []
    with suppress(OSError):
        for path in run.agent_files():
            value = files.read_json(path)
            with suppress(msgspec.ValidationError):
                found.append(files.convert(value, _AgentFile).process)
    return found


class _AgentFile(msgspec.Struct):
    process: ProcessId


def _marked(run: Run, processes: Iterable[ProcessId]) -> list[ProcessId]:
    """Return the living that are this user's and work in the run's directory: files of a copy, or
    of somebody else's making, name other processes."""
    return [process for process in _living(processes) if works_in(process.pid, run.path)]


def _living(processes: Iterable[ProcessId]) -> list[ProcessId]:
    return [process for process in processes if is_alive(process)]


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
