"""Starting an LSF job again from within: by `brequeue`, or as another job where that is refused.

LSF does not say what it means by a signal. SIGUSR2 comes at the run limit. SIGINT, and SIGTERM
after it, come from a bkill, but also from an administrator's brequeue and from a preemption that
requeues: then what could be saved is saved, and LSF alone knows whether the job comes back. A job
whose first host is lost is LSF's to start again (-r): a brequeue would end it for good.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from hpcdist.base.errors import SubmissionUnclearError
from hpcdist.base.polling import poll
from hpcdist.machine.command import (
    CommandFailedError,
    CommandTimeoutError,
    call_command,
    failure_of,
)
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.batch import Batch, submit_anew
from hpcdist.schedulers.hosts import FIRST_END_VARIABLE, KILLED
from hpcdist.schedulers.lsf.hosts import own_id, own_index
from hpcdist.schedulers.lsf.site import ask_hosts
from hpcdist.schedulers.requeue import Decision, RequeueRefusedError, RequeueUnclearError

_TIMEOUT_S = 10.0
"""Limit of one call; what fails is tried again."""
_END_IS_KNOWN_S = 10.0
"""Time in which the program on the first host tells the others that its command has ended."""
_LOSS_IS_KNOWN_S = 60.0
"""Time for which LSF may call a lost host ok, and give it to jobs; it was 35 s."""
_POLL_S = 1.0
_DOWN = re.compile(r"LSF is down|not responding|cannot connect|time ?out", re.IGNORECASE)


class LsfRequeuer(Batch):
    """Starts the job again that the environment names."""

    def __init__(self) -> None:
        self._is_unclear = False
        """LSF may have heard a request that it did not answer: one more could be the run twice."""

    def decide(self, verdict: Verdict) -> Decision:
        """Answer the run limit, and the loss of a host, by a requeue; never a kill."""
        end: str | None = ""
        if verdict.kind == "agent_lost" and verdict.node == 0:
            # The program that starts the agents outlives the first host's; where it is silent, too,
            # that host is gone.
            file = Path(os.environ.get(FIRST_END_VARIABLE, ""))
            poll(lambda: file.is_file() or None, interval_s=_POLL_S, limit_s=_END_IS_KNOWN_S)
            end = file.read_text() if file.is_file() else None
        if verdict.kind == "preempted" or end == KILLED:
            return Decision(sequel="open", cause="kill or requeue")
        if end is None:
            return Decision(sequel="leave", cause="nothing")
        is_limit = verdict.kind == "time_limit"
        return Decision(sequel="requeue", cause="time_limit" if is_limit else "nothing")

    def requeue(self, run: Run) -> None:
        """Call brequeue, which ends this job's processes, and queues it again; submit the run as
        another job where LSF refuses."""
        end = run.read_attempt_verdict(run.newest_attempt())
        if end is not None and end.try_elsewhere:  # the job would be given the lost host once more
            poll(
                lambda: (
                    run.cancel_file.exists()
                    or run.verdict_file.exists()
                    or end.host not in ask_hosts()
                    or None
                ),
                interval_s=_POLL_S,
                limit_s=_LOSS_IS_KNOWN_S,
            )
        try:
            done = call_command(["brequeue", own_id()], timeout_s=_TIMEOUT_S)
        except CommandTimeoutError as error:
            self._is_unclear = True
            raise RequeueUnclearError(f"LSF may start it again, or not: {error.message}") from None
        if done.returncode == 0 or self._is_unclear:
            return
        refusal = failure_of(done)
        if _DOWN.search(refusal.said):
            raise refusal
        try:
            submit_anew(self, run, as_element=True, change=_go_on)
        except SubmissionUnclearError:
            self._is_unclear = True
            raise
        except CommandFailedError as error:
            if _DOWN.search(error.said):
                raise
            raise RequeueRefusedError(f"{refusal.message}; {error.message}") from None


def _go_on(script: str) -> str:
    """Return the script without the jobs that it waited for, as one element of its array."""
    script = re.sub(r"^#BSUB (?:-w|-ti)\b.*\n", "", script, flags=re.MULTILINE)
    line = rf'#BSUB -J "\1[{own_index()}]"' if own_index() else r"#BSUB -J \1"
    return re.sub(r'^#BSUB -J "?([^"\[\n]+).*$', line, script, count=1, flags=re.MULTILINE)
