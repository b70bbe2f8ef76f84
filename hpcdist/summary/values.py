"""The values that a summary consists of; as JSON, what `hpcdist summary --json` prints.

What is not known is None (null). Units stand in the names; times are seconds.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from hpcdist.base.statistics import Measure, Ratio
from hpcdist.bench.cells import BenchmarkSummary
from hpcdist.job.goal import Quantity
from hpcdist.runs.spec import Accounting, Planned
from hpcdist.runs.verdict import Kind, State

SCHEMA = 1
"""Version of the JSON: it grows where a key goes or changes its meaning; keys may come."""

Scaling = Literal["strong", "weak"]
"""Strong: the GPUs share a step of always as many samples; weak: each has as many samples per
step."""


class ForecastSize(Struct, frozen=True, kw_only=True):
    """The speed that a number of GPUs would have."""

    gpus: int
    speedup: Measure


class Forecast(Struct, frozen=True, kw_only=True):
    """A forecast for more GPUs from the runs that were measured."""

    refused_because: str | None = None
    """Why there is none."""
    sizes: list[ForecastSize] = []


class TimeToAccuracy(Struct, frozen=True, kw_only=True):
    """The time until a run reached an accuracy on the test data, or a loss."""

    goal: Quantity = "accuracy"
    target: float
    is_reached: bool
    best: float
    """The best accuracy, or the least loss, that it came to at all."""
    time_s: float | None = None
    """From its first step on, evaluations, pauses and time lost by restarts included."""
    step: int | None = None
    epoch: int | None = None
    samples: float | None = None
    """Samples of all ranks in the steps until then, each step with the mean number."""


class StepTime(Struct, frozen=True, kw_only=True):
    """Seconds per optimizer step, over the steps of all ranks."""

    mean: float
    sd: float | None = None
    """None with fewer than two steps."""
    p50: float | None = None
    """Median, within 1 %."""
    p95: float | None = None
    """95 of 100 steps took no longer, within 1 %."""


class Final(Struct, frozen=True, kw_only=True):
    """The last evaluation on the test data."""

    loss: float | None = None
    accuracy: float | None = None


class ModelStates(Struct, frozen=True, kw_only=True):
    """Bytes that a rank holds whatever the batch: those of the rank that holds most."""

    parameter_bytes: int
    """Buffers included."""
    gradient_bytes: int
    optimizer_bytes: int
    total_bytes: int


class FlopRate(Struct, frozen=True, kw_only=True):
    """Floating-point operations of the model, and how much of the device they use."""

    per_sample: float
    """Operations of both passes, without what is computed twice to save memory."""
    per_s: float | None = None
    """All ranks together, while they step."""
    utilization: float | None = None
    """Model FLOP/s utilization (MFU): share of the peak of all GPUs together, by their data sheets;
    None where nothing tells."""


class Straggler(Struct, frozen=True, kw_only=True):
    """The rank, or the node with all of its ranks, that held the others up throughout."""

    rank: int | None = None
    """None where all ranks of the node are slower than all others."""
    node: int | None = None
    """None where it is another one in each repeat, on the same host."""
    host: str | None = None
    others: list[int] = []
    """Further ranks, or nodes without `rank`, that are slow throughout, too."""
    phase: str | None = None
    """Phase of a step in which it takes most longer; None where no phases are known."""
    longer_s: float
    """Seconds per step that it needs more than the typical rank, for its own part."""
    slowest_in: int
    """Stretches of steps in which it was the slowest; of several, in which each was slow."""
    stretches: int
    """Stretches that were compared."""


class UsageSummary(Struct, frozen=True, kw_only=True):
    """The resource usage that the agents sampled."""

    sampled_s: float
    """Longest time that a node was sampled."""
    gpu_utilization: float | None = None
    """Mean over all GPUs and the time."""
    max_gpu_memory_bytes: int | None = None
    """Largest memory that a GPU held."""
    cpus_busy: float | None = None
    """Busy CPUs of all nodes together."""
    num_cpus: float | None = None
    """CPUs that the ranks may use; those that simulated nodes share count once."""


class Cost(Struct, frozen=True, kw_only=True):
    """The time that a run held its GPUs or CPUs."""

    held_s: float
    """All lives together, by the scheduler's accounting, or else by what the run recorded."""
    gpu_hours: float | None = None
    """None without GPUs."""
    cpu_hours: float | None = None
    """None with GPUs."""
    lost_share: float | None = None
    """Share of `held_s` that went into restarts: `lost_time_s`."""
    price: float | None = None
    """The profile's price_per_hour x nodes x `held_s`; None where the profile has no price."""


