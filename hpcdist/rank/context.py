"""The context of a rank: its place in the job, its run, where it records, and its work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct

from hpcdist.base import files
from hpcdist.job.preload import files_of
from hpcdist.job.spec import JobSpec
from hpcdist.runs.run import Run

if TYPE_CHECKING:  # commands plan workloads, and are no ranks
    from hpcdist.rank.board import ProgressSlot
    from hpcdist.rank.recorder import StepRecorder
    from hpcdist.runs.events import EventWriter


class RankPlace(Struct, frozen=True, kw_only=True):
    """The place of a rank in its run: what an agent orders, a rank knows, its `start` event has."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int
    """Number of its node in the job, which the others keep where one is lost."""
    num_nodes: int
    """Nodes that take part."""
    host: str
    device: str
    """`cpu`, or `cuda:<index>`: the first of its GPUs."""
    num_gpus: int = 0
    """GPUs that this rank drives: from that of its device on."""
    backend: str
    """Process group backend: gloo or nccl."""
    attempt: int
    """Counts the starts of the run's ranks, from 0; a fencing token for what is written."""
    restart_count: int
    """Number of the ranks' restarts by this launch."""
    cpus: tuple[int, ...]
    """CPUs that this rank is bound to; none where the job is not bound to its own."""
    num_cpus: int
    """CPUs that the ranks of this node have together."""
    num_threads: int
    """CPU threads that this rank should use."""

    def place_fields(self) -> dict[str, Any]:
        """Return the place by field, without what a subclass adds."""
        return {name: getattr(self, name) for name in RankPlace.__struct_fields__}


class RankOrder(RankPlace, frozen=True, kw_only=True):
    """One rank, as an agent orders it from its forkserver."""

    run_path: str
    gpu: str | None = None
    """UUID of its GPU, or of its first."""
    environment: dict[str, str]


class RankContext(RankPlace, frozen=True, kw_only=True):
    """The knowledge of a rank about itself, given to the workload that it runs."""

    run: Run
    job: JobSpec
    events: EventWriter
    progress: ProgressSlot
    say: Callable[[str], None] = files.print_line
    """Print a line into the rank's log."""

    def recorder(self, *, first_step: int = 0, **options: Any) -> StepRecorder:
        """Return a step recorder, as the job's `record` section says."""
        from hpcdist.rank.recorder import Peers, StepRecorder

        return StepRecorder(
            self.events,
            self.progress,
            window_s=self.job.record.window_s,
            enabled=self.job.record.enabled,
            first_step=first_step,
            peers=Peers(self.events) if self.world_size > 1 else None,
            **options,
        )

    def note(self, message: str) -> None:
        """Tell the user something of the run: in its summary, and in this rank's log."""
        from hpcdist.runs.events import Note

        self.events.write(Note(message=message))
        self.say(f"note: {message}")

    def is_current(self) -> bool:
        """Return False once a newer attempt has begun: then nothing shared may be written."""
        return not self.run.is_overtaken(self.attempt)


_current: RankContext | None = None


def set_current(context: RankContext | None) -> None:
    """Set the rank that this process is: once, before its workload runs; None in what it forks."""
    global _current  # noqa: PLW0603 - a process is one rank, or none
    _current = context


def current() -> RankContext | None:
    """Return the rank that this process is; None outside a run."""
    return _current


JobT = TypeVar("JobT", bound=JobSpec)


class Workload(Generic[JobT]):
    """The work of one job's ranks, and the checks and preparations before it. A workload overrides
    `run`, and of the rest what it needs.

    All methods but `run` import no torch, and but for `own_files` are called outside of the ranks.
    """

    def __init__(self, job: JobT) -> None:
        self.job = job

    def check(self) -> None:
        """Raise JobError for mistakes that can be found where the job is submitted."""

    def try_code(self) -> None:
        """Raise JobError for the user's own code that cannot be used. This may import it, beside
        this process: it is called where a job is submitted, and not to look at one."""

    def prepare(self) -> None:
        """Do what must be done once, before any rank starts, such as downloads."""

    def preload(self) -> list[str]:
        """Return the modules, which start no threads, that a node's forkserver imports in order."""
        return []

    def own_files(self) -> Sequence[Path]:
        """Return the files of the user's own code that the ranks run."""
        model, data = (getattr(self.job, section, None) for section in ("model", "data"))
        return files_of(getattr(model, "name", None)) + files_of(getattr(data, "dataset", None))

    def run(self, context: RankContext) -> None:
        """Run in this rank; `context.job` is the workload's own job."""
        raise NotImplementedError
