"""Jobs as typed and frozen values: the sections and keys of a job file.

Every struct here is a section of a job file; the line under a field says what the key means. The
loader (`hpcdist.job`) creates them from YAML and flags; nothing else changes them.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

_Value = TypeVar("_Value")
OneOrSeveral: TypeAlias = _Value | tuple[_Value, ...]
"""A value, or a list of values that are compared."""

Count = Annotated[int, Meta(ge=1)]
CountOrZero = Annotated[int, Meta(ge=0)]
LARGEST = sys.float_info.max
"""A bound that keeps infinity out of floats, as any bound keeps nan out."""
Positive = Annotated[float, Meta(gt=0, le=LARGEST)]
PositiveOrZero = Annotated[float, Meta(ge=0, le=LARGEST)]
Port = Annotated[int, Meta(ge=1024, le=65535)]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section: frozen and keyword-only; unknown keys are refused."""


class Resources(Section, frozen=True, kw_only=True):
    """Resources that the job asks the scheduler for."""

    nodes: Annotated[int, Meta(ge=1, le=100_000)] = 1
    """Number of nodes."""
    gpus: Annotated[int, Meta(ge=1, le=1_024)] = 1
    """GPUs per node, with one rank per GPU; without GPUs, one rank per share of the CPUs."""
    cpus_per_gpu: Count | None = None
    """CPUs per rank; unset: an equal share of the node's CPUs."""
    mem_gb: Positive | None = None
    """Memory per node in GB (10**9 bytes); unset: the scheduler's default."""
    time_limit_min: Positive | None = None
    """Time limit in minutes; unset: the scheduler's default."""


class Model(Section, frozen=True, kw_only=True):
    """The model."""

    name: str = "fashion_cnn"
    """fashion_cnn, a torchvision classification model, or your own: package.module:Class."""
    args: dict[str, Any] = {}
    """Keyword arguments for the model's constructor."""
    image_size: Count | None = None
    """Scale images to a square of this many pixels per side; unset: keep their size, or use the
    smallest that the model takes."""


class Data(Section, frozen=True, kw_only=True):
    """The data set, and how it is read."""

    name: str = "digits"
    """digits (bundled), mnist, fashion_mnist, faces (photographs in the layout of LFW),
    image_folder (one folder per class)."""
    root: str | None = None
    """Folder with the data set, relative to the directory that you submit from."""
    workers: CountOrZero = 0
    """DataLoader workers per rank; data sets that are kept in memory get none."""
    download: bool = False
    """Download mnist or fashion_mnist into root when you submit, on this machine."""
    train_samples: Count | None = None
    """Use only the first so many training samples."""
    test_samples: Count | None = None
    """Use only the first so many test samples."""
    size: Count | None = None
    """Scale photographs to a square of this many pixels per side while reading."""
    transform: str | tuple[str | dict[str, Any], ...] = "none"
    """Transforms of training images in files: none, light, heavy, or a list of torchvision's v2
    transforms, such as [RandomHorizontalFlip, {RandomAffine: {degrees: 5}}]."""
    decoder: Literal["exact", "fast"] = "exact"
    """exact: the pixels of PIL, decoded faster if possible; fast: pixels that differ slightly where
    photographs are made smaller."""
    pin_memory: Literal["auto"] | bool = "auto"
    """Page-locked batches, for GPUs; auto: if the ranks have GPUs."""
    prefetch_factor: Count = 2
    """Batches that each worker prepares ahead of time."""
    multiprocessing_context: Literal["fork", "forkserver", "spawn"] = "fork"
    """Start method of the workers."""


