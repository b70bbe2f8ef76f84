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

from hpcdist.agent.launcher_end import after_srun, srun_errors
from hpcdist.agent.member import UNFIT, Member
from hpcdist.agent.node import OwnNode
from hpcdist.agent.outcome import failure, lives
from hpcdist.base.errors import EXIT_FAILED, SchedulerError
from hpcdist.base.files import close_umask
from hpcdist.base.ownership import NotOwnError, check_own_folder, is_own
from hpcdist.machine.process import adopt_orphans, kill_descendants
from hpcdist.notify import tell_end
from hpcdist.rank.lack import full_disk
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Kind, Verdict
from hpcdist.schedulers import load_requeuer, load_scheduler
from hpcdist.schedulers.base import JobPlace
from hpcdist.schedulers.batch import note_own_job
from hpcdist.schedulers.notes import Notes, step_hosts


class Agent:
    """The agent of one node: `run_to_end` takes part in the run, and concludes it."""

    def __init__(self, node: OwnNode, attempts: lives.Attempts) -> None:
        self.verdict: Verdict | None = None
        self._run = attempts.run
        self._node = node
        self._attempts = attempts
        self._setup_problem = os.environ.pop("HPCDIST_SETUP_FAILED", None)  # by the job's script
        self._member: Member | None = None
        self._was_over = self._run.verdict_file.exists()
        self._notes = Notes()  # takes its variables out of the environment, which ranks inherit

    def run_to_end(self) -> None:
        """Take part in the run until it has a verdict, and leave no process behind."""
        try:
            if self._may_begin():
                adopt_orphans()
                if self._node.plan.container is None:  # else they are the image's
                    os.environ.update(self._node.environment(os.environ))
                self._member = Member(self._node, self._attempts, notes=self._notes, log=self._log)
                self.verdict = self._member.take_part()
        except UNFIT as error:
            self.verdict = self._own_verdict("launch", f"{self._node.name}: {error}")
        except Exception as error:  # noqa: BLE001 - a run must not end without a verdict
            why = full_disk(error, [self._run.path]) or repr(error)
            sentence = f"the agent of {self._node.name} failed: {why}"
            self.verdict = self._own_verdict("agent_lost", sentence)
            self._log(traceback.format_exc())
        finally:
            kill_descendants()
            if self._member is not None:
                self._member.end()
        # Last of all: whoever sees a verdict may count on it that the ranks are gone.
        if self._attempts.is_overtaken():
            newest = self._run.newest_attempt()
            self._log(f"attempt {newest} has begun elsewhere: this one has no say any more")
        else:
            self._conclude()
            if self._node.place.node_rank == 0 and not self._was_over:
                tell_end(self._run, self._node.job.name, self._node.notify)

    def _conclude(self) -> None:
        """Write this node's verdict, if there is one, or have the job started again."""
        if self.verdict is None:
            return
        self.verdict = failure.after_setup(self.verdict, self._setup_problem)
        if self.verdict.kind == "agent_lost":
            said = srun_errors(self._notes.srun_log, begin=self._notes.srun_begin)
            self.verdict = after_srun(self.verdict, said, step_hosts())
        self.verdict = lives.conclude(self._attempts, self.verdict, self._pause)

    def _may_begin(self) -> bool:
        """Return False where the run is over: it has a verdict, of an agent that could not join or
        from before a restart of the job; was cancelled in the meantime; or came no further when the
        job was started before."""
        if self._was_over:
            return False
        if self._run.cancel_file.exists():
            self.verdict = failure.cancelled("SIGTERM", time_s=time.time())
        elif self._attempts.requeuer is not None:
            lives.note_lost_attempt(self._run, life=self._attempts.life)
            if self._node.place.node_rank == 0:
                self.verdict = lives.verdict_if_stalled(self._run, self._node.job)
        return self.verdict is None

    def _pause(self, seconds: float) -> bool:
        """Wait so long, or until SIGTERM comes; return True where it does."""
        if self._member is not None:
            return self._member.notices.wait_for_sigterm(seconds)
        time.sleep(seconds)
        return False

    def _own_verdict(self, kind: Kind, sentence: str) -> Verdict:
        return failure.without_rank(
            kind,
            sentence,
            time_s=time.time(),
            attempt=self._attempts.number,
            node=self._node.place.node_rank,
            host=self._node.place.host,
        )

    def _log(self, line: str) -> None:
        """Add a line to the agent's log; drop it where the disk is full, which ends no run."""
        path = self._run.agent_log_file(self._node.place.node_rank)
        with contextlib.suppress(OSError), path.open("a") as log:
            print(time.strftime("%H:%M:%S"), line, file=log)


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
    except NotOwnError as error:
        return _refuse(run, place, error.message)
    except (KeyError, SchedulerError, msgspec.ValidationError) as error:
        return _refuse(run, place, f"{run.spec_file} cannot be read: {error!r}")
    requeuer = load_requeuer(str(spec.scheduler))
    if requeuer is not None and place.node_rank == 0:
        note_own_job(run, requeuer.own_job_id())
    node = OwnNode(job, plan, place, spec.cluster.profile.notify)
    agent = Agent(node, lives.Attempts(run, job, requeuer))
    agent.run_to_end()
    verdict = run.read_verdict() or agent.verdict
    return verdict.exit_code_of_run if verdict else EXIT_FAILED


def _refuse(run: Run, place: JobPlace, sentence: str) -> int:
    """Say why no agent may begin here, as the verdict where the run's folder is the user's own."""
    sentence = f"node {place.node_rank}: {sentence}"
    print(sentence, file=sys.stderr)
    if is_own(run.path):
        run.write_verdict(
            failure.without_rank("launch", sentence, time_s=time.time(), node=place.node_rank)
        )
    return EXIT_FAILED
