"""Jobs as typed and frozen values: the sections and keys of a job file.

Every struct here is a section of a job file; the line under a field says what the key means. The
loader (`hpcdist.job`) makes them from YAML and flags; nothing else changes them.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

_Value = TypeVar("_Value")
OneOrSeveral: TypeAlias = _Value | tuple[_Value, ...]
"""A value, or a list of those that are compared."""

Count = Annotated[int, Meta(ge=1)]
CountOrZero = Annotated[int, Meta(ge=0)]
LARGEST = sys.float_info.max
"""A bound that keeps infinity out of floats, as any bound keeps nan out."""
Positive = Annotated[float, Meta(gt=0, le=LARGEST)]
PositiveOrZero = Annotated[float, Meta(ge=0, le=LARGEST)]
Port = Annotated[int, Meta(ge=1024, le=65535)]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section: frozen, keyword-only, unknown keys refused."""


class Resources(Section, frozen=True, kw_only=True):
    """Resources that the job asks the scheduler for."""

    nodes: Annotated[int, Meta(ge=1, le=100_000)] = 1
    """Number of nodes."""
    gpus: Annotated[int, Meta(ge=1, le=1_024)] = 1
    """GPUs per node: one rank per GPU; without GPUs, one rank per share of the CPUs."""
    cpus_per_gpu: Count | None = None
    """CPUs per rank; unset: an equal share of what the node has."""
    mem_gb: Positive | None = None
    """Memory per node in GB (10**9 bytes); unset: what the scheduler gives."""
    time_limit_min: Positive | None = None
    """Time limit in minutes; unset: the scheduler's own."""


class Model(Section, frozen=True, kw_only=True):
    """The model."""

    name: str = "fashion_cnn"
    """fashion_cnn, mlp, any torchvision classification model, or your own: package.module:Class."""
    args: dict[str, Any] = {}
    """Keyword arguments for the model's constructor."""
    image_size: Count | None = None
    """Scale images to so many pixels square before the model; unset: as they are, or the least that
    the model takes."""


class Data(Section, frozen=True, kw_only=True):
    """The data, and how they are read."""

    name: str = "digits"
    """digits (bundled), mnist, fashion_mnist, cifar10, faces (photographs in the layout of LFW),
    image_folder (one folder per class)."""
    root: str | None = None
    """Folder with the data set, relative to where the job is submitted; not needed for bundled
    data."""
    workers: CountOrZero = 0
    """DataLoader workers per rank; data sets that fit in memory need none."""
    download: bool = False
    """Download into root before the job is submitted, where there is internet."""
    train_samples: Count | None = None
    """Use only the first so many training samples."""
    test_samples: Count | None = None
    """Use only the first so many test samples."""
    split: Literal["auto", "stratified"] = "auto"
    """Choice of the test photographs: auto (as the data set's own files say, where it has some),
    or stratified (a fifth of each class)."""
    size: Count | None = None
    """Scale photographs to so many pixels square while they are read; unset: as they are."""
    transform: str | tuple[str | dict[str, Any], ...] = "none"
    """Transforms of training images: none, light, heavy, or a list of torchvision's v2
    transforms, such as [RandomHorizontalFlip, {RandomAffine: {degrees: 5}}]."""
    device_transform: Literal["auto"] | bool = "auto"
    """Transform images a batch at a time where the model is, by kornia, not one by one by the CPUs:
    of a list, what comes from the first transform on that draws random numbers. Other values are
    drawn, and pixels differ a little. auto: on GPUs, where decoder is fast, kornia is installed,
    whole batches can have every transform, and images are of one size before random crops."""
    bad_files: Literal["skip", "refuse"] = "skip"
    """Handling of files that are no image: skip (counted and named) or refuse."""
    decoder: Literal["exact", "fast", "pil"] = "exact"
    """exact (the pixels of PIL, faster where that can be had), fast (not bit for bit those pixels),
    pil."""
    reads: Count | None = None
    """Files that one worker reads at once, for storage that answers late; unset: by measuring."""
    cache: Literal["auto"] | bool = "auto"
    """Keep decoded photographs in memory that the ranks of a node share; auto: where they fit."""
    handover: Literal["uint8", "float32"] = "uint8"
    """Type of the pixels that workers hand over: uint8, brought to float32 a batch at a time where
    the model is, or float32, a sample at a time."""
    pin_memory: Literal["auto"] | bool = "auto"
    """Page-locked batches, for GPUs; auto: where the ranks have GPUs."""
    prefetch_factor: Count = 2
    """Batches that each worker makes ahead of time."""
    persistent_workers: bool = True
    """Keep workers from one epoch to the next."""
    multiprocessing_context: Literal["fork", "forkserver", "spawn"] = "fork"
    """Start method of the workers."""