class Train(Section, frozen=True, kw_only=True):
    """Training: steps, optimizer and precision."""

    epochs: Count = 10
    """Passes over the training data."""
    max_steps: Count | None = None
    """Stop after this many optimizer steps, even in the middle of an epoch."""
    batch_size: Count = 64
    """Samples per GPU and step; a data_parallel rank takes this many for each of its GPUs."""
    accumulate: Count = 1
    """Batches per optimizer step (gradient accumulation)."""
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    """Optimizer of torch.optim."""
    lr: Positive = 1e-3
    """Learning rate at the start of the schedule."""
    weight_decay: PositiveOrZero = 0.0
    """Weight decay."""
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """Momentum; only sgd reads it."""
    schedule: Literal["constant", "cosine"] = "constant"
    """constant, or cosine (to 0 over the run)."""
    warmup_steps: CountOrZero = 0
    """Steps over which the learning rate rises linearly from 0."""
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    """Seed for the weights, the order of the samples, and dropout."""
    precision: Literal["fp32", "bf16-mixed", "fp16-mixed"] = "fp32"
    """fp32 (torch's default: on GPUs, convolutions use TF32), bf16-mixed, fp16-mixed (with gradient
    scaling)."""
    evaluate_every_epochs: CountOrZero = 1
    """Epochs from one evaluation to the next, with one after the last epoch; 0: never."""
    patience: Count | None = None
    """Early stopping: end after this many evaluations in a row that are no better than the best
    before; unset: train to the end."""
    keep_best: bool = False
    """Save a checkpoint after each evaluation that is the best so far, and keep the last of these;
    checkpoints/best leads to it."""
    monitor: Literal["loss", "accuracy"] = "loss"
    """Meaning of best: the lowest loss, or the highest accuracy, of the test data."""
    num_threads: Count | None = None
    """CPU threads per rank; unset: the rank's share of the CPUs, fewer for small models."""


class Checkpoint(Section, frozen=True, kw_only=True):
    """Checkpoints: when they are saved, and which one a run starts from."""

    every_epochs: CountOrZero = 1
    """Epochs from one checkpoint to the next; 0: none at epochs."""
    every_steps: CountOrZero = 0
    """Optimizer steps from one checkpoint to the next; 0: none at steps."""
    keep: Count = 2
    """Number of the newest checkpoints to keep."""
    resume: str | None = None
    """Start from this checkpoint, or the newest of this folder or run directory; relative to the
    directory that you submit from."""


class Launch(Section, frozen=True, kw_only=True):
    """Start, supervision and end of the ranks."""

    max_restarts: CountOrZero = 0
    """Number of times that the ranks are started again after a failure."""
    hang_timeout_s: PositiveOrZero | None = None
    """End the run when no rank has worked for this many seconds: no step, no output, no file read
    or written. 0: never. Unset: 600 for trainers, never for scripts."""
    hang_notice_s: PositiveOrZero = 900.0
    """Say that the run seems to hang, without ending it, after this many seconds without a step,
    output or a file read or written, with CPUs and GPUs idle or waiting in a collective operation;
    0: never."""
    port_range: tuple[Port, Port] | None = None
    """First and last port to choose from; unset: 20000 to 29999, except the ephemeral range."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the ranks; auto: GPUs if there are any."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Process group backend; auto: nccl on GPUs, gloo on CPUs."""
    join_timeout_s: Positive = 300.0
    """Seconds that the agents of all nodes wait for each other."""
    agent_timeout_s: PositiveOrZero = 600.0
    """End the run when the agent of a node has done nothing for this many seconds: it is stopped,
    its host is frozen, or a file system does not answer; 0: never. A file server that keeps all
    nodes waiting does not count. A host that is gone is noticed within half a minute."""
    grace_s: PositiveOrZero = 30.0
    """Seconds from the signal that ends a rank to SIGKILL, if the rank handles the signal; if the
    scheduler ends the job, at most its own time from SIGTERM to SIGKILL, less 5 s."""
    warning_s: PositiveOrZero = 120.0
    """Seconds before resources.time_limit_min at which the ranks are asked to save a checkpoint;
    at most a quarter of the limit."""
    requeue: bool = True
    """Have the scheduler start the job again when it was stopped before its end or lost a node."""
    min_nodes: Count | None = None
    """Go on without nodes that are lost, from the newest checkpoint, as long as so many are left;
    for train, and code that calls record.elastic(). Unset: the job is started again as a whole."""
    regrow_after: Positive | None = None
    """Minutes with fewer nodes after which the ranks save a checkpoint, and the scheduler is asked
    to start the job again with all nodes; for train. Unset: it ends with those that are left."""
    preflight: bool = False
    """Check the nodes for five seconds before the ranks start, by matrix products and all-reduces.
    A node that fails, or is clearly slower than the others, is left out: train with
    launch.min_nodes begins without it; else Slurm starts the job again without it, and elsewhere
    the run ends."""