class VerdictSummary(Struct, frozen=True, kw_only=True):
    """Why the run ended; verdict.json has all that is known."""

    kind: Kind
    message: str
    """The sentence for people."""
    log: str | None = None
    """Log of the rank that failed first, relative to the run directory."""


class AttemptSummary(Struct, frozen=True, kw_only=True):
    """One start of the run's ranks."""

    attempt: int
    life: int | None
    """Number of times that the scheduler had started the job before."""
    first_step: int | None
    """Finished steps when it began."""
    last_step: int | None
    nodes: int | None = None
    """Nodes that took part; None where no rank recorded anything."""
    message: str | None
    """The message of its verdict; None where it goes on, or where nothing is known."""


class Parting(Struct, frozen=True, kw_only=True):
    """The first step after which the ranks of a run, which should be replicas, had parted."""

    step: int
    """First digest at which they differ; between it and `equal_at` none was taken."""
    attempt: int
    equal_at: int | None = None
    """Last step at which they were equal; None where they never were."""
    ranks: list[int]
    """The ranks with other parameters than most."""
    others: list[int]
    """The ranks that most are, which have one set of parameters."""


class RanWith(Struct, frozen=True, kw_only=True):
    """All that must be equal beside the settings for runs to be repeats or sizes of each other;
    what is not known of a run is None."""

    code: str | None = None
    """Digest of the user's files that ran."""
    device: str | None = None
    """cpu or cuda."""
    device_model: str | None = None
    """Names of its GPUs, or else of its CPUs."""
    cluster: str | None = None
    scheduler: str | None = None
    backend: str | None = None
    torch: str | None = None
    image: str | None = None
    """What tells the container's image from others."""


class Size(NamedTuple):
    """The order of runs: by these fields, one after the other."""

    gpus: int
    """In all: with data_parallel, one rank drives several."""
    nodes: int


