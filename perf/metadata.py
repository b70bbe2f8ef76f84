"""Operations on the run's directory, counted by strace, of a whole run on simulated nodes.

On a shared file system each of them may be a question to one server, which all jobs share. They are
counted before a rank's first step, those of waiting for node 0 apart, and after it for as long as
the ranks step, and as the run ends. Ranks import no torch: what torch reads lies elsewhere.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from commands import HPCDIST, SCRIPTS, run_command
from sidebyside import option_parser, print_machine

_CALLS = "%file,%process,fsync,fdatasync,fstat,getdents64,ftruncate,flock"
_LINE = re.compile(r"(?P<pid>\d+) +(?P<time>\d+\.\d+) (?P<call>\w+)\((?P<rest>.*)")
_RESUMED = re.compile(r"(?P<pid>\d+) +\d+\.\d+ <\.\.\. (?P<call>\w+) resumed>(?P<rest>.*)")
_FORKED = re.compile(r"\) += (\d+)$")
_PATH = re.compile(r'"((?:[^"\\]|\\.)*)"')
_NUMBERS = re.compile(r"\d+")
_KINDS = {
    **dict.fromkeys(("stat", "lstat", "newfstatat", "statx", "access", "faccessat2"), "stat"),
    **dict.fromkeys(("rename", "renameat", "renameat2"), "rename"),
    **dict.fromkeys(("unlink", "unlinkat"), "unlink"),
    **dict.fromkeys(("link", "linkat", "symlink", "symlinkat"), "link"),
    **dict.fromkeys(("readlink", "readlinkat"), "readlink"),
    **dict.fromkeys(("mkdir", "mkdirat", "rmdir"), "mkdir"),
    **dict.fromkeys(("chmod", "fchmodat", "utimensat", "truncate"), "change"),
    **dict.fromkeys(("fsync", "fdatasync"), "fsync"),
    **dict.fromkeys(("getdents64",), "list"),
    "fstat": "fstat",
}
"""Call -> its column. fstat is of a file that is open, which a client mostly knows by itself."""
_WAITED_FOR = ("launch", "launch/meeting.json", "launch/requests")
"""Opened again and again: until node 0 is there, which depends on how late it is, and by node 0's
agent once a second."""
COLUMNS = (
    "wait",
    "create",
    "open",
    "stat",
    "rename",
    "unlink",
    "link",
    "mkdir",
    "list",
    "fsync",
    "fstat",
)
OWNERS = ("rank", "agent of node 0", "other agents", "forkserver", "command and scheduler")


@dataclass(frozen=True)
class Operation:
    """An operation on a path within the run's directory."""

    pid: int
    time_s: float
    kind: str
    path: str


@dataclass
class Trace:
    """What strace wrote down of a run."""

    operations: list[Operation] = field(default_factory=list)
    parents: dict[int, int] = field(default_factory=dict)
    began_s: float = 0.0
    """When the last rank had its first step."""
    over_s: float = 0.0
    """When the first rank had its last one."""


def read_trace(text: str, run: str) -> Trace:
    """Return the operations below `run`, and the times that scripts/plain_steps.py leaves."""
    trace = Trace()
    for pid, time_s, call, rest in _calls(text):
        if call in {"clone", "clone3", "fork", "vfork"}:
            if forked := _FORKED.search(rest):
                trace.parents[int(forked[1])] = pid
            continue
        paths = _PATH.findall(rest) or re.findall(r"^\d+<([^>]*)>", rest)
        if call == "fstat":
            paths = re.findall(r"^\d+<([^>]*)>", rest)
        if paths and "/began-" in paths[-1]:
            trace.began_s = max(trace.began_s, time_s)
        elif paths and "/over-" in paths[-1]:
            trace.over_s = min(trace.over_s or time_s, time_s)
        path = _below(rest, paths[:1] if call.startswith("readlink") else paths, run)
        kind = _kind(call, rest, paths)
        if kind == "open" and path in _WAITED_FOR:
            kind = "wait"
        if kind and path is not None:
            trace.operations.append(Operation(pid, time_s, kind, path))
    return trace


def _calls(text: str) -> Iterator[tuple[int, float, str, str]]:
    """Yield each call once; strace cuts those that another process's line comes between."""
    begun: dict[int, tuple[float, str, str]] = {}
    for line in text.splitlines():
        if match := _LINE.fullmatch(line):
            pid, time_s = int(match["pid"]), float(match["time"])
            call, rest = match["call"], match["rest"]
            if rest.endswith("<unfinished ...>"):
                begun[pid] = time_s, call, rest.removesuffix("<unfinished ...>")
            else:
                yield pid, time_s, call, rest
        elif (match := _RESUMED.fullmatch(line)) and int(match["pid"]) in begun:
            pid = int(match["pid"])
            time_s, call, rest = begun.pop(pid)
            yield pid, time_s, call, rest + match["rest"]


