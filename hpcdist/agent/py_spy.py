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
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcdist.base import files
from hpcdist.rank.stacks import Frame, ThreadStack
from hpcdist.rank.wishes import OperationTime

_DUMP_S = 30.0
"""It reads the symbols of all libraries: torch has a gigabyte of them."""
_MOST_FUNCTIONS = 50
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


class _Shared(msgspec.Struct, frozen=True):
    frames: list[_SampledFrame]


class _SampledFrame(msgspec.Struct, frozen=True):
    name: str
    file: str | None = None
    line: int | None = None


class _Profile(msgspec.Struct, frozen=True):
    name: str
    samples: list[list[int]]
    weights: list[float]


class _Speedscope(msgspec.Struct, frozen=True):
    profiles: list[_Profile]
    shared: _Shared


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
        return Dump(error=f"py-spy is not there; {_INSTALL}")
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
    """Sample the stacks of a process: half of the time for `path`.speedscope.json, and the other
    for the flame graph `path`.svg."""
    program = find()
    if program is None:
        return Samples(error=f"py-spy is not there; {_INSTALL}")
    formats = {"speedscope": ".speedscope.json", "flamegraph": ".svg"}
    found = {kind: path.with_name(path.name + ending) for kind, ending in formats.items()}
    each_s = max(1, round(length_s / len(formats)))
    try:
        for kind, file in found.items():
            argv = [program, "record", "--idle", "--pid", str(pid), "--format", kind]
            argv += ["--duration", str(each_s), "--output", str(file)]
            done = run(argv, limit_s=each_s + _DUMP_S)
            if done.returncode != 0 or not file.is_file():
                return Samples(error=why(done.stderr))
            file.chmod(files.PRIVATE_FILE)
        speedscope = files.read_bytes(found["speedscope"], most_bytes=files.MOST_JSON_BYTES * 4)
        operations = _functions(msgspec.json.decode(speedscope, type=_Speedscope), pid)
    except subprocess.TimeoutExpired:
        return Samples(error=f"py-spy did not end within {each_s + _DUMP_S:g} s")
    except (OSError, msgspec.MsgspecError) as error:
        return Samples(error=f"py-spy: {error}")
    return Samples(length_s=each_s, operations=operations, files=list(found.values()))


def _functions(content: _Speedscope, pid: int) -> list[OperationTime]:
    """Return the functions that were innermost in the main thread."""
    profiles = content.profiles
    main = next((one for one in profiles if one.name.startswith(f"Thread {pid} ")), profiles[0])
    calls: Counter[int] = Counter()
    times: Counter[int] = Counter()
    for stack, weight in zip(main.samples, main.weights, strict=True):
        calls[stack[-1]] += 1
        times[stack[-1]] += weight  # type: ignore[assignment]  # seconds
    frames = content.shared.frames
    return [
        OperationTime(name=_name(frames[index]), calls=calls[index], self_s=float(self_s))
        for index, self_s in times.most_common(_MOST_FUNCTIONS)
    ]


def _name(frame: _SampledFrame) -> str:
    return f"{frame.name} ({os.path.basename(frame.file or '?')}:{frame.line or '?'})"


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
    return f"py-spy may not read the process on this host{scope}: ask the site, or do without"


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