class Train(Section, frozen=True, kw_only=True):
    """Training: steps, optimizer and precision."""

    epochs: Count = 10
    """Passes over the training data."""
    max_steps: Count | None = None
    """Stop after so many optimizer steps, also in the middle of an epoch."""
    batch_size: Count = 64
    """Samples per GPU and step: per rank, but with data_parallel, whose one rank takes as many for
    each of resources.gpus."""
    accumulate: Count = 1
    """Batches per optimizer step (gradient accumulation)."""
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    """adamw, adam or sgd."""
    lr: Positive = 1e-3
    """Learning rate at the start of the schedule."""
    weight_decay: PositiveOrZero = 0.0
    """Weight decay."""
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """Momentum; only sgd reads it."""
    schedule: Literal["constant", "cosine", "step"] = "constant"
    """constant, cosine (to 0 over the run), or step (times 0.1 after each third of the epochs)."""
    warmup_steps: CountOrZero = 0
    """Steps over which the learning rate rises linearly from 0."""
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    """Seed of the weights, of the order of the samples, and of dropout."""
    precision: Literal[
        "fp32",
        "tf32",
        "bf16-mixed",
        "fp16-mixed",
        "bf16-true",
        "32-true",
        "16-mixed",
    ] = "fp32"
    """fp32 (as torch has it: on GPUs convolutions use TF32), tf32 (matrix products too; GPUs only),
    bf16-mixed, fp16-mixed (with gradient scaling), bf16-true (weights too). Lightning's 32-true and
    16-mixed are other names for fp32 and fp16-mixed."""
    clip_norm: Positive | None = None
    """Scale gradients down to this norm, over all parameters and ranks, where theirs is larger."""
    activation_checkpointing: bool = False
    """Compute the inside of a model's blocks again in the backward pass instead of keeping it: less
    memory for about a third more time."""
    compile: Literal["reduce-overhead", "max-autotune"] | bool = False
    """Run the model by torch.compile, which takes a minute at the start; it needs a C++ compiler on
    CPUs, a C compiler on GPUs, and the headers of Python. torch's modes: reduce-overhead (CUDA
    graphs: GPUs only, and pays where kernels are short) and max-autotune (tries out kernels, with
    CUDA graphs on GPUs: minutes)."""
    gradient_as_bucket_view: bool = True
    """ddp: gradients live in the communication buckets, which saves a copy of them."""
    static_graph: bool = False
    """ddp: every step uses the same parameters in the same way."""
    evaluate_every_epochs: CountOrZero = 1
    """Evaluate on the test data after so many epochs, and after the last; 0: never."""
    channels_last: Literal["auto"] | bool = "auto"
    """Memory format of convolutional models; auto: where it is faster; fsdp cannot have it."""
    num_threads: Count | None = None
    """CPU threads per rank; unset: the rank's share of the CPUs, fewer for small models."""

    def __post_init__(self) -> None:
        """One name for each precision, so that equal jobs compare as equal."""
        if self.precision in _LIGHTNING_NAMES:
            msgspec.structs.force_setattr(self, "precision", _LIGHTNING_NAMES[self.precision])


_LIGHTNING_NAMES = {"32-true": "fp32", "16-mixed": "fp16-mixed"}


class Checkpoint(Section, frozen=True, kw_only=True):
    """Checkpoints: when they are saved, and which one a run starts from."""

    every_epochs: CountOrZero = 1
    """Save after so many epochs; 0: not at epochs."""
    every_steps: CountOrZero = 0
    """Save after so many optimizer steps; 0: not at steps."""
    keep: Count = 2
    """Number of the newest checkpoints that stay on disk."""
    resume: str | None = None
    """Start from this checkpoint, or from the newest in this folder or run directory; relative to
    where the job is submitted."""


