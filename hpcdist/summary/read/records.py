"""The content of a run directory as typed values: the fields of events that the summary reads.

Events may carry more fields than these, and there are more kinds of events: docs/events.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct, field

from hpcdist.agent.usage import NodeBegin, UsageWindow
from hpcdist.bench.benchmark import Count, PositiveCount, Seconds
from hpcdist.bench.registry import BENCHMARKS
from hpcdist.runs.events import SCHEMA_VERSION
from hpcdist.runs.spec import UsedContainer
from hpcdist.runs.verdict import Verdict

Accuracy = Annotated[float, Meta(ge=-1e12, le=1e12)]
SquareSeconds = Annotated[float, Meta(ge=0, le=1e24)]
if TYPE_CHECKING:
    Bucket = int
    Counts = list[int]
else:
    # From 1e-10 s to 1e12 s. As literals all windows have the same objects as keys, which makes
    # reading and adding up histograms faster.
    Bucket = Literal[tuple(range(-1_163, 1_398))]
    Counts = Annotated[list[Count], Meta(max_length=4_096)]


class Start(Struct, frozen=True, kw_only=True, tag_field="event", tag="start"):
    """First event of a rank: where it runs."""

    time_s: Seconds | None = None
    schema: int = SCHEMA_VERSION
    node: Count | None = None
    host: str | None = None
    world_size: Count | None = None
    local_world_size: Count | None = None
    num_nodes: Count | None = None
    num_gpus: Count | None = None
    device: str | None = None
    cpus: list[int] | None = None
    num_cpus: Count | None = None
    backend: str | None = None


class PeerGroup(Struct, frozen=True, kw_only=True, tag_field="event", tag="group"):
    """The ranks that a rank exchanges data with."""

    size: Count
    """Ranks in its process group; 0 without one."""
    exchanges: bool | None = None
    """A collective operation ran within its steps."""
    library: str | None = None
    """The library that it may exchange data through without a process group."""


class Resume(Struct, frozen=True, kw_only=True, tag_field="event", tag="resume"):
    """Training goes on from a checkpoint."""

    step: Count
    epoch: Count | None = None


class Totals(Struct, frozen=True, kw_only=True, gc=False):
    """Times of a window's steps, summed up."""

    sum: Seconds
    sumsq: SquareSeconds
    min: Seconds
    max: Seconds


class Window(Struct, frozen=True, kw_only=True, gc=False, tag_field="event", tag="steps"):
    """A window of steps of one rank."""

    time_s: Seconds | None = None
    number: Count | None = None
    """In its file, from 0 on."""
    step: Count
    """Steps finished in all, at the window's end."""
    steps: Count
    profiled: bool = False
    """Its steps were under the profiler, which slows them down."""
    samples: Count
    wall_s: Seconds
    pause_s: Seconds = 0.0
    """Between its steps, and not in `wall_s`."""
    after_s: Seconds = 0.0
    """From its last step until it was written: a rank may have hung, and ended then."""
    step_time_s: Totals
    epoch: Count | None = None
    phases_s: dict[str, Seconds] = field(default_factory=dict)
    """Time by phase, over all its steps."""
    histogram: dict[Bucket, Counts] = field(default_factory=dict)
    """Bucket -> the counts of it and of those that follow it."""
    loss: float | None = None
    """Of its last batch."""
    mean_loss: float | None = None
    """Over its steps, by this rank's samples."""
    learning_rate: float | None = None
    """Value in its last step."""


class Evaluation(Struct, frozen=True, kw_only=True, tag_field="event", tag="evaluate"):
    """An evaluation over the test data."""

    time_s: Seconds | None = None
    step: Count | None = None
    epoch: Count | None = None
    loss: float | None = None
    accuracy: Accuracy | None = None


class Epoch(Struct, frozen=True, kw_only=True, tag_field="event", tag="epoch"):
    """An epoch is done."""

    epoch: Count
    """Finished epochs."""
    step: Count | None = None
    loss: float | None = None
    """Mean over the samples of this rank, in this attempt."""


