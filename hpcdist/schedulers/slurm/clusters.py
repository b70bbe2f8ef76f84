"""Which cluster a run was submitted to: sites with several share one home between them."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable

from hpcdist.base.errors import SchedulerError
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission
from hpcdist.schedulers.base import Condition
from hpcdist.schedulers.slurm.config import ask_config

_NAME = re.compile(r"^ClusterName\s*=\s*(\S+)\s*$", re.MULTILINE)


class ClusterQuestion:
    """Asks for the cluster's name in the background, while sbatch makes the caller wait anyway."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        self._name = ask_cluster()

    def answer(self) -> str | None:
        """The name; None where scontrol does not tell."""
        self._thread.join()
        return self._name


def ask_cluster() -> str | None:
    """Name of the cluster that Slurm's commands talk to; None where scontrol does not tell."""
    return parse_cluster(ask_config())


def parse_cluster(text: str) -> str | None:
    """ClusterName of `scontrol show config`."""
    found = _NAME.search(text)
    return found[1] if found else None


def conditions_elsewhere(runs: Iterable[Run]) -> dict[str, Condition]:
    """Of those of the runs that this cluster cannot know; asks scontrol once, if at all."""
    theirs = {run.id: cluster for run in runs if (cluster := _cluster_of(run)) is not None}
    here = ask_cluster() if theirs else None
    return {
        name: Condition(state="unknown", reason=_reason(cluster, here))
        for name, cluster in theirs.items()
        if cluster != here
    }


def refuse_elsewhere(runs: Iterable[Run]) -> None:
    """Raise SchedulerError for a run that another cluster has: nothing here could end it."""
    for name, condition in conditions_elsewhere(runs).items():
        raise SchedulerError(
            f"run {name} cannot be cancelled here: {condition.reason}",
            hint="cancel it from a login node of its cluster",
        )


def _reason(cluster: str, here: str | None) -> str:
    this = f"this is cluster {here}" if here else "scontrol does not tell which cluster this is"
    return f"it was submitted to cluster {cluster}, and {this}"


def _cluster_of(run: Run) -> str | None:
    return (run.read_submission() or Submission()).cluster
