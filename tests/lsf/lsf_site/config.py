"""What a simulated site is like: its engine, hosts, queues and limits."""

from dataclasses import asdict, dataclass

IBM = "ibm"
STRICT = "strict"


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What an implementation of LSF knows."""

    banner: str
    knows_all_options: bool
    """Else options of bsub that it does not know are misread by their first letter."""
    bjobs_fields: tuple[str, ...]
    """That `bjobs -o` knows, of those that hpcdist asks for."""
    none_found_code: int
    """Return code of bjobs that finds no job."""
    sets_restart: bool
    """LSB_RESTART=Y in a job that was requeued."""
    environment_travels: bool
    """With blaunch, to the tasks."""


_OLD_FIELDS = (*("jobid", "stat", "exec_host", "start_time", "finish_time", "job_name"),)
_NEW_FIELDS = (
    *("exit_code", "exit_reason", "estimated_start_time", "max_mem", "pend_reason", "pend_time"),
    "run_time",
)
_STRICT = Engine(
    banner="LSF-compatible batch system 3.3, Apr 19 2016",
    knows_all_options=False,
    bjobs_fields=_OLD_FIELDS,
    none_found_code=254,
    sets_restart=False,
    environment_travels=False,
)
ENGINES = {
    IBM: Engine(
        banner="IBM Spectrum LSF Standard 10.1.0.13, Apr 15 2022",
        knows_all_options=True,
        bjobs_fields=_OLD_FIELDS + _NEW_FIELDS,
        none_found_code=255,
        sets_restart=True,
        environment_travels=True,
    ),
    STRICT: _STRICT,
}


@dataclass(frozen=True, kw_only=True)
class Queue:
    """A queue, as lsb.queues describes it."""

    name: str
    priority: int = 30
    run_limit_min: float | None = None
    """The longest that may be asked for; also the default where there is no other."""
    default_run_limit_min: float | None = None
    task_limit: int | None = None
    rerunnable: bool = False
    is_open: bool = True


QUEUES = (
    Queue(name="normal"),
    Queue(name="gpuv100", priority=50, run_limit_min=1440, default_run_limit_min=15),
    Queue(name="short", priority=40, run_limit_min=60, task_limit=4),
    Queue(name="closed", is_open=False),
)


@dataclass(frozen=True, kw_only=True)
class SiteConfig:
    """All that differs between sites; times are in seconds unless their names say otherwise."""

    engine: str = IBM
    cluster: str = "cluster1"
    submission_host: str = "login1"
    hosts: tuple[str, ...] = ("hostA", "hostB", "hostC", "hostD")
    """Names that resolve where the jobs are to talk to each other: such as 127.0.1.1."""
    slots: int = 4
    """Of each host."""
    gpus: int = 2
    """Of each host."""
    gpu_model: str = "TeslaV100_SXM2_32GB"
    memory_mb: int = 64_000
    """Of each host."""
    queues: tuple[Queue, ...] = QUEUES
    default_queue: str = "normal"
    not_found_code: int = 255
    """Return code of bjobs that does not know a job."""
    kill_interval_s: float = 1.0
    """Between SIGINT, SIGTERM and SIGKILL; 10 s on a real site."""
    limit_grace_s: float = 2.0
    """From SIGUSR2 at the run limit to SIGKILL; 10 minutes on a real site."""
    minute_s: float = 60.0
    """How long a minute of -W lasts."""
    clean_period_s: float = 3600.0
    """CLEAN_PERIOD: how long an ended job is remembered."""
    requeue_delay_s: float = 0.0
    """How long a requeued job waits at least."""
    loss_known_s: float = 35.0
    """How long a lost host is called ok, gets jobs, and what runs on it is RUN."""
    rerun_after_s: float = 3.0
    """From the loss of a job's first host until LSF queues the job again, if it was submitted with
    -r; 135 s on a real site."""
    ssh: bool = False
    """Whether ssh leads to the hosts, in a fresh login and past LSF."""

    @property
    def traits(self):
        return ENGINES[self.engine]

    @property
    def launchers(self):
        """The commands that start something on other hosts."""
        return ("blaunch", *(("ssh",) if self.ssh else ()))

    def queue(self, name):
        return next((queue for queue in self.queues if queue.name == name), None)

    def to_dict(self):
        return asdict(self)

    @classmethod
    def from_dict(cls, values):
        values = dict(values)
        queues = tuple(Queue(**queue) for queue in values.pop("queues"))
        return cls(**values | {"queues": queues, "hosts": tuple(values["hosts"])})