class Record(Section, frozen=True, kw_only=True):
    """Events that the ranks record."""

    enabled: bool = True
    """Record step timings; the first and last event of a rank are always written."""
    window_s: Positive = 0.25
    """Shortest window of steps that one event covers, in seconds."""
    usage_s: PositiveOrZero = 5.0
    """Seconds between samples of the use of GPUs and CPUs, fewer in the first minute; 0: never."""
    digest: CountOrZero = 0
    """Steps from one digest of the parameters to the next, in each rank; 0: none. By these the
    summary and `hpcdist diff` name the step at which ranks or runs part. A digest takes about 5 ms
    per million parameters, in no step."""
    flops: bool = False
    """Count the floating-point operations of the model before the first step, for FLOP/s and MFU;
    at most a second."""


class Container(Section, frozen=True, kw_only=True):
    """The image that the ranks run in; hpcdist itself need not be in it."""

    image: str | None = None
    """Image file (.sif, .sqsh), folder with an image's files, or image of a registry, such as
    docker://pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime; none: no image; unset: as the profile
    says."""
    runtime: Literal["apptainer", "pyxis", "charliecloud", "podman"] | None = None
    """Program that starts it; unset: as the profile says."""
    mounts: list[str] = []
    """Folders of the nodes that are seen inside, added to the profile's: SRC, SRC:DST or
    SRC:DST:ro, where $NAME is a variable of the job. The runs, the directory that you submit from
    and data.root are always mounted."""
    python: str = "python3"
    """The image's interpreter: 3.10 or newer, with torch."""
    options: list[str] = []
    """Further options for the runtime, one per item, added to the profile's."""


class JobSpec(Section, frozen=True, kw_only=True):
    """The keys of every job, whatever its workload."""

    name: str
    """Name of the job: the name of the file without .yaml, or that of the script."""
    workload: str
    """The kind of program that every rank runs."""
    description: str = ""
    """One line for `hpcdist jobs`."""
    resources: Resources = Resources()
    launch: Launch = Launch()
    record: Record = Record()
    container: Container = Container()

    @property
    def gpus_per_rank(self) -> int:
        """GPUs that one rank drives."""
        return 1

    @property
    def ranks_per_node(self) -> int:
        """Ranks that share a node's GPUs."""
        return self.resources.gpus // self.gpus_per_rank

    @property
    def num_ranks(self) -> int:
        """Ranks on all nodes that the job asks for."""
        return self.resources.nodes * self.ranks_per_node

    @property
    def cpus_per_rank(self) -> int | None:
        """CPUs for each rank as the job says; None: an equal share."""
        per_gpu = self.resources.cpus_per_gpu
        return per_gpu and per_gpu * self.gpus_per_rank


class TrainingJob(JobSpec, frozen=True, kw_only=True):
    """The keys of all jobs that train a model (workloads: train, lightning)."""

    model: Model = Model()
    data: Data = Data()
    train: Train = Train()
    checkpoint: Checkpoint = Checkpoint()

    @property
    def batch_size_per_rank(self) -> int:
        """Samples that a rank takes at a time."""
        return self.train.batch_size * self.gpus_per_rank


class TrainJob(TrainingJob, frozen=True, kw_only=True):
    """The torch training loop (workload: train)."""

    workload: Literal["train"] = "train"
    strategy: Literal["single", "data_parallel", "ddp", "fsdp"] = "ddp"
    """Way to spread the model: single (one rank), data_parallel (one rank for all GPUs of a node),
    ddp (a copy per rank), fsdp (parameters, gradients and optimizer state are sharded over the
    ranks)."""

    @property
    def gpus_per_rank(self) -> int:
        """With data_parallel, one process drives all GPUs of its node."""
        return self.resources.gpus if self.strategy == "data_parallel" else 1


class LightningJob(TrainingJob, frozen=True, kw_only=True):
    """Training by PyTorch Lightning's Trainer (workload: lightning)."""

    workload: Literal["lightning"] = "lightning"
    strategy: Literal["auto", "ddp"] = "auto"
    """Way to spread the model over the ranks; auto: ddp if there are several ranks."""


