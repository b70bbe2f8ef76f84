"""Runs in the allocation that `hpcdist dev` holds: each starts at once, after those before it.

The allocation is a run itself, the dev run. Its program (`hpcdist/dev.py`) serves on each node, and
takes orders from a folder of that run's directory, which only its owner can write.
"""

# ruff: noqa: ARG002 - the protocol has the arguments
from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from hpcdist.base import files
from hpcdist.base.errors import JobError, SchedulerError, UserError
from hpcdist.base.progress import poll
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.job.spec import JobSpec
from hpcdist.runs.run import Run
from hpcdist.runs.spec import NodePlan, Submission
from hpcdist.runs.verdict import cancelled_verdict
from hpcdist.schedulers import load_scheduler
from hpcdist.schedulers.base import Allocation, Condition, JobPlace, Plan, Scheduler, Target

SCHEDULER_VARIABLE = "HPCDIST_DEV_SCHEDULER"
"""Tells an agent of a run in it which scheduler holds the allocation."""
_PATIENCE_S = 10.0
"""Time that a run has to end after its ranks' grace."""
_POLL_S = 0.1


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is to be started; the name of its file says when it was submitted."""

    run_path: str
    cwd: str
    environment: dict[str, str]


class InDev(Scheduler):
    """Runs in the allocation of a dev run."""

    name = "dev"
    title = "hpcdist dev"
    longest_poll_s = 1.0

    def plan(self, job: JobSpec, cluster: ClusterProfile) -> Plan:
        raise SchedulerError("runs go into held nodes by hpcdist submit JOB --in dev alone")

    def allocation(self, job_id: str, environment: Mapping[str, str]) -> Allocation:
        """Return the allocation of the dev run with this path."""
        dev = Run(Path(job_id))
        if not takes_runs(dev):
            raise UserError(
                f"{dev.id} takes no runs: it does not run yet, or has ended",
                hint=f"see hpcdist status {dev.id}; hpcdist dev gets an allocation",
            )
        return Allocation(job_id=job_id, num_nodes=dev.spec.outline.resources.nodes)

    def plan_step(self, job: JobSpec, cluster: ClusterProfile, allocation: Allocation) -> Plan:
        dev = Run(Path(allocation.job_id))
        held, launch, _ = dev.read_launch()
        for key in ("nodes", "gpus"):
            wanted, most = getattr(job.resources, key), getattr(held.resources, key)
            if wanted > most:
                raise JobError(
                    f"resources.{key} is {wanted}, and {dev.id} has {most}",
                    hint=f"ask for less: --{key} {most}; or get more: hpcdist dev --{key} {wanted}",
                )
        on_cpus = "cpu" in (job.launch.device, launch.device)
        launch = replace(
            launch,
            nodes=[NodePlan(address=one.address) for one in launch.nodes[: job.resources.nodes]],
            device="cpu" if on_cpus else launch.device,
            backend="gloo" if on_cpus else job.launch.backend,
            num_threads=None,
            environment={},
            warning_signals=["SIGUSR2"],  # by the dev run, as its own limit nears
            limit_min=None,
        )
        return Plan(launch=launch, cluster=cluster, allocation=allocation.job_id)

    def render(self, job: JobSpec, target: Target, plan: Plan) -> str:
        """Return the order."""
        environment = plan.cluster.environment | target.environment
        order = Order(run_path=str(target.folder), cwd=target.cwd, environment=environment)
        return files.to_json(msgspec.to_builtins(order))

    def submit(self, job: JobSpec, target: Target, runs: Sequence[Run], script: str) -> list[str]:
        (run,), dev = runs, Run(Path(str(target.allocation)))
        target.make_folders()
        run.write_submission(Submission(scheduler=self.name, job_id=dev.id, job_name=target.name))
        dev.orders_folder.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
        files.write_whole(dev.orders_folder / f"{time.time_ns()}-{run.id}.json", script)
        return []

    def conditions(self, runs: Sequence[Run]) -> dict[str, Condition]:
        return {run.id: _condition(run) for run in runs}

    def cancel(
        self, runs: Sequence[Run], *, is_urgent: Callable[[], bool] = lambda: False, **_: Any
    ) -> None:
        """Have the agents end the runs, which look about once a second, and kill what does not; a
        run that waits begins no more."""
        for run in runs:
            run.ask_to_cancel()
        for run in runs:

            def is_over(run: Run = run) -> bool | None:
                return _condition(run).state != "running" or None

            limit_s = run.spec.outline.launch.grace_s + _PATIENCE_S
            poll(lambda: is_urgent() or is_over(), interval_s=_POLL_S, limit_s=limit_s)
            run.kill_file.touch()  # for what is left of it
            poll(is_over, interval_s=_POLL_S, limit_s=_PATIENCE_S)
            run.write_verdict(cancelled_verdict())

    def enter(self, run: Run, host: str, command: Sequence[str], *, is_terminal: bool) -> list[str]:
        dev = dev_of(run)
        if (name := dev.read_scheduler()) in {None, self.name}:
            raise SchedulerError(f"{dev.id} is gone", hint=f"see hpcdist status {run.id}")
        return load_scheduler(str(name)).enter(dev, host, command, is_terminal=is_terminal)

    def place(self) -> JobPlace:
        """Return the place as what holds the allocation tells it; the run may be on fewer nodes,
        and begins now."""
        place = load_scheduler(os.environ[SCHEDULER_VARIABLE]).place()
        return replace(place, num_nodes=None, age_s=0.0)


scheduler = InDev()


def takes_runs(dev: Run) -> bool:
    """Return whether a dev run takes runs; else it does not yet, or no more."""
    return dev.dev_file.exists() and not dev.verdict_file.exists()


def dev_of(run: Run) -> Run:
    """Return the dev run that a run was submitted into."""
    return Run(run.path.parent / (Path(run.read_job_id() or "").name or "nowhere"))


def _condition(run: Run) -> Condition:
    dev, waiting = dev_of(run), list[str]()
    name, is_held = str(dev.read_scheduler()), takes_runs(dev)
    if is_held and not dev.is_alive():  # no dev run is in another; a damaged one may say so
        held = load_scheduler(name).conditions([dev]) if name != InDev.name else {}
        is_held = any(one.state == "running" for one in held.values())
    if is_held:
        orders = sorted(path.stem for path in dev.orders_folder.glob("*.json"))
        waiting = [order.partition("-")[2] for order in orders]
    run.look_anew()
    if (verdict := run.read_verdict()) is not None:
        return Condition(state=verdict.state)
    if run.id not in waiting:
        return Condition(state="lost", reason=f"{dev.id} has ended, or lost it")
    if run.has_started():
        return Condition(state="running")
    reason = "a run in it has not ended" if waiting[0] != run.id else None
    return Condition(state="pending", reason=reason)
