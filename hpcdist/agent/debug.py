"""Debug mode: one rank in the calling process, with its terminal, so that breakpoints work."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import BinaryIO

import msgspec

from hpcdist.agent.forkserver import fork_store
from hpcdist.agent.node import (
    CannotLaunchError,
    NodeFacts,
    OwnNode,
    RankMeeting,
    rank_orders,
)
from hpcdist.agent.outcome import failure
from hpcdist.agent.outcome.ends import rank_end
from hpcdist.base import files
from hpcdist.base.errors import JobError
from hpcdist.cluster.schedulers import LOCAL
from hpcdist.job.spec import JobSpec
from hpcdist.machine.ports import NoFreePortError, listen
from hpcdist.machine.process import identify
from hpcdist.rank.board import ProgressBoard
from hpcdist.rank.context import RankOrder
from hpcdist.runs.run import Run
from hpcdist.runs.spec import Submission
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.base import JobPlace, Plan
from hpcdist.workloads.rank_process import make_context, run_workload, take_place

_ADDRESS = "127.0.0.1"


def begin(run: Run, job: JobSpec, plan: Plan) -> Callable[[], Verdict]:
    """Make this process rank 0 of 1 as the local scheduler planned it; return what runs it.

    Raises OSError where the run directory cannot be written, and JobError where another run took
    the GPU or the ports in the meantime.
    """
    node = OwnNode(job, plan.launch, JobPlace(node_rank=0, host=socket.gethostname()))
    try:
        claims = node.claim_gpus(lambda line: print(line, file=sys.stderr))
    except CannotLaunchError as error:
        raise JobError(str(error)) from None
    # `hpcdist status` and `cancel` find this process as if it were an agent.
    process = identify(os.getpid())
    own = NodeFacts(node=0, host=node.place.host, address=_ADDRESS, process=process)
    files.write_json(run.agent_file(0), msgspec.to_builtins(own))
    submission = Submission(
        scheduler=LOCAL, job_id=str(os.getpid()), submitted_s=time.time(), process=process
    )
    run.write_submission(submission)
    try:
        listener = listen(_ADDRESS, job.launch.port_range)
    except NoFreePortError as error:
        raise JobError(str(error), hint="name a wider range with launch.port_range") from None
    meeting = RankMeeting(
        attempt=run.claim_attempt(),
        restart_count=0,
        master_addr=_ADDRESS,
        master_port=listener.getsockname()[1],
        device=plan.launch.device,
        backend=plan.launch.backend,
    )
    gpus = node.plan_of_node.gpus or []
    (order,) = rank_orders(run, node, interface=plan.launch.interface, gpus=gpus, meeting=meeting)
    order.environment["TORCHELASTIC_MAX_RESTARTS"] = "0"
    os.environ.update(node.environment(os.environ))
    # The store that torch opens by itself listens on all addresses, and asks nobody for a password.
    fork_store(listener, _ADDRESS)
    take_place(order)
    # `hpcdist cancel` knows the run's processes by what they hold open.
    return partial(_run, run, job, order, [*claims, run.agent_file(0).open("rb")])


def _run(
    run: Run,
    job: JobSpec,
    order: RankOrder,
    _held: list[BinaryIO],  # open until the end: GPUs are claimed by it
) -> Verdict:
    """Run the rank to its end, write the verdict, and return it."""
    board = ProgressBoard(1)
    try:
        context = make_context(order, run, job, board.slot(0), has_agent=False)
        code = run_workload(context, run.error_file(0, order.attempt))
        end = rank_end(
            run,
            job,
            order,
            board.read(0),
            status=code << 8,  # as waitpid would give it
            time_s=time.time(),
            unwritten=board.pipe(0).unwritten(),
        )
        is_interrupted = end.report.exception == KeyboardInterrupt.__name__
    except KeyboardInterrupt:  # before or after the workload
        is_interrupted = True
    verdict = failure.cancelled("SIGINT") if is_interrupted else failure.decide([end])
    verdict = failure.numbered(verdict, attempt=order.attempt, time_s=time.time())
    run.write_verdict(verdict)
    return verdict