class RunFigures(Struct, frozen=True, kw_only=True):
    """The figures of one run by itself."""

    run: str
    """Run id."""
    path: str | None = None
    """Its directory."""
    job: str
    scheduler: str | None = None
    cluster: str | None = None
    """Name of the profile that it went by, else of the host that it is at; None for neither."""
    image: str | None = None
    """Container image, with what tells a file from a changed one; None where it ran in none."""
    comparison: str | None = None
    """Id of the comparison that it is a part of."""
    variant: str | None = None
    """Name of its variant there."""
    ran_with: RanWith = RanWith()
    state: State | None = None
    nodes: int
    gpus_per_node: int
    """Ranks per node, times the GPUs that each drives."""
    world_size: int
    num_cpus: int | None = None
    """Different CPUs that its ranks were bound to; None on GPUs."""
    mean_gpus: float | None = None
    """GPUs that it had as it stepped, the mean over time; None where it always had all."""
    hosts: list[str] = []
    """Machines that its ranks ran on; fewer than nodes where nodes are simulated."""
    together: bool | None = None
    """Its ranks trained one model together; False where each trained its own. None for a single
    rank, and where nothing tells."""
    parting: Parting | None = None
    """None where the ranks are no replicas, never parted, or `record.digest` is off."""
    disturbed: str | None = None
    """Other work on its CPUs, in words; None where nothing is known of it."""
    samples_per_s: Measure | None = None
    """All ranks together, while they step; the sd is over windows, weighted by their length.
    None where no rank, or not every rank, recorded steps."""
    samples_per_step: float | None = None
    """Mean over the steps, all ranks together."""
    warm_up_steps: int | None = None
    """Steps of the lowest rank that were left out as warm-up, in all attempts."""
    step_time_s: StepTime | None = None
    phase_s: dict[str, float] | None = None
    """Mean seconds per step by phase; with `other` they add up to the mean step time."""
    parts_s: dict[str, float] | None = None
    """Mean seconds per step by part, with what checkpoints between steps and restarts add."""
    flops: FlopRate | None = None
    """None where they were not counted."""
    computing_has_communication: bool = False
    """Nothing told the communication of its passes from their computing: they are one share."""
    straggler: Straggler | None = None
    """None where no rank and no node is the slowest throughout."""
    final: Final = Final()
    peak_rss_bytes: int | None = None
    """Largest resident memory of a rank."""
    peak_cuda_bytes: int | None = None
    """Largest GPU memory of a rank."""
    model_states: ModelStates | None = None
    """None where no step was done, or the workload does not tell."""
    restarts: int = 0
    steps: int | None = None
    """Finished steps: those that were lost with a failure count once."""
    lost_steps: int = 0
    """Steps that were done again after restarts."""
    startup_s: float | None = None
    """From the begin of the first attempt to its first step; None where it did none."""
    lost_time_s: float | None = None
    """Between attempts, and for steps done again, while the job held its resources; None with one
    attempt."""
    waited_s: float | None = None
    """Between its lives, in the queue; None with one life."""
    attempts: list[AttemptSummary] = []
    epochs: int | None = None
    """Finished epochs."""
    train_loss: float | None = None
    """Mean over the steps of the last window, by the lowest rank."""
    benchmark: BenchmarkSummary | None = None
    """Result of a benchmark, and of the job check."""
    verdict: VerdictSummary | None = None
    notes: list[str] = []
    """Notes that the ranks recorded."""
    accounting: Accounting | None = None
    """The scheduler's accounting; None where it keeps none, or none of this job."""
    usage: UsageSummary | None = None
    """Resources that its ranks used; None where nothing was sampled."""
    cost: Cost | None = None
    """None where no time is known."""
    planned: Planned | None = None
    """What was foreseen of it before it was submitted; None: nothing."""

    @property
    def num_gpus(self) -> int:
        """GPUs in all; without GPUs, what stands for them."""
        return self.nodes * self.gpus_per_node

    @property
    def size(self) -> Size:
        return Size(self.num_gpus, self.nodes)

    @property
    def num_hosts(self) -> int | None:
        """None where no host is known."""
        return len(self.hosts) or None

    @property
    def rate(self) -> float:
        """Mean samples/s; 0 where none are known."""
        return self.samples_per_s.mean if self.samples_per_s else 0.0


