"""The ends of an attempt or a run: how it began (begin.json) and why it ended (verdict.json)."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hpcdist.base.errors import EXIT_FAILED, EXIT_INTERRUPTED

UnixTime = Annotated[float, Meta(ge=0, le=1e12)]
"""A time that the figures made of it can be computed with: a damaged file may hold any number."""
State = Literal["pending", "running", "unknown", "done", "failed", "cancelled", "preempted", "lost"]
"""Unknown: the scheduler does not answer. Lost: it does not know a run that left no verdict."""
Kind = Literal[
    "done",
    "exception",
    "exit",
    "signal",
    "out_of_memory",
    "hang",
    "agent_lost",
    "launch",
    "cancelled",
    "time_limit",
    "preempted",
    "no_progress",
]
"""In words: docs/terms/exit-codes.md."""


class Beginning(Struct, frozen=True, kw_only=True):
    """The beginning of an attempt."""

    life: int
    """Number of the scheduler's starts of the job before."""
    progress: int = 0
    """Progress of the run until then."""
    leader: int = 0
    """The node whose agent leads it: another than the first, where that is lost."""
    time_s: UnixTime | None = None
    """Unix time."""


class Hang(Struct, frozen=True, kw_only=True):
    """What is said of an attempt whose ranks do not work any more, as it seems (hang.json)."""

    attempt: int
    message: str
    """Where the ranks are, and for whom they wait."""
    rank: int | None = None
    """The rank that the others wait for, as far as that is known."""
    time_s: UnixTime
    """Unix time at which it was said."""
    recovered_s: UnixTime | None = None
    """Unix time at which a rank worked again; None: it still hangs."""


class ErrorReport(Struct, frozen=True, kw_only=True):
    """The report that a rank leaves on the exception that ends it, or on sys.exit with a text; its
    agent makes one of what else tells why it ended."""

    exception: str | None
    """Type, with its module where it is not a builtin; None: none was raised."""
    text: str
    """Message of the exception or of sys.exit; of a rank that aborted, the end of its log."""
    traceback: str | None
    time_s: UnixTime
    lack: str | None = None
    """The resource that ran out, in words: a full disk, or memory of a process that loaded its
    data."""
    out_of_memory: bool = False
    """The kernel or the agent killed it, or a process that loaded data for it, for its memory."""


NO_REPORT = ErrorReport(exception=None, text="", traceback=None, time_s=0.0)


class RankEnd(Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The end of one rank."""

    rank: int
    local_rank: int
    node: int
    """Node rank."""
    host: str
    time_s: UnixTime
    """Unix time of the end, in the clock of node 0."""
    exit_code: int | None = None
    """None where a signal ended it."""
    signal: str | None = None
    """SIGKILL and its like."""
    report: ErrorReport = NO_REPORT
    step: int | None = None
    """Last finished step; None where none was recorded."""
    finished: bool = False
    """The workload returned by itself; of the user's own code, it left with 0, however it did."""
    left_early: bool = False
    """It left with 0 before its workload returned: by os._exit, or as another program."""
    teardown: str | None = None
    """Signal that ended it after its workload, as it took down the rest; SIGKILL: it hung."""
    stopped: bool = False
    """It ended after the order to end the attempt: a consequence of what others did."""
    outlasted: bool = False
    """It handled the signal by which it was asked to end, had not ended in time, and was killed."""
    elastic: bool = False
    """Its program, of the user's own, says that it can go on in a world of another size."""
    handles_sigterm: bool = False
    """Its program, of the user's own, had a handler for SIGTERM, and knew no other way to stop."""


class Verdict(Struct, frozen=True, kw_only=True):
    """The reason why a run ended; the sentence for people is `message`."""

    kind: Kind
    state: State = "failed"
    message: str
    exit_code_of_run: int = EXIT_FAILED
    """Exit code of `hpcdist submit --wait`."""
    first: RankEnd | None = None
    """The end of the rank that failed first; None where no rank is to blame."""
    node: int | None = None
    """Node whose agent is to blame, and its host."""
    host: str | None = None
    exit_code: int | None = None
    """Exit code of all ranks: 0, or 75 where they stopped in good order."""
    signal: str | None = None
    """Signal that gave notice of a stop, or ended the run."""
    step: int | None = None
    """Last finished step of a run that was stopped."""
    victims: list[int] = []
    """Ranks that ended only because the first one did."""
    attempt: int = 0
    restarts: int = 0
    time_s: UnixTime | None = None
    """Unix time of the first failure, or of the end."""
    log: str | None = None
    """Log of the rank that failed first, relative to the run directory."""
    remark: str | None = None
    """A fault that did not fail the run."""
    try_elsewhere: bool = False
    """A host is to blame on which nothing could be started: the next start may do without it."""
    num_nodes_left: int | None = None
    """Nodes with which the next attempt went on at once, where others were lost."""
    left_out: dict[str, str] = {}
    """Host that failed the preflight -> how: the next start leaves it out."""
    resumed: bool = False
    """`hpcdist resume` started the next attempt."""

    @property
    def blames_ranks(self) -> bool:
        """The ranks ended the attempt: not a node, a start that failed, or the time limit."""
        return self.kind not in {"agent_lost", "launch", "time_limit"}

    @property
    def sentence(self) -> str:
        """Return the state and the message; "cancelled (SIGINT)" is both already."""
        has_state = self.message.startswith(self.state)
        return self.message if has_state else f"{self.state}: {self.message}"


def cancelled_verdict(message: str = "cancelled", **fields: Any) -> Verdict:
    """Return the verdict on a run that its user ended; without a message, no agent wrote one."""
    code, fields = EXIT_INTERRUPTED, {"time_s": time.time()} | fields
    return Verdict(
        kind="cancelled", state="cancelled", message=message, exit_code_of_run=code, **fields
    )