class Launch(Section, frozen=True, kw_only=True):
    """Start, supervision and end of the ranks."""

    max_restarts: CountOrZero = 0
    """Number of times that the ranks are started again after a failure."""
    hang_timeout_s: PositiveOrZero | None = None
    """End the run after so many seconds without a step; 0: never. Unset: 600 for trainers, never
    for scripts, for which new output counts as a step too."""
    port_range: tuple[Port, Port] | None = None
    """First and last port to choose from; unset: 20000 to 29999 without the ephemeral range."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes GPUs where there are any."""
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Process group backend; auto: nccl on GPUs, gloo on CPUs."""
    join_timeout_s: Positive = 300.0
    """Seconds that the agents of all nodes wait for each other."""
    grace_s: PositiveOrZero = 0.5
    """Seconds that a rank has to end after SIGTERM before SIGKILL."""
    warning_s: PositiveOrZero = 120.0
    """Seconds before resources.time_limit_min at which the ranks are asked to save a checkpoint;
    at most a quarter of the limit."""
    requeue: bool = True
    """Have the scheduler start the job again after a stop before its end or the loss of a node,
    where it can."""


class Record(Section, frozen=True, kw_only=True):
    """Events that the ranks record."""

    enabled: bool = True
    """Record step timings; the first and last event of a rank are always written."""
    window_s: Positive = 0.25
    """Shortest window of steps that one event sums up, in seconds."""
    usage_s: PositiveOrZero = 5.0
    """Seconds between samples of the use of GPUs, CPUs and memory, which is sampled more often in
    the first minute; 0: never."""


class JobSpec(Section, frozen=True, kw_only=True):
    """The keys of every job, whatever its workload."""

    name: str
    """Name of the job: the file's name without .yaml, or the script's."""
    workload: str
    """The kind of program that every rank runs."""
    description: str = ""
    """One line for `hpcdist jobs`."""
    resources: Resources = Resources()
    launch: Launch = Launch()
    record: Record = Record()

    @property
    def gpus_per_rank(self) -> int:
        """GPUs that one rank drives."""
        return 1

    @property
    def ranks_per_node(self) -> int:
        """Ranks that share a node's GPUs."""
        return self.resources.gpus // self.gpus_per_rank

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
    """Distribution of the model: single (one rank), data_parallel (one rank for a node's GPUs), ddp
    (a copy per rank), fsdp (parameters, gradients and optimizer state cut up over the ranks)."""

    @property
    def gpus_per_rank(self) -> int:
        """With data_parallel, one process drives all GPUs of its node."""
        return self.resources.gpus if self.strategy == "data_parallel" else 1


class LightningJob(TrainingJob, frozen=True, kw_only=True):
    """Training by PyTorch Lightning's Trainer (workload: lightning)."""

    workload: Literal["lightning"] = "lightning"
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """Distribution of the model over the ranks; auto: ddp where there are several; fsdp: FSDP2, by
    Lightning's ModelParallelStrategy."""


class OwnCodeJob(JobSpec, frozen=True, kw_only=True):
    """Code of the user's: what it does at a signal, and what it saves, only its author knows."""


class ScriptJob(OwnCodeJob, frozen=True, kw_only=True):
    """A user's own Python script, as torchrun would run it (workload: script)."""

    workload: Literal["script"] = "script"
    script: str
    """Path of the script, or of a folder or a zip file with a __main__.py; in a job file, relative
    to the file."""
    args: list[str] = []
    """Arguments of the script."""

    @property
    def is_given_by_path(self) -> bool:
        """True if the user named the file, not what Python or the shell finds it by."""
        return True


class ModuleJob(ScriptJob, frozen=True, kw_only=True):
    """A user's own module, as `python -m` and `torchrun -m` would run it (workload: module)."""

    workload: Literal["module"] = "module"  # type: ignore[assignment] # each struct has its own
    module: str
    """Name of the module, or of a package with a __main__.py; found from where the job is
    submitted."""
    script: str = ""
    """The module's file, which is found when the job is submitted: a job file cannot say it."""

    @property
    def is_given_by_path(self) -> bool:
        """False: a module may be installed."""
        return False


