"""The tests' harness: it starts runs, keeps what tests share, and ends what they leave behind.

**Starting.** To import torch takes seconds, and the command half a second. So each test process
keeps a few *zygotes* (zygote.py): processes that have imported modules, and fork a child for each
call. A child is real but for its import: a session, an environment and descriptors of its own.

- `launch` starts a script, and `submit_job` a job by name, with an agent per simulated node;
  `start_run` is below both. Ranks, verdict, logs and files are real; only the scheduler is not.
- `start_script` runs a script as python does, without agents and ranks.
- `run_command` calls the command, and returns what subprocess.run does. `hpcdist` of tests/cli and
  the users of clusters (cluster_user.py) call it by this.
- `submit` submits a script as a user does, by submitit: nothing of it is forked from a zygote.

**Sharing.** Fixtures of the session belong to one process of pytest-xdist: a zygote is started by
the first test that needs it, and serves until the end. Test files that need the same one run in the
same process, and long ones first: see `_ORDER`. What all processes share, Slurm's databases, stands
in a folder (made_once.py).

**Leaving behind.** Each process of a test carries a mark in its environment. left_behind.py looks
after each test for processes with the mark, but for zygotes and others that are known as
`lasting_process`, and for shared memory that nobody uses: the test that left it fails.
"""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from multiprocessing import connection
from pathlib import Path

import pytest
from launched_runs import LaunchedRun
from left_behind import LASTING
from zygote import NUMBER_BYTES

import hpcdist
from hpcdist.job.load import Flag, LoadedJob, load_job
from hpcdist.runs.run import Run
from hpcdist.submission.plan import PlannedSubmission, plan_run
from hpcdist.submission.submit import submit as submit_planned
from hpcdist.submission.submit import write_spec
from hpcdist.workloads import load_workload

_ORDER = {
    "tests/conformance/test_pbs.py": "",
    "tests/agent": "agents",  # with what it shares, the longest of all
    "tests/slurm/test_network.py": "networks",
    "tests/slurm/test_failures.py": "networks",
    "tests/slurm/test_doctor.py": "networks",
    "tests/slurm/test_requeue.py": "slurm",
    "tests/bench": "jobs",
    "tests/slurm/test_remote.py": "login",
    "tests/slurm/test_time_limit.py": "login",
    "tests/conformance/test_slurm.py": "login",
    "tests/conformance/test_here.py": "login",
    "tests/slurm": "slurm",
    "tests/training": "",
    "tests/data": "data",  # all that import torchvision
    "tests/schedulers/azure": "azure",
    "tests/lsf": "",
    "tests/cli": "",
    "tests/conformance": "",
    "tests/rank": "agents",
    "tests/summary/test_attribution.py": "agents",
    "tests/workloads": "jobs",
}
"""Files and folders, the longest first, waiting ones and busy ones in turns; all that have the same
name run in one process, as they share a zygote or a cluster, which takes seconds to start."""

AGENTS = ("torch.distributed", "torch._dynamo", "hpcdist.agent.agent", "known_before_fork")
_LIGHTNING = ("pytorch_lightning", "lightning", "accelerate")
_JOBS = (
    "torchvision.transforms.v2",
    "matplotlib.figure",
    "hpcdist.bench.allreduce.workload",
    "hpcdist.bench.dataload.workload",
    "hpcdist.bench.inference.workload",
)
_PACKAGES = ("cli", "submission", "schedulers", "monitor", "summary", "job", "runs", "cluster")
_COMMAND = (
    *(f"hpcdist.{name}.*" for name in _PACKAGES),
    *("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
    # What no module imports before it needs it is two thirds of the CPU time of a submission.
    *("psutil", "pynvml", "hpcdist.rank.own_loop"),
)
_OF_SCHEDULERS = {
    # sbatch --ntasks 2, seen from a step of one task per node
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NAME": "train",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    # jsrun, with a world of its own
    "LSB_JOBID": "5",
    "LSB_DJOB_RANKFILE": "/nonexistent",
    "JSM_NAMESPACE_RANK": "3",
    "JSM_NAMESPACE_LOCAL_RANK": "3",
    "JSM_NAMESPACE_SIZE": "9",
}


class Zygote:
    """Forks children from a process that has imported these modules; has ended with the block."""

    def __init__(self, *modules, environment=None):
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = Path(__file__).with_name("zygote.py")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(program), str(theirs.fileno()), *modules],
                env=os.environ | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        LASTING.add(self._process.pid)
        assert self._channel.recv(16) == b"ready"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._channel.close()
        self._process.wait(60)

    @property
    def pid(self):
        return self._process.pid

    def call(self, name, *arguments, outputs, argv=("-c",), cwd=None, environment=None):
        """Call a function of zygote.py in a child; `outputs` are its stdout and stderr. None: the
        folder and the environment of the zygote."""
        request = {
            "name": name,
            "arguments": arguments,
            "argv": list(map(str, argv)),
            "cwd": cwd and str(cwd),
            "environment": environment and dict(environment),
        }
        answer, theirs = os.pipe()
        socket.send_fds(self._channel, [json.dumps(request).encode()], [theirs, *outputs])
        os.close(theirs)
        return Child(answer)


class Child:
    """A call to a zygote."""

    def __init__(self, answer):
        self._answer = answer
        self._pid, self._code = self._read(), None

    def __del__(self):
        os.close(self._answer)

    def pid(self):
        return self._pid

    def wait(self, limit_s):
        """Its exit code as of subprocess, or None: it goes on."""
        if self._code is None and connection.wait([self._answer], max(0.0, limit_s)):
            self._code = self._read()
        return self._code

    def _read(self):
        number = os.read(self._answer, NUMBER_BYTES)
        assert number, "the zygote has ended"
        return int(number)