def _below(rest: str, paths: list[str], run: str) -> str | None:
    """Return the place within the run's directory of the first path that lies there."""
    folders = re.findall(r"(?:AT_FDCWD|\d+)<([^>]*)>", rest) or [""]
    for path in paths:
        whole = os.path.join(folders[0], path).rstrip("/")
        if whole == run or whole.startswith(f"{run}/"):
            return whole[len(run) + 1 :] or "."
    return None


def _kind(call: str, rest: str, paths: list[str]) -> str | None:
    if call in {"open", "openat", "creat"}:
        return "create" if "O_CREAT" in rest else "open"
    if paths[:1] == [""]:  # of the descriptor itself
        return "fstat"
    return _KINDS.get(call)


def owners(trace: Trace) -> dict[int, str]:
    """Return whose process each pid is, by what it does first with the run's directory."""
    found: dict[int, str] = {}
    for one in trace.operations:
        if one.path.startswith("launch/.agent-"):
            node = int(_NUMBERS.findall(one.path)[0])
            found.setdefault(one.pid, OWNERS[1] if node == 0 else OWNERS[2])
    for one in trace.operations:
        is_log = one.kind == "create" and re.search(r"logs/.*rank-\d+\.log$", one.path)
        if is_log and found.get(one.pid) is None:
            found[one.pid] = OWNERS[0]
            found[trace.parents[one.pid]] = OWNERS[3]
    for pid, parent in trace.parents.items():  # threads, and what was forked for something else
        if pid not in found and parent in found:
            found[pid] = found[parent]
    return found


def measure(nodes: int, ranks: int, length_s: float) -> tuple[Trace, int]:
    """Run that many ranks under strace; returns what was done, and how many files it left."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder, output = Path(name).resolve(), Path(name).resolve() / "trace"
        runs = folder / "runs"
        traced = ("strace", "-f", "-ttt", "-y", "-s", "300", "-o", str(output), "-e", _CALLS)
        script = (str(SCRIPTS / "plain_steps.py"), "--nodes", str(nodes), "--gpus", str(ranks))
        options = ("--local", "--runs", str(runs), "--set", "launch.device=cpu")
        command = (HPCDIST, "submit", *script, *options, "--", str(folder), str(length_s))
        run_command([*traced, *command], folder)
        (run,) = runs.iterdir()
        num_files = sum(1 for path in run.rglob("*") if path.is_file())
        return read_trace(output.read_text(errors="replace"), str(run)), num_files


def show(trace: Trace, *, nodes: int, ranks: int, paths: bool) -> None:
    """Print a row per owner, before the first step and per 10 s of steps, for one of each."""
    whose = owners(trace)
    numbers = {OWNERS[0]: nodes * ranks, OWNERS[2]: max(1, nodes - 1), OWNERS[3]: nodes}
    length_s = trace.over_s - trace.began_s
    for title, is_in, share in (
        ("before the first step", lambda s: s < trace.began_s, 1.0),
        ("per 10 s of steps", lambda s: trace.began_s <= s < trace.over_s, 10 / length_s),
        ("at the end", lambda s: s >= trace.over_s, 1.0),
    ):
        print(f"\n{title:<26}{'':>7}" + "".join(f"{column:>8}" for column in (*COLUMNS, "all")))
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        places: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for one in trace.operations:
            if is_in(one.time_s):
                owner = whose.get(one.pid, OWNERS[4])
                counts[owner][one.kind] += 1
                places[owner][f"{one.kind} {_NUMBERS.sub('N', one.path)}"] += 1
        for owner in OWNERS:
            number = numbers.get(owner, 1)
            each = {kind: count * share / number for kind, count in counts[owner].items()}
            row = "".join(f"{each.get(column, 0):>8.1f}" for column in COLUMNS)
            whole = sum(count for kind, count in each.items() if kind not in {"fstat", "wait"})
            print(f"  {owner:<24}{'':>7}{row}{whole:>8.1f}")
            for place, count in places[owner].most_common(40) if paths else ():
                print(f"      {count * share / number:8.2f} {place}")


def main() -> None:
    parser = option_parser(__doc__, pairs=1)
    parser.add_argument("--nodes", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=2, help="per node; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=10, help="of steps; default: %(default)s")
    parser.add_argument("--paths", action="store_true", help="also what they are done to")
    options = parser.parse_args()
    print_machine()
    if shutil.which("strace") is None:
        print("skipped: strace is not installed")
        sys.exit(0)
    for _ in range(options.pairs):
        trace, num_files = measure(options.nodes, options.ranks, options.seconds)
        print(f"\n{options.nodes} nodes x {options.ranks} ranks; {num_files} files are left")
        show(trace, nodes=options.nodes, ranks=options.ranks, paths=options.paths)


if __name__ == "__main__":
    main()
