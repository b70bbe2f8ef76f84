"""The agent: one per node. It takes part in a run until that has a verdict, and concludes it.

It imports no torch, so it answers within milliseconds whatever the ranks do.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from pathlib import Path

import msgspec

from hpcdist.agent.launcher_end import after_launcher
from hpcdist.agent.member import UNFIT, Member
from hpcdist.agent.node import LostGpuError, OwnNode
from hpcdist.agent.outcome import failure, lives
from hpcdist.base.errors import EXIT_FAILED, SchedulerError
from hpcdist.base.files import close_umask
from hpcdist.base.ownership import NotOwnError, check_own_folder, is_own
from hpcdist.machine.process import adopt_orphans, kill_descendants
from hpcdist.notify import tell_end
from hpcdist.rank.exit import full_disk
from hpcdist.runs import nodes
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Kind, Verdict
from hpcdist.schedulers import load_requeuer, load_scheduler
from hpcdist.schedulers.base import JobPlace
from hpcdist.schedulers.batch import note_own_job
from hpcdist.schedulers.notes import Notes


def run_agent(run_path: Path, place: JobPlace) -> int:
    """Be the agent of one node; return the exit code of the run, as far as this node knows it."""
    close_umask()
    run = Run(run_path)
    try:
        check_own_folder(run.path)
        job, plan, spec = run.read_launch()
        is_shared = spec.scheduler is not None and load_scheduler(spec.scheduler).shares_files
        if is_shared and spec.snapshot and spec.snapshot.folder:
            snapshot = Path(spec.snapshot.folder)
            check_own_folder(snapshot.parent, with_content=False)
            check_own_folder(snapshot, with_content=False)
    except (NotOwnError, KeyError, SchedulerError, msgspec.ValidationError) as error:
        unreadable = f"{run.spec_file} cannot be read: {error!r}"
        sentence = error.message if isinstance(error, NotOwnError) else unreadable
        sentence = f"node {place.node_rank}: {sentence}"
        print(sentence, file=sys.stderr)
        if is_own(run.path):
            rank, now_s = place.node_rank, time.time()
            run.write_verdict(Verdict(kind="launch", message=sentence, node=rank, time_s=now_s))
        return EXIT_FAILED
    requeuer = load_requeuer(str(spec.scheduler))
    if requeuer is not None and place.node_rank == 0:
        note_own_job(run, requeuer.own_job_id())
    node = OwnNode(job, plan, place, spec.cluster.profile.notify)
    verdict = None
    # A run may have its verdict before this agent begins: that of another node's agent, which could
    # not join, or that of an earlier start of the job.
    if not run.verdict_file.exists():
        verdict = _take_part(node, lives.Attempts(run, job, requeuer))
    verdict = run.read_verdict() or verdict
    return verdict.exit_code_of_run if verdict else EXIT_FAILED


def _take_part(node: OwnNode, attempts: lives.Attempts) -> Verdict | None:
    """Take part in the run until it has a verdict, and leave no process behind; return the verdict
    as far as this node knows it."""
    run, place = attempts.run, node.place
    member: Member | None = None
    setup_problem = os.environ.pop("HPCDIST_SETUP_FAILED", None)  # by the job's script
    notes = Notes()  # takes its variables out of the environment, which ranks inherit

    def log(line: str) -> None:
        """Add a line to the agent's log; drop it where the disk is full, which ends no run."""
        path = run.agent_log_file(place.node_rank)
        with contextlib.suppress(OSError), path.open("a") as file:
            print(time.strftime("%H:%M:%S"), line, file=file)

    def failed(kind: Kind, sentence: str) -> Verdict:
        return Verdict(
            kind=kind,
            message=sentence,
            time_s=time.time(),
            attempt=attempts.number,
            node=place.node_rank,
            host=place.host,
        )

    try:
        verdict = _verdict_before(node, attempts)
        if verdict is None:
            adopt_orphans()
            if node.plan.container is None:  # else they are the image's
                os.environ.update(node.environment(os.environ))
            member = Member(node, attempts, notes=notes, log=log)  # holds GPUs while it lives
            verdict = member.take_part()
    except UNFIT as error:
        verdict = failed("launch", f"{node.name}: {error}")
        if isinstance(error, LostGpuError):
            nodes.note("gpu", place.host, run.id, str(error))
    except Exception as error:  # noqa: BLE001 - a run must not end without a verdict
        full = full_disk(error, [run.path])
        verdict = failed("agent_lost", f"the agent of {node.name} failed: {full or repr(error)}")
        if full:  # the node is not to blame
            verdict = msgspec.structs.replace(verdict, host=None)
        log(traceback.format_exc())
    finally:
        kill_descendants()
    # Last of all: whoever sees a verdict may count on it that the ranks are gone.
    if attempts.is_overtaken():
        newest = run.newest_attempt()
        log(f"attempt {newest} has begun elsewhere: this one has no say any more")
        return verdict
    verdict = verdict and failure.after_setup(verdict, setup_problem)
    leads = place.node_rank == 0 if member is None else member.leads
    verdict = _conclude(node, attempts, verdict, notes, leads=leads)
    has_lost_leader = member is not None and member.has_lost_leader and verdict is not None
    is_kept = has_lost_leader and node.job.launch.min_nodes is not None
    if is_kept and attempts.requeuer is not None and run.verdict_file.exists():
        with contextlib.suppress(SchedulerError):
            attempts.requeuer.end_job()
    return verdict


def _verdict_before(node: OwnNode, attempts: lives.Attempts) -> Verdict | None:
    """Return the verdict on a run that was cancelled in the meantime, or that came no further when
    the job was started before."""
    run = attempts.run
    if run.cancel_file.exists():
        return failure.cancelled("SIGTERM", time_s=time.time())
    if attempts.requeuer is not None:
        lives.note_lost_attempt(run, life=attempts.life)
        if node.place.node_rank == 0:
            return lives.verdict_if_stalled(run, node.job)
    return None


def _conclude(
    node: OwnNode,
    attempts: lives.Attempts,
    verdict: Verdict | None,
    notes: Notes,
    *,
    leads: bool,
) -> Verdict | None:
    """Write this node's verdict, if there is one, or have the job started again; tell the user."""
    if verdict is not None:
        if node.job.launch.min_nodes is None:  # else srun kills nobody when it has lost a node
            verdict = after_launcher(verdict, notes)
        verdict = lives.conclude(attempts, verdict)
        lives.note_node(attempts, verdict)
    if leads:
        tell_end(attempts.run, node.job.name, node.notify)
    return verdict
