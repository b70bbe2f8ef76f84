"""py-spy, where it is installed: stacks of a rank with the frames of C code, and samples of them.

It reads the memory of the rank's process. Where the kernel has Yama with ptrace_scope 1, as most
distributions do, a process is read by its parent and by whom it names: ranks name their agent, and
py-spy is a process of that. With 2 and 3 only root may.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcdist.agent.flames import Speedscope, clean, to_svg
from hpcdist.base import files
from hpcdist.rank.stacks import Frame, ThreadStack
from hpcdist.rank.wishes import OperationTime

_DUMP_S = 30.0
"""It reads the symbols of all libraries: torch has a gigabyte of them."""
_MOST_FUNCTIONS = 50
_MOST_BYTES = 1 << 26
_NAME = "py-spy"
_SCOPE_FILE = Path("/proc/sys/kernel/yama/ptrace_scope")
_INSTALL = "install it into the job's environment: pip install 'hpcdist[py-spy]'"


class Dump(msgspec.Struct, frozen=True, kw_only=True):
    """The stacks of one process as py-spy has them, or why it has none."""

    threads: list[ThreadStack] = []
    error: str | None = None


class _Frame(msgspec.Struct, frozen=True):
    name: str
    filename: str
    line: int = 0


class _Thread(msgspec.Struct, frozen=True):
    pid: int
    os_thread_id: int | None = None
    thread_name: str | None = None
    frames: list[_Frame] = []


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one process that py-spy took, or why there are none."""

    length_s: float = 0.0
    operations: list[OperationTime] = []
    """Functions of the main thread, those that were innermost most often first."""
    files: list[Path] = []
    error: str | None = None


_THREADS = msgspec.json.Decoder(list[_Thread])


def find() -> str | None:
    """Return the program of this Python's environment, or of PATH; None where there is none."""
    own = os.path.join(os.path.dirname(sys.executable), _NAME)
    return own if os.access(own, os.X_OK) else shutil.which(_NAME)


def dump(pid: int) -> Dump:
    """Return the stacks of a process, with the frames of C code; the process stands still for it,
    a second or so."""
    program = find()
    if program is None:
        return Dump(error=f"py-spy was not found; {_INSTALL}")
    argv = [program, "dump", "--native", "--json", "--pid", str(pid)]
    try:
        done = run(argv, limit_s=_DUMP_S)
        if done.returncode != 0:
            return Dump(error=why(done.stderr))
        return Dump(threads=_threads(_THREADS.decode(done.stdout)))
    except subprocess.TimeoutExpired:
        return Dump(error=f"py-spy did not end within {_DUMP_S:g} s")
    except (OSError, msgspec.MsgspecError) as error:
        return Dump(error=f"py-spy: {error}")


def record(pid: int, path: Path, *, length_s: float) -> Samples:
    """Sample the stacks of a process, into `path`.speedscope.json and the flame graph
    `path`.svg."""
    program = find()
    if program is None:
        return Samples(error=f"py-spy was not found; {_INSTALL}")
    for_speedscope, graph = (
        path.with_name(path.name + ending) for ending in (".speedscope.json", ".svg")
    )
    argv = [program, "record", "--idle", "--pid", str(pid), "--format", "speedscope"]
    argv += ["--duration", str(max(1, round(length_s))), "--output", str(for_speedscope)]
    try:
        done = run(argv, limit_s=length_s + _DUMP_S)
        if done.returncode != 0 or not for_speedscope.is_file():
            return Samples(error=why(done.stderr))
        text = files.read_bytes(for_speedscope, most_bytes=_MOST_BYTES)
        content = clean(msgspec.json.decode(text, type=Speedscope))
        files.write_whole(for_speedscope, msgspec.json.encode(content))
        files.write_whole(graph, to_svg(content, f"{path.name}, {length_s:g} s by py-spy"))
    except subprocess.TimeoutExpired:
        return Samples(error=f"py-spy did not end within {length_s + _DUMP_S:g} s")
    except (OSError, msgspec.MsgspecError) as error:
        return Samples(error=f"py-spy: {error}")
    return Samples(
        length_s=length_s, operations=_functions(content, pid), files=[for_speedscope, graph]
    )


def _functions(content: Speedscope, pid: int) -> list[OperationTime]:
    """Return the functions that were innermost in the main thread."""
    of_main = [one for one in content.profiles if one.name.startswith(f"Thread {pid} ")]
    calls: Counter[int] = Counter()
    times: dict[int, float] = defaultdict(float)
    for thread in of_main or content.profiles[:1]:
        for stack, weight in zip(thread.samples, thread.weights, strict=True):
            if stack:
                calls[stack[-1]] += 1
                times[stack[-1]] += weight
    frames = content.shared.frames
    return [
        OperationTime(name=frames[index].place, calls=number, self_s=times[index])
        for index, number in calls.most_common(_MOST_FUNCTIONS)
    ]


def run(argv: Sequence[str], *, limit_s: float) -> subprocess.CompletedProcess[bytes]:
    """Run it, quiet but for its errors."""
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False
    )


def why(said: bytes) -> str:
    """Return why it could not read a process, and what to do, from what it wrote."""
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
    first = lines[0].removeprefix("Error: ") if lines else "it said nothing"
    if b"ermission denied" not in said and b"EPERM" not in said:
        return f"py-spy: {first}"
    try:
        scope = f", whose /proc/sys/kernel/yama/ptrace_scope is {_SCOPE_FILE.read_text().strip()}"
    except OSError:
        scope = ""
    return (
        f"py-spy is not allowed to read the process on this host{scope}; only its administrators "
        "can allow that"
    )


def _threads(found: Sequence[_Thread]) -> list[ThreadStack]:
    threads = [
        ThreadStack(
            name=thread.thread_name,
            is_main=thread.os_thread_id == thread.pid,
            frames=[Frame(frame.filename, frame.line, frame.name) for frame in thread.frames],
        )
        for thread in found
    ]
    return sorted(threads, key=lambda thread: not thread.is_main)
