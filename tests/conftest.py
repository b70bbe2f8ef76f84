"""What all tests share: starting runs, and leaving no process or shared memory behind."""

import contextlib
import gc
import itertools
import json
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import pytest
from another_user import reachable  # noqa: F401 - a fixture of all tests
from forked_command import command_server
from simulated_jobs import forking, submit_job  # noqa: F401 - fixtures, too
from submitting import submit_run
from waiting import wait_for
from zygotes import (  # noqa: F401
    launch,
    launch_from,
    lightning_zygote,
    torch_zygote,
    zygote,
)

from hpcdist.job import LoadedJob
from hpcdist.job.spec import Launch, ProgramJob, Record, Resources, ScriptJob
from hpcdist.runs.events import read_events
from hpcdist.runs.run import Run

LIMIT_S = 150.0  # all is well long before; a busy machine may stand still for a minute
_GONE_LIMIT_S = 30.0
_MARK = "HPCDIST_TEST_MARK"
_SHARED_MEMORY = Path("/dev/shm")
_LASTING: set[int] = set()  # processes that serve several tests
_STRANGERS: set[int] = set()  # processes of others: around each test only the new are looked at

os.environ[_MARK] = uuid.uuid4().hex  # every descendant carries it
# Threads that wait for others must not spin: ranks of several tests share few CPUs, and with two
# threads per CPU a step that takes 5 ms takes a second, all of it waiting.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


_WAITING = ("tests/slurm", "tests/lsf")
"""What these test is mostly waited for; the CPUs are for others meanwhile."""
_LONGEST_FIRST = (
    "tests/agent/test_examples.py",  # and with it all of agents, which one process runs
    "tests/slurm/test_requeue.py",
    "tests/slurm/test_network.py",
    "tests/slurm/test_preemption.py",
    "tests/slurm/test_time_limit.py",
    "tests/lsf/test_failures.py",
    "tests/cli/test_stop.py",
    "tests/slurm/test_environment.py",
    "tests/lsf/test_requeue.py",
    "tests/slurm",
    "tests/perf",
    "tests/lsf",
    "tests/agent/test_lightning.py",
    "tests/training/test_lightning.py",
    "tests/bench",
    "tests/summary/test_attribution.py",
    "tests/cli",
    "tests/training",
    "tests/agent",
    "tests/data/images/test_loading.py",
)
"""Files are dealt out to several processes: the last to begin must not be the longest."""


_TOGETHER = {
    "tests/agent": "agents",
    "tests/rank": "agents",
    "tests/summary/test_attribution.py": "agents",
    "tests/bench": "jobs",
    "tests/workloads": "jobs",
}
"""Files and folders that share what takes seconds to start: one process runs all of a name."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """As --dist=loadfile deals files out, but for those that go together."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return next((name for path, name in _TOGETHER.items() if file.startswith(path)), file)

    return Together(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported and collected stays: to look through all of it for garbage takes a quarter
    of the time of collecting, and time again and again while tests run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items):
    def place(file):
        found = (i for i, path in enumerate(_LONGEST_FIRST) if file.startswith(path))
        return next(found, len(_LONGEST_FIRST))

    by_file = {}
    for item in items:
        by_file.setdefault(item.nodeid.partition("::")[0], []).append(item)
    files = sorted(by_file, key=place)
    waiting = [file for file in files if file.startswith(_WAITING)]
    others = [file for file in files if not file.startswith(_WAITING)]
    in_turns = [file for two in itertools.zip_longest(waiting, others) for file in two if file]
    items[:] = [item for file in in_turns for item in by_file[file]]


def marked_processes():
    """Command line by pid of the living processes that come from this test session."""
    mark = f"{_MARK}={os.environ[_MARK]}".encode()
    living = set(map(int, filter(str.isdigit, os.listdir("/proc"))))
    _STRANGERS.intersection_update(living)
    found = {}
    for pid in living - _STRANGERS - _LASTING - {os.getpid()}:
        try:
            environment = _read_bytes(pid, "environ")
        except PermissionError:
            _STRANGERS.add(pid)
            continue
        if mark not in environment:
            # Without, it may be about to execute a program, unless it is the kernel's own.
            if environment or _stat(pid, "flags") & _KERNEL_THREAD:
                _STRANGERS.add(pid)
        # Python's own resource tracker lives as long as the test process.
        elif not _is_resource_tracker(command := _read_bytes(pid, "cmdline")) or (
            _stat(pid, "ppid") != os.getpid()
        ):
            found[pid] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


