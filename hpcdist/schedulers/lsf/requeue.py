"""Starting an LSF job again from within: by `brequeue`, or by a new job where that is refused.

LSF does not say what it means by a signal. SIGUSR2 comes at the run limit. SIGINT, and SIGTERM
after it, come from a bkill, but also from an administrator's brequeue and from a preemption that
requeues: then what could be saved is saved, and LSF alone knows whether the job comes back.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from hpcdist import files
from hpcdist.launch.lsf_hosts import LIFE_VARIABLE
from hpcdist.launch.requeue import Decision, RequeueRefusedError
from hpcdist.run import Run
from hpcdist.schedulers.command import CommandFailedError
from hpcdist.schedulers.lsf.bjobs import brequeue
from hpcdist.schedulers.lsf.bsub import send, submission_environment
from hpcdist.schedulers.lsf.calling import DOWN
from hpcdist.schedulers.lsf.ids import own_id
from hpcdist.verdict import Verdict

_TIMEOUT_S = 10.0
"""Of one call; what fails is tried again."""
_ONLY_ONCE = re.compile(r"^#BSUB (?:-J|-w|-ti)\b.*\n", re.MULTILINE)
"""What a job that goes on must not have: its array, and what it waited for, which is long gone."""


class LsfRequeuer:
    """The job is the one that the environment names."""

    def life(self) -> int:
        """Counted in the run: LSB_RESTART does not say how often, and not every LSF sets it."""
        return int(os.environ.get(LIFE_VARIABLE) or 0)

    def decide(self, verdict: Verdict) -> Decision:
        """The run limit, and the loss of a host, are answered by a requeue; a kill never is."""
        if verdict.kind == "preempted":
            return Decision(sequel="open", cause="kill or requeue")
        return Decision(
            sequel="requeue", cause="time_limit" if verdict.kind == "time_limit" else "nothing"
        )

    def requeue(self, run: Run) -> None:
        """Call brequeue, which ends this job's processes, and queues it again."""
        try:
            brequeue(own_id(), timeout_s=_TIMEOUT_S)
        except CommandFailedError as error:
            _submit_anew(run, error)


requeuer = LsfRequeuer()


def _submit_anew(run: Run, refusal: CommandFailedError) -> None:
    """The same run as another job, by the same script."""
    submission = run.read_submission() or {}
    name = str(submission.get("job_name"))
    folder = Path(str(submission.get("folder")))
    index = os.environ.get("LSB_JOBINDEX", "0")
    called = name if index in {"", "0"} else f"{name}[{index}]"
    script = _ONLY_ONCE.sub("", (folder / "script.sh").read_text())
    try:
        job_id, _ = send(script, options=["-J", called], environment=submission_environment())
    except CommandFailedError as error:
        if DOWN.search(error.said):
            raise
        raise RequeueRefusedError(f"{refusal.message}; {error.message}") from None
    new_id = job_id if called == name else f"{job_id}[{index}]"
    _give_pickle(folder / "submitit", own_id(), new_id)
    former = [*submission.get("former_job_ids", []), submission.get("job_id")]
    files.write_json(run.submission_file, submission | {"job_id": new_id, "former_job_ids": former})


def _give_pickle(folder: Path, former: str, new: str) -> None:
    """It may come after the job's start: submitit waits a minute for it."""
    names = [one.replace("[", "_").rstrip("]") + "_submitted.pkl" for one in (former, new)]
    os.symlink(names[0], folder / names[1])