class ProgramJob(ScriptJob, frozen=True, kw_only=True):
    """A user's own program in any language, as `torchrun --no-python` would execute it (workload:
    program)."""

    workload: Literal["program"] = "program"  # type: ignore[assignment] # each struct has its own
    program: str
    """Name of a program that is looked for in PATH, or a path with a slash; in a job file, relative
    to the file."""
    script: str = ""
    """The program's file, which is found when the job is submitted: a job file cannot say it."""

    @property
    def is_given_by_path(self) -> bool:
        """False for a name that was found in PATH."""
        return "/" in self.program


class FunctionJob(OwnCodeJob, frozen=True, kw_only=True):
    """A function that `hpcdist.submit` was given (workload: function); no job file has one.

    The function and its arguments are pickled in the run directory, and stand nowhere else:
    arguments may be secret.
    """

    workload: Literal["function"] = "function"
    function: str
    """Its module and name."""
    source: str | None = None
    """The file that it is written in; unset: in none."""
    python_path: list[str] = []
    """Folders that the ranks import modules from, as the submitting process did."""
    modules: list[str] = []
    """Modules that every node imports once, before its ranks are forked."""


class CheckJob(JobSpec, frozen=True, kw_only=True):
    """A proof that a cluster works: one collective over all ranks (workload: check)."""

    workload: Literal["check"] = "check"
    timeout_s: Positive = 60.0
    """Seconds that a rank waits for the others."""


class Allreduce(Section, frozen=True, kw_only=True):
    """Measurements of the all-reduce benchmark."""

    sizes: tuple[Annotated[int, Meta(ge=4, le=2**40)], ...] = (
        1_024,
        4_096,
        16_384,
        65_536,
        262_144,
        1_048_576,
        4_194_304,
        16_777_216,
        67_108_864,
        268_435_456,
    )
    """Bytes that each rank has to add up, one measurement each; default: 1 KiB to 256 MiB, by 4."""
    dtype: Literal["float32", "float64", "float16", "bfloat16"] = "float32"
    """Type of the numbers."""
    iterations: Count = 100
    """All-reduces per size; fewer, but not below 3, where they would take longer than
    max_time_s."""
    warmup: Count = 5
    """All-reduces before those that are measured, with one that is checked."""
    max_time_s: Positive = 2.0
    """About how long one size, or one pair of nodes, is measured, in seconds."""
    check: bool = True
    """Check the sums of each size, number by number."""
    pairs: bool = False
    """Measure each pair of nodes as well, with one rank of each, and name the slow ones."""


class AllreduceJob(JobSpec, frozen=True, kw_only=True):
    """Bandwidth and latency of all-reduce over all ranks (workload: allreduce)."""

    workload: Literal["allreduce"] = "allreduce"
    allreduce: Allreduce = Allreduce()


class Inference(Section, frozen=True, kw_only=True):
    """Measurements of the inference benchmark."""

    batch_sizes: tuple[Annotated[int, Meta(ge=1, le=10_000_000)], ...] = (1, 8, 64, 512)
    """Images per call, over all GPUs together; each is measured."""
    strategies: tuple[Literal["single", "data_parallel", "process_per_gpu"], ...] = (
        "single",
        "data_parallel",
        "process_per_gpu",
    )
    """single (one GPU), data_parallel (nn.DataParallel over the GPUs of one node), process_per_gpu
    (each rank its share of the batch)."""
    repeats: Annotated[int, Meta(ge=2)] = 30
    """Timed calls per batch size; fewer, but not below 3, where they would take longer than
    max_time_s."""
    warmup: CountOrZero = 3
    """Calls before those that count, after the first, which is told apart."""
    max_time_s: Positive = 5.0
    """About how long one batch size is measured, in seconds."""
    precision: Literal["fp32", "bf16-mixed", "fp16-mixed"] = "fp32"
    """fp32, bf16-mixed or fp16-mixed."""
    channels_last: Literal["auto"] | bool = "auto"
    """Memory format of convolutional models; auto: where it is faster."""
    image_shape: tuple[Count, Count, Count] | None = None
    """[channels, height, width] of random images; unset: the data set's test images."""
    num_classes: Count = 1000
    """Outputs of the model; only with image_shape."""
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    """Seed of the weights and of random images."""