_STAT = {"ppid": 1, "flags": 6}  # places after the command's name in /proc/PID/stat
_KERNEL_THREAD = 0x00200000


def _stat(pid, name):
    _, _, fields = _read_bytes(pid, "stat").rpartition(b") ")
    return int(fields.split()[_STAT[name]]) if fields else 0


def _read_bytes(pid, name):
    """A file of a process; nothing where the process has ended, or has no such file."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except PermissionError:
        raise
    except OSError:
        return b""


def _is_resource_tracker(command):
    return b"multiprocessing.resource_tracker" in command


def leaked_shared_memory(before):
    """New entries of /dev/shm that no living process uses: those of other programs do not count."""
    new = {name: _inode(name) for name in set(os.listdir(_SHARED_MEMORY)) - before}
    unused = {inode for inode in new.values() if inode is not None and not _is_used(inode)}
    leaked = unused - _find_used(unused)
    return {name for name, inode in new.items() if inode in leaked}


_SHARED_MEMORY_USERS: dict[int, int] = {}  # a process that was found to use it, by its inode


def _is_used(inode):
    """Whether who used it then still does: to look at all processes takes long."""
    user = _SHARED_MEMORY_USERS.get(inode)
    return user is not None and inode in set(_shared_memory_of(user))


def _was_cut_off(name):
    """Whether a process that is gone made it by torch, which takes the name away as soon as it has
    mapped what it made: one that is killed in between leaves it. Agents free what those leave that
    they kill; a test that kills a rank or a worker by itself does not, nor one beside this one."""
    made_by = re.match(r"torch_(\d+)_", name)
    return made_by is not None and not Path("/proc", made_by[1]).exists()


def _inode(name):
    try:
        return (_SHARED_MEMORY / name).stat().st_ino
    except FileNotFoundError:
        return None


def _find_used(inodes):
    """Those that a process uses; what is new is used by new processes, which are looked at first:
    with many ranks about, all take half a second."""
    found = set()
    for pid in sorted(map(int, filter(str.isdigit, os.listdir("/proc"))), reverse=True):
        if found == inodes:
            break
        used = inodes.intersection(_shared_memory_of(pid))
        _SHARED_MEMORY_USERS.update(dict.fromkeys(used, pid))
        found |= used
    return found


def _shared_memory_of(pid):
    """Inodes, not names: who makes a semaphore has mapped it under a name that is gone since."""
    device = _SHARED_MEMORY.stat().st_dev
    mapped = re.compile(
        rf"^\S+ \S+ \S+ {os.major(device):02x}:{os.minor(device):02x} (\d+)", re.MULTILINE
    )
    with contextlib.suppress(OSError):
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        yield from map(int, mapped.findall(maps))
        yield from _open_inodes(Path(f"/proc/{pid}/fd"), device)


def _open_inodes(folder, device):
    for fd in folder.iterdir():
        with contextlib.suppress(OSError):
            found = fd.stat()
            if found.st_dev == device:
                yield found.st_ino


def _still_runs(process):
    pid, _ = process
    try:
        return bool(Path(f"/proc/{pid}/environ").read_bytes())
    except OSError:
        return False


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Fails the test that leaves a process or shared memory behind, and cleans up after it."""
    before = set(os.listdir(_SHARED_MEMORY))
    yield
    deadline = time.monotonic() + _GONE_LIMIT_S
    processes, memory = marked_processes(), leaked_shared_memory(before)
    while (processes or memory) and time.monotonic() < deadline:
        time.sleep(0.05)
        # To look at all processes, time and again, takes the CPU from those that are to end:
        # torch's manager of shared memory takes two seconds.
        processes = dict(filter(_still_runs, processes.items())) or marked_processes()
        if memory and not processes:  # other test processes make new entries all the time
            memory &= leaked_shared_memory(before)
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGKILL)
    for name in memory:
        (_SHARED_MEMORY / name).unlink(missing_ok=True)
    assert not processes
    assert len(memory) <= 1, memory
    assert all(map(_was_cut_off, memory)), memory


@pytest.fixture(autouse=True)
def no_files_of_the_user(monkeypatch, tmp_path_factory):
    """Tests know none of the profiles of the user who runs them, leave nothing in the cache, and
    share among themselves what is made once."""
    folder = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "no-configuration"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("HPCDIST_CACHE", str(folder / "cache"))
    monkeypatch.delenv("HPCDIST_CLUSTER", raising=False)


@pytest.fixture(scope="session")
def lasting_process():
    """Call it with the pid of a process that serves several tests."""
    return _LASTING.add


