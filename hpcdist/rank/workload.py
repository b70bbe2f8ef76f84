"""A workload: the work of every rank of a job, and the checks and preparations before it."""

from __future__ import annotations

from typing import Generic, TypeVar

from hpcdist.job.spec import JobSpec
from hpcdist.rank.context import RankContext

JobT = TypeVar("JobT", bound=JobSpec)


class Workload(Generic[JobT]):
    """The work of one job's ranks. A workload overrides `run`, and of the rest what it needs.

    All methods but `run` are called outside of the ranks, and import no torch.
    """

    def __init__(self, job: JobT) -> None:
        self.job = job

    def check(self) -> None:
        """Raise JobError for mistakes that can be found where the job is submitted."""

    def check_device(self, device: str) -> None:
        """Raise JobError for what the ranks' device, cpu or cuda, cannot do."""

    def check_host(self, device: str) -> None:
        """Raise JobError for what this host lacks; called where ranks are about to start on it."""

    def notes(self) -> list[str]:
        """Return what the user should know before the job, which has been checked, is submitted."""
        return []

    def prepare(self) -> None:
        """Do what must be done once, before any rank starts, such as downloads."""

    def preload(self) -> list[str]:
        """Return the modules that a node's forkserver imports once for all its ranks, in order;
        they start no threads."""
        return []

    def run(self, context: RankContext) -> None:
        """Run in this rank; `context.job` is the workload's own job."""
        raise NotImplementedError
