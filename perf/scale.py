"""Launch path of huge runs: node 0's real agent with real ranks, and light members for the others.

Node 0's agent is the program that a cluster runs, with its forkserver, its ranks (which import no
torch) and a run's directory. The agents of the other nodes share two processes: they join by the
agents' own code, over real sockets, and answer every message, but have no ranks. So what is
measured of node 0 holds for a cluster; the times include the work of all the others on this
machine's few CPUs, and are upper bounds.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from commands import LIMIT_S, SCRIPTS, BenchmarkError, user_environment
from sidebyside import option_parser, print_machine

from hpcdist.job.load import Flag, load_job
from hpcdist.machine.process import descendants, send_signal
from hpcdist.runs.run import Run
from hpcdist.submission.plan import plan_run
from hpcdist.submission.submit import write_spec

_WORKERS = 2
_POLL_S = 0.005
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_AGENT = (
    "import sys, pathlib; from hpcdist.agent.agent import run_agent; "
    "from hpcdist.schedulers.base import JobPlace; "
    "sys.exit(run_agent(pathlib.Path(sys.argv[1]), JobPlace(node_rank=0, host='localhost')))"
)
COLUMNS = {
    "start_s": "last arrival to start (s)",
    "agent_start_cpu_s": "CPU of node 0 until then (s)",
    "ranks_s": "node 0's ranks stepping (s)",
    "known_s": "failure known everywhere (s)",
    "verdict_s": "failure to verdict (s)",
    "rest_cpu": "node 0 at rest (% of a CPU)",
    "rss_mb": "largest memory of node 0 (MB)",
    "descriptors": "descriptors of node 0",
    "received_kb": "node 0 sends, to each node (kB)",
    "sent_kb": "it receives, of each node (kB)",
    "files": "files of the run",
}


@dataclass
class Worker:
    """A process with the agents of many nodes."""

    process: subprocess.Popen[str]
    nodes: range

    def order(self, *words: object) -> None:
        assert self.process.stdin is not None
        print(*words, file=self.process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        answer: dict[str, Any] = json.loads(line or '{"error": "the members have ended"}')
        if "error" in answer:
            raise BenchmarkError(str(answer["error"]))
        return answer


def make_run(folder: Path, *, nodes: int, ranks: int, steps_s: float) -> Run:
    """A run as it is submitted, of more nodes than would be let run on one machine."""
    flags = {"resources.nodes": 2, "resources.gpus": ranks, "launch.device": "cpu"}
    loaded = load_job(
        SCRIPTS / "plain_steps.py",
        flags={key: Flag(name=key, value=value) for key, value in flags.items()},
        overrides=[f"launch.join_timeout_s={LIMIT_S:g}"],
        script_args=[str(folder), str(steps_s)],
    )
    run = Run.create(folder / "runs", loaded.job.name)
    write_spec(run, plan_run(loaded, scheduler="local"))
    spec = run.read_spec()
    assert spec is not None
    assert spec.plan is not None
    first, other = spec.plan.nodes
    spec.job["resources"]["nodes"] = nodes
    plan = msgspec.structs.replace(spec.plan, nodes=[first, *[other] * (nodes - 1)])
    run.write_spec(msgspec.structs.replace(spec, plan=plan))
    return run


@contextlib.contextmanager
def members(run: Run, *, nodes: int, ranks: int) -> Iterator[list[Worker]]:
    """Start the processes of all agents but node 0's."""
    share = -(-(nodes - 1) // _WORKERS)
    with contextlib.ExitStack() as started:
        workers = []
        for first in range(1, nodes, share):
            own = range(first, min(nodes, first + share))
            words = map(str, (SCRIPTS / "light_members.py", run.path, own[0], own[-1], ranks))
            process = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=user_environment(),
            )
            started.callback(end, process)
            workers.append(Worker(process, own))
        yield workers


@contextlib.contextmanager
def node_0(folder: Path, run: Run) -> Iterator[int]:
    """Start its agent; yields the pid, once others can join."""
    with (folder / "agent.log").open("wb") as log:
        command = [sys.executable, "-c", _AGENT, str(run.path)]
        agent = subprocess.Popen(command, env=user_environment(), stdout=log, stderr=log)
    try:
        wait_for(run.meeting_file.exists, "the agent of node 0 does not listen")
        yield agent.pid
    finally:
        end(agent)


def end(process: subprocess.Popen[Any]) -> None:
    for pid in [*descendants(process.pid), process.pid] if process.poll() is None else ():
        send_signal(pid, 9)
    process.wait()


def wait_for(condition: Any, what: str) -> float:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise BenchmarkError(f"{what} after {LIMIT_S:g} s")
        time.sleep(_POLL_S)
    return time.monotonic()