@pytest.fixture(scope="session")
def command_process(lasting_process):
    """The process that calls of the command are forked from."""
    with command_server(lasting_process) as server:
        yield server


@dataclass
class LaunchedRun:
    """A run that goes on, and what it leaves."""

    run: Run
    start_agent: Callable[[int], None] | None = None

    def verdict(self, limit_s=LIMIT_S):
        """The verdict, when it is there."""
        self.wait(self.run.verdict_file.exists, limit_s)
        return self.run.read_verdict()

    def wait(self, condition, limit_s=LIMIT_S):
        return wait_for(condition, limit_s, told=self.everything_said)

    def log(self, rank, attempt=0):
        try:
            return self.run.log_file(rank, attempt).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def logs(self):
        return [self.log(rank, attempt) for rank, attempt, _ in self.run.log_files()]

    def said(self, rank, attempt=0):
        """What a rank printed as JSON, one object per line; a line that is still being written is
        left for later."""
        whole, _, _ = self.log(rank, attempt).rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def events(self, rank, attempt=0):
        return read_events(self.run.event_file(rank, attempt)).events

    def pid(self, rank, attempt=0):
        """Of a rank, once it has started."""
        file = self.run.event_file(rank, attempt)
        return self.wait(lambda: file.exists() and read_events(file).events)[0]["pid"]

    def agent_pid(self, node):
        value = self.wait(lambda: _read(self.run.agent_file(node)))
        return value["process"]["pid"]

    def agents_alive(self):
        files = self.run.launch_folder.glob("agent-*.json")
        return any(Path(f"/proc/{_read(file)['process']['pid']}").exists() for file in files)

    def kill_agents(self):
        """After a test that failed half way; with the agents go their ranks."""
        for file in self.run.launch_folder.glob("agent-*.json"):
            if not self.run.verdict_file.exists():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(_read(file)["process"]["pid"], signal.SIGKILL)

    def everything_said(self):
        folders = (self.run.submitit_folder, self.run.logs_folder)
        files = [file for folder in folders for file in sorted(folder.glob("*.[lo][ou][gt]"))]
        return "\n".join(f"== {file.name}\n{file.read_text(errors='replace')}" for file in files)

    def seconds_to_verdict(self, failed_s):
        return self.run.verdict_file.stat().st_mtime - failed_s


def _read(path):
    return json.loads(path.read_text()) if path.exists() else None


def script_job(script, *args, nodes=1, gpus=1, no_python=False, **options):
    """A script job, or one of a program; `options` are keys of `resources`, `record` and of
    `launch`."""

    def of(section):
        names = {field.name for field in msgspec.structs.fields(section)}
        return {key: options.pop(key) for key in names & options.keys()}

    resources, record = of(Resources), of(Record)
    kind = partial(ProgramJob, program=str(script)) if no_python else ScriptJob
    return kind(
        name=Path(script).stem,
        script=str(script),
        args=[str(arg) for arg in args],
        resources=Resources(nodes=nodes, gpus=gpus, **resources),
        launch=Launch(**{"device": "cpu"} | options),
        record=Record(**record),
    )


@pytest.fixture(name="script_job", scope="session")
def _script_job():
    return script_job


@pytest.fixture(scope="session")
def launched_run():
    return LaunchedRun


@pytest.fixture
def write_script(tmp_path):
    """Write a script into the test's folder; returns its path."""

    def write(text, name="script.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


@pytest.fixture
def submit(tmp_path):
    """Submit a script as the command does, through submitit."""
    started = []

    def start(script, *args, **options):
        job = script_job(script, *args, **options)
        loaded = LoadedJob(job=job, source=str(script))
        command = ["hpcdist", "submit", str(script)]
        run = submit_run(loaded, tmp_path / "runs", command=command)
        started.append(LaunchedRun(run))
        return started[-1]

    yield start
    for launched in started:
        launched.kill_agents()


@pytest.fixture(scope="session")
def missing():
    """Call it with what a test lacks on this machine: skips, or fails where nothing may be left out
    (HPCDIST_REQUIRE_ALL, as in CI)."""
    return pytest.fail if os.environ.get("HPCDIST_REQUIRE_ALL") else pytest.skip


@pytest.fixture
def small_disk(tmp_path, missing):
    """A file system of the given size in KB, which takes a superuser."""
    mounted = []

    def mount(kilobytes, inodes=1000):
        folder = tmp_path / f"disk-{kilobytes}"
        folder.mkdir()
        options = f"size={kilobytes}k,nr_inodes={inodes}"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
            missing("a full disk takes a superuser who may mount one")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