class InferenceJob(JobSpec, frozen=True, kw_only=True):
    """Time per batch of a model that is not trained, by batch size and by how it is spread over
    GPUs (workload: inference)."""

    workload: Literal["inference"] = "inference"
    model: Model = Model()
    data: Data = Data()
    inference: Inference = Inference()


# Keys without a line of their own mean what they mean in Data.


class LoadedData(Section, frozen=True, kw_only=True):
    """The data, and the ways in which they are loaded: each is measured in every combination with
    the others."""

    name: str = "faces"
    root: OneOrSeveral[str | None] = None
    download: bool = False
    train_samples: Count | None = None
    size: Count | None = None
    split: Literal["auto", "stratified"] = "auto"
    bad_files: Literal["skip", "refuse"] = "skip"
    batches_to_check: Count = 100
    """Batches in each pass, of each rank; the data set is repeated where it has fewer."""
    repeats: Count = 5
    """Passes that count, after the first; fewer where they would take longer than
    dataload.max_time_s."""
    workers: OneOrSeveral[CountOrZero] = (0, 1, 2, 4)
    batch_size: OneOrSeveral[Count] = 64
    """Samples per batch and rank."""
    transform: str | tuple[str | dict[str, Any] | tuple[str | dict[str, Any], ...], ...] = "none"
    """Transforms of the images: none, light, heavy, or a list of torchvision's v2 transforms. A
    list in which everything is a preset's name or a list has several that are compared, such as
    [none, light, [RandomHorizontalFlip]]."""
    device_transform: OneOrSeveral[Literal["auto"] | bool] = "auto"
    decoder: OneOrSeveral[Literal["exact", "fast", "pil"]] = "exact"
    reads: OneOrSeveral[Count | None] = None
    cache: OneOrSeveral[Literal["auto"] | bool] = False
    """Keep decoded photographs in memory that the ranks of a node share; auto: where they fit. Off
    unless it is asked for, as what is measured otherwise is that memory."""
    handover: OneOrSeveral[Literal["uint8", "float32"]] = "uint8"
    pin_memory: OneOrSeveral[Literal["auto"] | bool] = "auto"
    prefetch_factor: OneOrSeveral[Count] = 2
    persistent_workers: OneOrSeveral[bool] = True
    multiprocessing_context: OneOrSeveral[Literal["fork", "forkserver", "spawn"]] = "fork"


class TimedModel(Section, frozen=True, kw_only=True):
    """A model whose training step is timed, to compare it with loading."""

    name: str | None = None
    """fashion_cnn, mlp, any torchvision classification model, or your own: package.module:Class.
    Unset: none is timed."""
    args: dict[str, Any] = {}
    image_size: Count | None = None


class Dataload(Section, frozen=True, kw_only=True):
    """Time of the measurements, and the step that they are compared with."""

    max_time_s: Positive = 60.0
    """About how long one combination is measured, in seconds."""
    step_time_s: Positive | None = None
    """Seconds that a training step of yours takes with a batch that is there already, to compare
    loading with; model.name has it measured instead."""
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    """Seed of the order of the samples and of the transforms."""


class DataloadJob(JobSpec, frozen=True, kw_only=True):
    """Time to load batches, by the number of workers and all else that data say (workload:
    dataload)."""

    workload: Literal["dataload"] = "dataload"
    model: TimedModel = TimedModel()
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
"""Workload, as the key `workload` names it -> what a job with that workload may say."""

FILE_JOB_TYPES = {name: kind for name, kind in JOB_TYPES.items() if kind is not FunctionJob}
"""Workloads that a job file can describe."""


def warning_before_s(launch: Launch, limit_min: float | None) -> float:
    """Return the seconds before a time limit at which the ranks are asked to stop: a quarter of it
    at most."""
    return launch.warning_s if limit_min is None else min(launch.warning_s, limit_min * 60 / 4)


def job_to_dict(job: JobSpec) -> dict[str, Any]:
    """The job as plain values, every key present, as it stands in spec.json."""
    value = msgspec.to_builtins(job)
    assert isinstance(value, dict)
    return value


def job_from_dict(value: dict[str, Any]) -> JobSpec:
    """The job that `job_to_dict` made; msgspec.ValidationError where it is not one."""
    return msgspec.convert(value, JOB_TYPES[value["workload"]])