def cpu_s(pid: int) -> float:
    """CPU time of a process, without that of its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def status_kb(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    return 0


def measure(nodes: int, ranks: int, *, rest_s: float, how: str, late_s: float) -> dict[str, float]:
    """One run to its verdict, from which a rank fails, or an agent is lost, on the last node."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        run = make_run(folder, nodes=nodes, ranks=ranks, steps_s=10 * LIMIT_S)
        workers = stack.enter_context(members(run, nodes=nodes, ranks=ranks))
        if late_s:
            order(workers, "join")
            time.sleep(late_s)
        agent = stack.enter_context(node_0(folder, run))
        found: dict[str, float] = {}
        arrived_s, cpu_before_s = time.monotonic(), cpu_s(agent)
        joins = answers(workers) if late_s else ask(workers, "join")
        found["start_s"] = max(one["start_s"][1] for one in joins) - arrived_s
        found["agent_start_cpu_s"] = cpu_s(agent) - cpu_before_s
        steps = [folder / f"began-{rank}" for rank in range(ranks)]
        stepping_s = wait_for(lambda: all(map(Path.exists, steps)), "ranks do not step")
        found["ranks_s"] = stepping_s - arrived_s
        before_s, at_s = cpu_s(agent), time.monotonic()
        time.sleep(rest_s)
        found["rest_cpu"] = 100 * (cpu_s(agent) - before_s) / (time.monotonic() - at_s)
        found["descriptors"] = len(os.listdir(f"/proc/{agent}/fd"))
        ends = ask(workers, how, workers[-1].nodes[-1])
        failed_s = ends[-1]["begin_s"]
        found["known_s"] = max(one["end_s"][1] for one in ends) - failed_s
        found["rss_mb"] = status_kb(agent, "VmHWM") / 1000
        found["verdict_s"] = wait_for(run.verdict_file.exists, "no verdict") - failed_s
        if run.read_verdict() is None:
            raise BenchmarkError("the verdict cannot be read")
        ask(workers, "wait")
        amounts = ask(workers, "bytes")
        for key in ("received", "sent"):
            found[f"{key}_kb"] = sum(one[key] for one in amounts) / (nodes - 1) / 1000
        found["files"] = sum(1 for path in run.path.rglob("*") if path.is_file())
        return found


def order(workers: Sequence[Worker], *words: object) -> None:
    for worker in workers:
        worker.order(*words)


def answers(workers: Sequence[Worker]) -> list[dict[str, Any]]:
    return [worker.answer() for worker in workers]


def ask(workers: Sequence[Worker], *words: object) -> list[dict[str, Any]]:
    order(workers, *words)
    return answers(workers)


def growth(sizes: Sequence[int], values: Sequence[float]) -> tuple[float, float]:
    """Return (a, b) of the line a + b * nodes that is nearest to the values."""
    if len(set(sizes)) < 2:
        return values[0], 0.0
    slope, intercept = statistics.linear_regression(sizes, values)
    return intercept, slope


def show(sizes: Sequence[int], found: Mapping[int, Mapping[str, float]]) -> None:
    """Print the middle of each figure by the number of nodes, and the line that is nearest."""
    print(f"\n{'nodes':<36}" + "".join(f"{size:>9,}" for size in sizes) + "   a + b x nodes")
    for column, title in COLUMNS.items():
        values = [found[size][column] for size in sizes]
        begin, slope = growth(sizes, values)
        row = "".join(f"{value:>9.4g}" for value in values)
        print(f"{title:<36}{row}   {begin:.3g} + {slope:.3g} x nodes", flush=True)


def main() -> None:
    parser = option_parser(__doc__, pairs=3)
    sizes = [16, 64, 256, 1024]
    parser.add_argument("--nodes", type=int, nargs="+", default=sizes, help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=8, help="per node; default: %(default)s")
    parser.add_argument("--rest", type=float, default=10, help="seconds at rest; %(default)s")
    parser.add_argument("--how", choices=("fail", "lose"), default="fail", help="%(default)s")
    late = "seconds for which the others wait for node 0; without, they come after it"
    parser.add_argument("--late", type=float, default=0, help=late)
    options = parser.parse_args()
    print_machine()
    found = {}
    for nodes in options.nodes:
        runs = [
            measure(
                nodes,
                options.ranks,
                rest_s=options.rest,
                how=options.how,
                late_s=options.late,
            )
            for _ in range(options.pairs)
        ]
        found[nodes] = {key: statistics.median(one[key] for one in runs) for key in COLUMNS}
    print(f"\n{options.ranks} ranks per node; the middle of {options.pairs}")
    show(options.nodes, found)


if __name__ == "__main__":
    main()
