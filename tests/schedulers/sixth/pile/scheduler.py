"""What hpcdist asks of a scheduler, answered from the folders of the pile."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle

from hpcdist.base import files
from hpcdist.cluster.site import Partition, Site
from hpcdist.runs.spec import LaunchPlan, NodePlan, Submission
from hpcdist.runs.verdict import cancelled_verdict
from hpcdist.schedulers.base import (
    Accounting,
    Condition,
    JobPlace,
    Plan,
    Scheduler,
    passed,
)
from hpcdist.schedulers.requeue import Decision


class PileScheduler(Scheduler):
    name = "pile"
    title = "Pile"
    has_queue = True
    can_requeue = True
    longest_poll_s = 0.2

    def plan(self, job, cluster, *, busy_gpus=()):  # noqa: ARG002 - those of this machine
        launch = LaunchPlan(
            nodes=[NodePlan(address=f"127.0.0.{1 + node}") for node in range(job.resources.nodes)],
            device="cpu",
            backend="gloo",
            num_threads=1,
            interface="lo",
            warning_signals=["SIGUSR2"],
        )
        return Plan(launch=launch, cluster=cluster, notes=["the pile is a test's"])

    def explain(self, job, plan):  # noqa: ARG002 - as the protocol has it
        return [f"boxes: {job.resources.nodes}"]

    def render(self, job, target, plan):
        exports = plan.cluster.environment | target.environment
        after = [f"#PILE after {one.kind} {' '.join(one.job_ids)}" for one in target.dependencies]
        lines = [
            "#!/bin/bash",
            f"#PILE name {target.name} nodes {job.resources.nodes}",
            *after,
            f"cd {shlex.quote(target.cwd)}",
            *(f"export {name}={shlex.quote(value)}" for name, value in exports.items()),
            *plan.cluster.setup,
            f"exec {plan.cluster.python or sys.executable} -u -m pile.node",
        ]
        return "\n".join(lines) + "\n"

    def submit(self, job, target, runs, script, *, agents):
        for run, agent in zip(runs, agents, strict=True):
            job_id = _pile_up(job, target, script, agent)
            run.write_submission(
                Submission(
                    scheduler=self.name,
                    job_id=job_id,
                    job_name=target.name,
                    submitted_s=time.time(),
                    folder=str(target.folder),
                )
            )
        return []

    def submit_task(self, job, target, task, script):
        return _pile_up(job, target, script, task), []

    def conditions(self, runs):
        return {run.id: _condition(run) for run in runs}

    def accounting(self, runs):
        books = {run.id: _read(run.read_job_id()) for run in runs if run.read_job_id()}
        return {
            name: Accounting(
                job_id=book["id"],
                state=book["state"],
                submit_s=book["submit_s"],
                start_s=book.get("start_s"),
                end_s=book.get("end_s"),
            )
            for name, book in books.items()
        }

    def cancel(self, runs):
        for run in runs:
            run.ask_to_cancel()
            os.kill(_read(run.read_job_id())["pid"], signal.SIGTERM)
        while any(_condition(run).state in ("pending", "running") for run in runs):
            time.sleep(0.05)
        for run in runs:
            run.write_verdict(cancelled_verdict())

    def place(self):
        node = int(os.environ["PILE_NODE"])
        return JobPlace(node_rank=node, num_nodes=int(os.environ["PILE_NODES"]), host=f"box{node}")

    def life(self):
        return int(os.environ["PILE_LIFE"])

    def decide(self, verdict):  # noqa: ARG002 - all that the pile ends is to go on
        return Decision(sequel="requeue", cause="time_limit")

    def requeue(self, run):  # noqa: ARG002 - the job is known by the environment
        Path(os.environ["PILE_JOB"], "requeue").touch()

    def detect_site(self):
        boxes = Partition(name="boxes", is_default=True, num_nodes=2, cpus=1)
        return Site(scheduler=self.name, gpu_request="gres", partitions=(boxes,))

    def examine(self):
        yield passed("pile", f"it is at {_pile()}")

    def try_script(self, script):
        return passed("directives", f"the pile takes all {len(script)} characters")

    def explain_end(self, run):
        return f"the pile says {_condition(run).state}"


scheduler = PileScheduler()


def _pile():
    return Path(os.environ["PILE"])


def _read(job_id):
    return files.read_json(_pile() / job_id / "job.json")


def _condition(run):
    job = _read(run.read_job_id())
    reason = "it waits for others" if job["state"] == "pending" else None
    return Condition(state=job["state"], reason=reason)


def _pile_up(job, target, script, task):
    job_id = f"p{len(list(_pile().iterdir())) + 1}"
    folder = _pile() / job_id
    folder.mkdir()
    (folder / "script.sh").write_text(script)
    (folder / "task.pkl").write_bytes(cloudpickle.dumps(task))
    described = {
        "id": job_id,
        "state": "pending",
        "submit_s": time.time(),
        "nodes": job.resources.nodes,
        "logs": str(target.submitit_folder),
        "after": [[one.kind, one.job_ids] for one in target.dependencies],
    }
    files.write_json(folder / "job.json", described)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pile.carrier", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    while "pid" not in json.loads((folder / "job.json").read_text()) and process.poll() is None:
        time.sleep(0.02)
    return job_id
