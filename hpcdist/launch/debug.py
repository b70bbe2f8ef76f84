"""Debug mode: one rank in the calling process, with its terminal, so that breakpoints work."""

from __future__ import annotations

import os
import socket
import time

import msgspec

from hpcdist import files
from hpcdist.events import EventWriter
from hpcdist.launch import failure
from hpcdist.launch.cpus import usable_cpus
from hpcdist.launch.ends import read_error_report
from hpcdist.launch.node import Meeting, RankOrder, rank_environment
from hpcdist.launch.ports import listen
from hpcdist.launch.process import identify
from hpcdist.launch.rank_process import make_context, run_workload
from hpcdist.progress import ProgressBoard
from hpcdist.run import Run
from hpcdist.spec import JobSpec
from hpcdist.verdict import RankEnd, Verdict

_ADDRESS = "127.0.0.1"


def run_here(run: Run, job: JobSpec) -> Verdict:
    """Run rank 0 of 1 in this process, write the verdict, and return it."""
    _announce(run)
    attempt = run.claim_attempt()
    order = _order(run, job, attempt)
    os.environ.update(order.environment)
    board = ProgressBoard(1)
    events = EventWriter(run.event_file(0, attempt))
    error_file = run.error_file(0, attempt)
    code = run_workload(make_context(order, run, job, events, board.slot(0)), error_file)
    report = read_error_report(error_file)
    progress = board.read(0)
    end = RankEnd(
        rank=0,
        local_rank=0,
        node=0,
        host=order.host,
        time_s=time.time(),
        exit_code=code,
        exception=report.exception if report else None,
        message=report.text if report else None,
        traceback=report.traceback if report else None,
        step=progress.step,
        finished=progress.finished,
    )
    verdict = failure.decide([end], attempt=attempt, restarts=0)
    run.write_verdict(verdict)
    return verdict


def _announce(run: Run) -> None:
    """Let `hpcdist status` and `cancel` find this process, as if it were an agent."""
    process = msgspec.to_builtins(identify(os.getpid()))
    host = socket.gethostname()
    files.write_json(
        run.agent_file(0), {"node": 0, "host": host, "address": _ADDRESS, "process": process}
    )
    files.write_json(
        run.submission_file,
        {
            "scheduler": "local",
            "job_id": str(os.getpid()),
            "submitted_s": time.time(),
            "process": process,
        },
    )


def _order(run: Run, job: JobSpec, attempt: int) -> RankOrder:
    # Rank 0 of 1 serves its own store, so the port is only found here, not held.
    with listen(_ADDRESS, job.launch.port_range) as listener:
        port = listener.getsockname()[1]
    meeting = Meeting(attempt=attempt, restart_count=0, master_addr=_ADDRESS, master_port=port)
    environment = rank_environment(
        node_rank=0,
        num_nodes=1,
        local_rank=0,
        ranks_per_node=1,
        meeting=meeting,
        run_id=run.id,
        max_restarts=0,
        interface="lo",
    )
    del environment["TORCHELASTIC_USE_AGENT_STORE"]
    cpus = usable_cpus()
    return RankOrder(
        run_path=str(run.path),
        rank=0,
        local_rank=0,
        world_size=1,
        local_world_size=1,
        node_rank=0,
        num_nodes=1,
        attempt=attempt,
        restart_count=0,
        host=socket.gethostname(),
        device="cpu" if job.launch.device == "cpu" else _device(),
        backend="gloo",
        cpus=cpus,
        num_threads=len(cpus),
        environment=environment,
    )


def _device() -> str:
    from hpcdist.gpus import list_gpus

    return "cuda:0" if list_gpus() else "cpu"