class OwnCodeJob(JobSpec, frozen=True, kw_only=True):
    """The user's own code: only its author knows what it does at a signal, and what it saves."""


class ScriptJob(OwnCodeJob, frozen=True, kw_only=True):
    """A user's own Python script, as torchrun would run it (workload: script)."""

    workload: Literal["script"] = "script"
    script: str
    """Path of the script; in a job file, relative to that file."""
    args: list[str] = []
    """Arguments of the script."""
    accelerate: str | None = None
    """Config file of Hugging Face accelerate, whose variables the ranks get; relative to the
    directory that you submit from, in a job file to that file."""
    accelerate_config: str = ""
    """Content of that file; read when you submit, not for job files."""
    environment: dict[str, str] = {}
    """Environment variables of the ranks; what the environment has already stays."""
    force: bool = False
    """Start the script although it starts ranks itself (`mp.spawn`), and would wait forever."""

    @property
    def is_given_by_path(self) -> bool:
        """True if the user gave the path of the file; False for a name that is searched for."""
        return "/" in getattr(self, "program", "/") and not isinstance(self, ModuleJob)


class ModuleJob(ScriptJob, frozen=True, kw_only=True):
    """A user's own module, as `python -m` and `torchrun -m` would run it (workload: module)."""

    workload: Literal["module"] = "module"  # type: ignore[assignment] # each struct has its own
    module: str
    """Name of the module, or of a package with a __main__.py; searched for from the directory that
    you submit from."""
    script: str = ""
    """File of the module; found when you submit, not for job files."""


class ProgramJob(ScriptJob, frozen=True, kw_only=True):
    """A user's own program in any language, as `torchrun --no-python` would execute it (workload:
    program)."""

    workload: Literal["program"] = "program"  # type: ignore[assignment] # each struct has its own
    program: str
    """Name of a program on PATH, or a path with a slash; in a job file, the path is relative to
    that file."""
    script: str = ""
    """File of the program; found when you submit, not for job files."""


class FunctionJob(OwnCodeJob, frozen=True, kw_only=True):
    """A function that was passed to `hpcdist.submit` (workload: function); not for job files.

    The function and its arguments are pickled in the run directory. The arguments are written
    nowhere else, because they may be secret.
    """

    workload: Literal["function"] = "function"
    function: str
    """Module and name of the function."""
    source: str | None = None
    """File that contains the function; unset: there is none."""
    python_path: list[str] = []
    """Folders that the ranks import modules from: those of the process that submitted."""
    modules: list[str] = []
    """Modules that every node imports once, before its ranks are forked."""


class CheckJob(JobSpec, frozen=True, kw_only=True):
    """Check that a cluster works, by one collective over all ranks (workload: check)."""

    workload: Literal["check"] = "check"


class Allreduce(Section, frozen=True, kw_only=True):
    """Measurements of the all-reduce benchmark."""

    sizes: tuple[Annotated[int, Meta(ge=4, le=2**40)], ...] = tuple(4**n for n in range(5, 15))
    """Sizes to measure, in bytes per rank: 1 KiB to 256 MiB."""
    iterations: Count = 100
    """All-reduces per size; fewer, at least 3, if max_time_s is too short."""
    warmup: Count = 5
    """All-reduces before the measured ones, including the one that is checked."""
    max_time_s: Positive = 2.0
    """Approximate time to measure one size, in seconds."""


class AllreduceJob(JobSpec, frozen=True, kw_only=True):
    """Bandwidth and latency of all-reduce over all ranks (workload: allreduce)."""

    workload: Literal["allreduce"] = "allreduce"
    allreduce: Allreduce = Allreduce()