def start_run(zygote, loaded, runs, *, agents=None, change=""):
    """Start a run's agents on simulated nodes, or those of some; the run, and what starts the agent
    of a node. `change` ("module:function") is called in each agent, and so holds for its ranks."""
    run = Run.create(runs, loaded.job.name)
    write_spec(run, plan_run(loaded, scheduler="local"))

    def start_agent(node):
        with (run.path / "submitit" / f"agent-{node}.out").open("wb") as log:
            zygote.call("agent", str(run.path), node, change, outputs=[log.fileno()] * 2)

    for node in range(loaded.job.resources.nodes) if agents is None else agents:
        start_agent(node)
    return run, start_agent


def multiply_wrongly():
    """A change: what torch multiplies in float32 is wrong."""
    import torch

    right = torch.Tensor.__matmul__
    torch.Tensor.__matmul__ = lambda a, b: right(a, b) + (a.dtype == torch.float32)


def start_script(zygote, folder, script, *arguments, environment=None):
    """Start a script by itself in this folder, which must be there; its file `output` gets what it
    prints. It knows the variables of the test, and these."""
    with (folder / "output").open("wb") as output:
        return zygote.call(
            "script",
            str(script),
            outputs=[output.fileno()] * 2,
            argv=(script, *arguments),
            cwd=folder,
            environment=os.environ | (environment or {}),
        )


def command_zygote(*modules):
    """A zygote of the command, with these modules, too."""
    return Zygote(*_COMMAND, *modules)


def run_command(zygote, arguments, *, cwd, environment, limit_s, name="hpcdist"):
    """Call the command as subprocess.run does, which captures its output as text."""
    arguments = list(map(str, arguments))
    program = os.path.join(os.path.dirname(hpcdist.__file__), "__main__.py")
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = zygote.call(
            name,
            arguments,
            outputs=[output.fileno(), errors.fileno()],
            argv=(program, *arguments),
            cwd=cwd,
            environment=environment,
        )
        code = child.wait(limit_s)
        if code is None:
            os.kill(child.pid(), signal.SIGKILL)
            raise subprocess.TimeoutExpired(arguments, limit_s)
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode().replace("\r\n", "\n").replace("\r", "\n"))
    return subprocess.CompletedProcess(arguments, code, *texts)


def submit_run(loaded, runs, **options):
    """Submit a loaded job to this machine as the command does; the run."""
    planned = PlannedSubmission(plans=[plan_run(loaded, scheduler="local", runs=runs, **options)])
    return submit_planned(planned, runs=runs).runs[0]


@pytest.fixture(scope="session")
def torch_zygote():
    with Zygote(*AGENTS) as process:
        yield process


@pytest.fixture
def zygote(torch_zygote):
    return torch_zygote


@pytest.fixture(scope="session")
def lightning_zygote():
    """Has Lightning already, which takes seconds to import, and imported it with these variables
    set, as on a cluster; its agents and ranks have them too."""
    trainings = ("sklearn.datasets", "hpcdist.training.loop", "hpcdist.training.lightning")
    modules = (*AGENTS, *filter(find_spec, _LIGHTNING), *trainings)
    # OpenBLAS starts a thread for each further CPU, and sees to it that forks are safe.
    with Zygote(*modules, environment=_OF_SCHEDULERS | {"OMP_NUM_THREADS": "1"}) as process:
        yield process


@pytest.fixture(scope="session")
def jobs_zygote():
    with Zygote(*AGENTS[:-1], *_JOBS) as process:
        yield process


@pytest.fixture(scope="session")
def command_process():
    """The zygote that calls of the command are forked from."""
    with command_zygote() as process:
        yield process


@pytest.fixture
def running():
    """Call it with a run that a test has started: what is left of it ends with the test."""
    started = []

    def note(*run):
        started.append(LaunchedRun(*run))
        return started[-1]

    yield note
    for launched in started:
        launched.kill_agents()


@pytest.fixture
def launch(zygote, tmp_path, script_job, running):
    """Start a script with agents that have torch already; see `script_job` for the options."""

    def start(script, *args, agents=None, change="", **options):
        loaded = LoadedJob(job=script_job(script, *args, **options), source=str(script))
        return running(*start_run(zygote, loaded, tmp_path / "runs", agents=agents, change=change))

    return start


@pytest.fixture
def submit_job(tmp_path, running, jobs_zygote):
    """Start a job by name on CPUs; `overrides` are as of --set, `change` as of start_run."""

    def submit(name, *overrides, nodes=1, gpus=1, change=""):
        flags = {"resources.nodes": nodes, "resources.gpus": gpus, "launch.device": "cpu"}
        loaded = load_job(
            name,
            flags={key: Flag(name=key, value=value) for key, value in flags.items()},
            overrides=list(overrides),
        )
        load_workload(loaded.job).check()
        return running(*start_run(jobs_zygote, loaded, tmp_path / "runs", change=change))

    return submit


@pytest.fixture
def submit(tmp_path, script_job, running):
    """Submit a script as the command does, through submitit."""

    def start(script, *args, **options):
        loaded = LoadedJob(job=script_job(script, *args, **options), source=str(script))
        return running(submit_run(loaded, tmp_path / "runs"))

    return start


def _place(file):
    """(place in the order, name of the process) of a file."""
    for place, (path, process) in enumerate(_ORDER.items()):
        if file.startswith(path):
            return place, process or file
    return len(_ORDER), file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """As --dist=loadfile deals files out, but for those that share a process."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByProcess(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return _place(super()._split_scope(nodeid))[1]

    return ByProcess(config, log)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: _place(item.nodeid.partition("::")[0])[0])


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Leave all that is imported and collected out of the search for garbage: it takes a quarter
    of the time of collecting, and time and again while tests run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