class Save(Struct, frozen=True, kw_only=True, tag_field="event", tag="checkpoint"):
    """A checkpoint is saved."""

    time_s: Seconds | None = None
    save_time_s: Seconds = 0.0


class Note(Struct, frozen=True, kw_only=True, tag_field="event", tag="note"):
    """Something that a reader of the summary should know."""

    message: str


class Memory(Struct, frozen=True, kw_only=True, tag_field="event", tag="memory"):
    """The memory of a model in one rank, and the peak so far."""

    parameter_bytes: Count
    gradient_bytes: Count
    optimizer_bytes: Count
    peak_bytes: Count | None = None


class Communication(Struct, frozen=True, kw_only=True, tag_field="event", tag="communication"):
    """The communication of a step: what computing hides of it, and what it waits for."""

    by: str
    """ddp, which times a part of its steps, or profiler."""
    whole_s: Seconds
    overlapped_s: Seconds
    exposed_s: Seconds
    trace: str | None = None
    """The profiler's trace, relative to the run directory."""


class Flops(Struct, frozen=True, kw_only=True, tag_field="event", tag="flops"):
    """The floating-point operations of a model."""

    per_sample: Annotated[float, Meta(ge=0, le=1e24)]
    precision: str | None = None
    peak_per_s: Annotated[float, Meta(ge=0, le=1e24)] | None = None
    """The peak of the rank's CPUs, by a matrix product; None on a GPU."""


class Digest(Struct, frozen=True, kw_only=True, gc=False, tag_field="event", tag="digest"):
    """The digest of a rank's parameters after a step."""

    step: Count
    parameters: Annotated[str, Meta(max_length=16)]
    is_sharded: bool = False
    """Each rank has a part of the parameters."""
    loss: float | None = None


class End(Struct, frozen=True, kw_only=True, tag_field="event", tag="end"):
    """Last event of a rank."""

    time_s: Seconds | None = None
    step: Count | None = None
    max_rss_bytes: Count | None = None
    max_cuda_bytes: Count | None = None


BENCHMARK_EVENTS = {
    kind: event for benchmark in BENCHMARKS for kind, event in benchmark.events.items()
}
"""Kinds of events that only benchmarks record, and their types."""

EVENT_TYPES: dict[str, type[Struct]] = {
    "start": Start,
    "group": PeerGroup,
    "resume": Resume,
    "steps": Window,
    "evaluate": Evaluation,
    "epoch": Epoch,
    "checkpoint": Save,
    "memory": Memory,
    "note": Note,
    "communication": Communication,
    "flops": Flops,
    "digest": Digest,
    "node": NodeBegin,
    "usage": UsageWindow,
    "end": End,
    **BENCHMARK_EVENTS,
}
"""Events that the summary reads. Their tags are their kinds; those of benchmarks that stand in the
summary as they are have none, as a tag would stand there too."""

OTHER_KINDS = ("model", "setup", "stop", "place")
"""Events of ours that are no concern of the summary; there may be more."""


class Fault(Struct, frozen=True, kw_only=True):
    """Something of a run that could not be read."""

    path: str
    """Relative to the run directory; `.` is the directory itself."""
    text: str
    """The reason, and what was left out: the end of a sentence that begins with the path."""


class Disorder(Struct, frozen=True, kw_only=True):
    """The number of windows in a rank's file that are not as they were written."""

    moved: int = 0
    """Behind a later one."""
    repeated: int = 0
    missing: int = 0
    foreign: int = 0
    """Without a number, among others that have theirs."""


class RankRecord(Struct, frozen=True, kw_only=True):
    """The events of one rank in one attempt."""

    rank: int
    attempt: int
    starts: list[Start]
    groups: list[PeerGroup] = []
    resumes: list[Resume]
    windows: list[Window]
    """In the order in which they were written, each once, however they stand in the file."""
    disorder: Disorder = Disorder()
    evaluations: list[Evaluation]
    epochs: list[Epoch]
    saves: list[Save] = []
    memories: list[Memory] = []
    notes: list[Note]
    communications: list[Communication] = []
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