class Cell(Struct, frozen=True, kw_only=True):
    """Runs that are alike, as one: those of one size, of a variant or on a cluster; beside those of
    the baseline, where there is one."""

    name: str = ""
    """Name of the variant or the cluster; empty for a size."""
    job: str
    workload: str | None = None
    """train or lightning, which are two loops; None: not known."""
    runs: list[str]
    num_measured: int
    """Runs that are done and have samples/s: those that count."""
    why_none: str | None = None
    """Why none counts though some are done."""
    nodes: int
    gpus_per_node: int
    world_size: int
    mean_gpus: float | None = None
    """GPUs that its runs had as they stepped, where some had lost nodes; they are what its ideal
    and its efficiency count."""
    num_cpus: int | None = None
    ran_with: RanWith = RanWith()
    disturbed: str | None = None
    """Other work on the CPUs of a run that counts, in words."""
    scaling: Scaling | None = None
    """How it scales against the baseline; None where it is neither."""
    strategy: str | None = None
    """Strategy of the larger sizes that it is compared with; None where the job has none."""
    samples_per_step: float | None = None
    """Mean over the steps, all GPUs together: the last step of an epoch may be smaller."""
    samples_per_s: Measure | None = None
    """Over the runs; of a single one over its windows."""
    step_time_s: float | None = None
    price: float | None = None
    """Mean of the runs; None where one has none."""
    speedup: Ratio | None = None
    """Against the baseline, which itself has 1; None where there is none."""
    is_baseline: bool = False
    """Its runs are those that others are compared with."""
    ideal: float = 1.0
    """Speed-up that as many GPUs could bring at most."""
    efficiency: Measure | None = None
    """Speed-up for each GPU that it has for one of the baseline's: 1.0 is ideal; None where it has
    none of those that it is for, and so no ideal."""
    differs_from_baseline: bool | None = None
    """The interval of the speed-up leaves out 1; None for the baseline, and where no spread is
    known."""
    against: list[str] = []
    """The baseline, which is the ideal; empty where there is none. Then all that is not computing
    counts as lost: what could be won at most."""
    shares: dict[str, float] | None = None
    """Share of the time by part; together 1."""
    lost: dict[str, float] | None = None
    """Share of the time that each part lost; together 1 - `overall`."""
    overall: float | None = None
    """Efficiency of all the time, with checkpoints between steps and restarts."""
    computing_has_communication: bool = False
    """Nothing told the communication of its passes from their computing: they are one share."""
    largest: str | None = None
    """The part that lost most; None where none lost as much as counts."""
    straggler: Straggler | None = None
    """The rank or node that held the others up in each of the runs."""
    advice: list[str] = []
    """Changes that are worth most, with the figures behind them; the largest first."""
    forecast: Forecast | None = None
    """Speed with more GPUs; for the largest size only."""

    @property
    def num_gpus(self) -> int:
        """GPUs in all; without GPUs, what stands for them."""
        return self.nodes * self.gpus_per_node

    @property
    def unit(self) -> str:
        """The name of one of its processors in sentences."""
        return "GPU" if self.num_cpus is None else "rank"

    @property
    def is_without_its_gpus(self) -> bool:
        """DataParallel on CPUs is a single process like any other."""
        return self.world_size < self.num_gpus and self.num_cpus is not None


class RunSummary(RunFigures, frozen=True, kw_only=True):
    """One run in figures, among the runs that it is compared with."""

    cell: Cell | None = None
    """This run and its repeats; None where it is not done, or recorded no steps."""
    speedup: float | None = None
    """Samples/s against the mean of the runs in `compared_with`."""
    efficiency: float | None = None
    """Speed-up for each rank that the run has for one of the baseline's: 1.0 is ideal."""
    compared_with: list[str] = []
    """The baseline: the runs of the smallest size among those like this one."""
    not_compared_because: str | None = None
    time_to_accuracy: TimeToAccuracy | None = None
    """None where no accuracy was recorded."""
    settings: str | None = None
    """Digest of all settings but resources, seed and place."""
    differs_in: dict[str, str] = {}
    """Settings in which runs of its job differ, so that they are not compared, by dotted key."""

    @property
    def settings_text(self) -> str:
        """The settings in which it differs: `precision=bf16-mixed, batch_size=64`."""
        own = self.differs_in.items()
        return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in own)


class Group(Struct, frozen=True, kw_only=True):
    """Runs that are compared with each other: the sizes of a job, the variants of a comparison, or
    one job on several clusters."""

    job: str
    name: str = ""
    """Id of the sweep of a comparison; else empty."""
    runs: list[str]
    """Run ids, smallest size first; of variants and clusters in their order."""
    baseline: list[str]
    """Runs that the others are compared with: those of the smallest size, which may be of another
    group, or of the first variant or cluster; empty where there is nothing to compare."""
    cells: list[Cell]
    """One for each size, smallest first, with that of the baseline also where it is of another
    group; or for each variant or cluster, the baseline first."""


class Summary(Struct, frozen=True, kw_only=True):
    """Runs in figures, which of them can be compared, and what could not be read."""

    runs: list[RunSummary]
    groups: list[Group]
    """Groups of runs that differ in their size."""
    comparisons: list[Group] = []
    """Groups of variants of a job."""
    places: list[Group] = []
    """Groups of runs at different clusters."""
    series: dict[str, bytes] = {}
    """Encoded curves of runs, by their directories: see `figures.learning.decode_learning`."""
    skipped: list[str]


def to_json(summary: Summary) -> list[dict[str, Any]]:
    """Return one object of plain values per run, which says the version of the schema first."""
    return [{"schema": SCHEMA, **msgspec.to_builtins(run)} for run in summary.runs]
