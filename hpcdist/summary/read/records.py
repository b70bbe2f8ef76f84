"""The content of a run directory as typed values: what was recorded of each rank and node."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from hpcdist.runs import benchmarks, events
from hpcdist.runs.events import (
    Digest,
    End,
    Epoch,
    Evaluation,
    Flops,
    Memory,
    NodeBegin,
    Note,
    PeerGroup,
    Resume,
    Save,
    Seconds,
    Start,
    UsageWindow,
    Window,
)
from hpcdist.runs.spec import UsedContainer
from hpcdist.runs.verdict import Verdict

EVENT_TYPES: dict[str, type[Struct]] = {**events.EVENT_TYPES, **benchmarks.EVENT_TYPES}
"""Events that the summary reads."""

OTHER_KINDS = ("collective", "place")
"""Events of ours that are no concern of the summary; there may be more."""


PositiveCount = Annotated[int, Meta(ge=1, le=10**15)]


class Fault(Struct, frozen=True, kw_only=True):
    """Something of a run that could not be read."""

    path: str
    """Relative to the run directory; `.` is the directory itself."""
    text: str
    """The reason, and what was left out: the end of a sentence that begins with the path."""


class RankRecord(Struct, frozen=True, kw_only=True):
    """The events of one rank in one attempt."""

    rank: int
    attempt: int
    starts: list[Start]
    groups: list[PeerGroup] = []
    resumes: list[Resume]
    windows: list[Window]
    """In the order in which they were written, each once, however they stand in the file."""
    num_displaced: int = 0
    """Windows that are missing, there twice, or not where they were written."""
    evaluations: list[Evaluation]
    epochs: list[Epoch]
    saves: list[Save] = []
    memories: list[Memory] = []
    notes: list[Note]
    flops: list[Flops] = []
    digests: list[Digest] = []
    ends: list[End]
    measurements: dict[str, list[Any]] = {}
    """Events of benchmarks, by kind."""
    faults: list[Fault]


class NodeRecord(Struct, frozen=True, kw_only=True):
    """The samples of one node in one attempt."""

    node: int
    attempt: int
    begins: list[NodeBegin]
    windows: list[UsageWindow]
    faults: list[Fault]


class JobResources(Struct, frozen=True, kw_only=True):
    """The resources that the job requested."""

    nodes: PositiveCount
    gpus: PositiveCount


class JobFacts(Struct, frozen=True, kw_only=True):
    """The keys of a job that the summary needs; it ignores all others."""

    name: str
    resources: JobResources


class AttemptRecord(Struct, frozen=True, kw_only=True):
    """One attempt, as the run directory describes it."""

    life: int | None = None
    """Number of times that the scheduler had started the job before."""
    begin_s: Seconds | None = None
    """Unix time, in the clock of node 0."""
    verdict: Verdict | None = None
    """Why it ended, where another was to follow."""


class RunRecord(Struct, frozen=True, kw_only=True):
    """The content of a run directory without its events."""

    id: str
    facts: JobFacts
    job: dict[str, Any]
    """The whole job, as it stands in spec.json."""
    comparison: str | None
    """Id of the sweep whose runs are the variants of a comparison, this one among them."""
    variant: str | None
    """Name of its variant there."""
    torch_version: str | None
    container: UsedContainer | None = None
    scheduler: str | None
    cluster: str | None = None
    price_per_hour: float | None = None
    """The node's."""
    verdict: Verdict | None
    newest_attempt: int
    """-1 before the first."""
    attempts: dict[int, AttemptRecord]
    faults: list[Fault]