class Inference(Section, frozen=True, kw_only=True):
    """Measurements of the inference benchmark."""

    batch_sizes: tuple[Annotated[int, Meta(ge=1, le=10_000_000)], ...] = (1, 8, 64, 512)
    """Batch sizes to measure: images per call, over all GPUs together."""
    strategies: tuple[Literal["single", "data_parallel", "process_per_gpu"], ...] = (
        "single",
        "data_parallel",
        "process_per_gpu",
    )
    """Strategies to compare: single (one GPU), data_parallel (nn.DataParallel over the GPUs of one
    node), process_per_gpu (each rank computes its share of the batch)."""
    repeats: Annotated[int, Meta(ge=2)] = 30
    """Timed calls per batch size, after four; fewer, at least 3, if max_time_s is too short."""
    max_time_s: Positive = 5.0
    """Approximate time to measure one batch size, in seconds."""
    precision: Literal["fp32", "bf16-mixed", "fp16-mixed"] = "fp32"
    """Precision of the model."""
    image_shape: tuple[Count, Count, Count] | None = None
    """[channels, height, width] of random images; unset: use the data set's test images."""
    num_classes: Count = 1000
    """Outputs of the model; only with image_shape."""


class InferenceJob(JobSpec, frozen=True, kw_only=True):
    """Time per batch of an untrained model, by batch size and by strategy (workload: inference)."""

    workload: Literal["inference"] = "inference"
    model: Model = Model()
    data: Data = Data()
    inference: Inference = Inference()


class LoadedData(Data, frozen=True, kw_only=True):
    """The data set, and the ways to load it: every combination of workers, transform and batch_size
    is measured. The keys of `data` in other jobs are here, too."""

    name: str = "faces"
    dataset: str | None = None
    """Your own data set instead: package.module:function, which takes no arguments and returns a
    Dataset of torch. Its own transforms are measured."""
    batches_to_check: Count = 100
    """Batches of each rank in each pass; if the data set has fewer, it is repeated."""
    repeats: Count = 5
    """Passes that count, after the first; fewer if dataload.max_time_s is too short."""
    workers: OneOrSeveral[CountOrZero] = (0, 1, 2, 4)  # type: ignore[assignment]
    batch_size: OneOrSeveral[Count] = 64
    """Samples per batch and rank."""
    transform: str | tuple[str | dict[str, Any] | tuple[str | dict[str, Any], ...], ...] = "none"  # type: ignore[assignment]
    """As in other jobs, or a list of presets and lists to compare, such as
    [none, light, [RandomHorizontalFlip]]."""


class Dataload(Section, frozen=True, kw_only=True):
    """Length of the measurements."""

    max_time_s: Positive = 60.0
    """Approximate time to measure one combination, in seconds."""


class DataloadJob(JobSpec, frozen=True, kw_only=True):
    """Time to load batches, by workers, transform and batch size (workload: dataload)."""

    workload: Literal["dataload"] = "dataload"
    data: LoadedData = LoadedData()
    dataload: Dataload = Dataload()


JOB_TYPES: dict[str, type[JobSpec]] = {
    "train": TrainJob,
    "lightning": LightningJob,
    "script": ScriptJob,
    "module": ModuleJob,
    "program": ProgramJob,
    "check": CheckJob,
    "allreduce": AllreduceJob,
    "inference": InferenceJob,
    "dataload": DataloadJob,
    "function": FunctionJob,
}
"""Value of the key `workload` -> the keys of a job with that workload."""

FILE_JOB_TYPES = {name: kind for name, kind in JOB_TYPES.items() if kind is not FunctionJob}
"""Workloads that a job file can describe."""


def warning_before_s(launch: Launch, limit_min: float | None) -> float:
    """Return the seconds before a time limit at which the ranks are asked to stop."""
    return launch.warning_s if limit_min is None else min(launch.warning_s, limit_min * 60 / 4)


def job_to_dict(job: JobSpec) -> dict[str, Any]:
    """Return the job as plain values with every key, as spec.json contains it."""
    value: dict[str, Any] = msgspec.to_builtins(job)
    return value


def job_from_dict(value: dict[str, Any]) -> JobSpec:
    """Return the job that `job_to_dict` turned into a dict; raises msgspec.ValidationError."""
    workload = value.get("workload")
    if not isinstance(workload, str) or workload not in JOB_TYPES:
        raise msgspec.ValidationError(f"{workload!r} is no workload - at `$.job.workload`")
    return msgspec.convert(value, JOB_TYPES[workload])
