"""The coordinator by itself: messages and time in, messages and one verdict out."""

import signal
from dataclasses import dataclass, field
from functools import partial

import pytest
from rank_ends import rank_end

from hpcdist.agent import messages
from hpcdist.agent.coordinator import (
    CAUSE_S,
    REJOIN_S,
    SETTLE_S,
    STOP_TOGETHER_S,
    ClaimAttempt,
    Claimed,
    Coordinator,
    Heard,
    Legacy,
    Lost,
    Now,
    Send,
)
from hpcdist.agent.messages import HangReport
from hpcdist.agent.node import NodeFacts, OwnNode, RankMeeting
from hpcdist.agent.outcome.hang import hang_verdict
from hpcdist.agent.preflight import LIMIT_S, Figures
from hpcdist.job.spec import Launch, Resources, ScriptJob, TrainJob
from hpcdist.runs.spec import LaunchPlan, NodePlan
from hpcdist.runs.verdict import Verdict
from hpcdist.schedulers.base import JobPlace
from hpcdist.schedulers.notes import Note


def end(rank, node=0, **fields):
    return rank_end(
        rank, local_rank=0, node=node, host=f"host{node}", **{"time_s": 100.0 + rank} | fields
    )


def well(rank, node=0):
    return end(rank, node, exit_code=0, finished=True)


def killed(rank, node=0, **fields):
    return end(rank, node, signal="SIGKILL", **fields)


def victim(rank, node=0, **fields):
    lost_peer = {"exception": "RuntimeError", "message": "[gloo] Connection closed by peer"}
    return end(rank, node, exit_code=1, **lost_peer, **fields)


def stop(rank, node=0, **fields):
    return end(rank, node, exit_code=75, step=12, **fields)


def report(rank, **fields):
    ends = {key: fields.pop(key) for key in ("step",) if key in fields}
    return HangReport(end=end(rank, node=rank, **ends), **{"silent_s": 5.0} | fields)


@dataclass
class Cluster:
    """A coordinator whose agents are the test; `nodes` of `ranks` each."""

    nodes: int = 2
    ranks: int = 1
    restarts: int = 0
    now: float = 1000.0
    sent: list = field(default_factory=list)
    verdicts: list = field(default_factory=list)
    failed_attempts: list = field(default_factory=list)
    attempts: int = 0
    stores: int = 0
    is_overtaken: bool = False
    min_nodes: int | None = None
    regrow_after: float | None = None
    limit_min: float | None = None
    leader: int = 0
    """Another than 0 takes over from it, after attempt 0."""
    preflight: bool = False
    trains: bool = False

    def __post_init__(self):
        launch = {"grace_s": 0.5, "join_timeout_s": 30, "hang_timeout_s": 60.0, "warning_s": 60.0}
        of_script = partial(ScriptJob, workload="script", script="x.py")
        kind = TrainJob if self.trains else of_script
        job = kind(
            name="x",
            launch=Launch(
                max_restarts=self.restarts,
                min_nodes=self.min_nodes,
                regrow_after=self.regrow_after,
                preflight=self.preflight,
                **launch,
            ),
            resources=Resources(gpus=self.ranks, time_limit_min=self.limit_min),
        )
        plan = LaunchPlan(
            nodes=[NodePlan()] * self.nodes, device="auto", backend="auto", enforces_limits=True
        )
        place = JobPlace(node_rank=self.leader, host=f"host{self.leader}")
        node = OwnNode(job, plan, place, now_s=self.now)
        legacy = None
        if self.leader:
            nodes, self.attempts = tuple(range(self.nodes)), 1
            meeting = RankMeeting(master_addr="10.0.0.9", device="cpu", nodes=nodes)
            failed = Verdict(kind="agent_lost", message="node 0 was lost", node=0, host="host0")
            legacy = Legacy(failed, meeting, [*nodes[1:]], num_losses=0)
        self.coordinator = Coordinator(node, 0.2, Now(self.now, self.now), legacy)

    def decide(self, event):
        """Do what the coordinator wants, as the leader would."""
        for action in self.coordinator.decide(event, Now(self.now, self.now)):
            match action:
                case Send():
                    if isinstance(action.message, messages.Begin):
                        meeting = action.message.meeting
                        assert meeting.master_addr == meeting.bind_to == "10.0.0.1"
                        self.stores += 1
                    self.sent += [(node, action.message) for node in action.nodes]
                case ClaimAttempt():
                    self.decide(self.claim(action.failed))
                case Verdict():
                    self.verdicts.append(action)

    def claim(self, failed):
        if failed is not None:
            if self.is_overtaken:
                return Claimed(None, failed)
            self.failed_attempts.append(failed)
        self.attempts += 1
        return Claimed(self.attempts - 1, failed)

    def received(self, node):
        return [message.__struct_config__.tag for to, message in self.sent if to == node]

    @property
    def verdict(self):
        (verdict,) = self.verdicts
        return verdict

    # The steps of a scenario.

    def tell(self, node, message):
        self.decide(Heard(node, message))

    def check(self, node, product_s=1.0):
        nodes = self.coordinator.attempt.nodes
        place, last = nodes.index(node), len(nodes)
        sums_s = {(place + 1) % last: 1.0, (place - 1) % last: 1.0}
        figures = Figures(product_s=product_s, sums_s=sums_s)
        number = self.coordinator.attempt.number
        self.tell(node, messages.Checked(attempt=number, figures=figures))

    def open_store(self):
        self.tell(self.leader, messages.StoreOpened(port=20001))

    def lose(self, node):
        self.decide(Lost(node, "connection reset"))

    def join(self, *nodes, **facts):
        for node in nodes:
            known = {"num_nodes": self.nodes, "device": "cpu", "master_addr": "10.0.0.1"} | facts
            facts_of_node = NodeFacts(node=node, host=f"host{node}", **known)
            self.tell(node, messages.Join(facts=facts_of_node))

    def run(self):
        self.join(*range(self.nodes))
        self.open_store()

    def end(self, *ends, attempt=None):
        for one in ends:
            number = self.coordinator.attempt.number if attempt is None else attempt
            self.tell(one.node, messages.Ended(attempt=number, end=one))

    def gone(self, *nodes, attempt=None):
        """The agents of these nodes, or of both, have no ranks any more."""
        for node in nodes or (0, 1):
            number = self.coordinator.attempt.number if attempt is None else attempt
            self.tell(node, messages.Gone(attempt=number))

    def signalled(self, number, node=0):
        self.tell(node, messages.Signalled(signal=number))

    def cancel(self, number="SIGTERM"):
        self.tell(self.leader, messages.Signalled(signal=number, is_cancel=True))

    def be_quiet(self, attempt=0):
        for node in range(self.nodes):
            self.tell(node, messages.Quiet(attempt=attempt, quiet_s=60.0))

    def stacks(self, node, *reports):
        self.tell(node, messages.Stacks(attempt=0, reports=list(reports)))

    def note(self, node, said, **fields):
        self.decide(Note(node=node, host=f"host{node}", said=said, **fields))

    def has(self, *nodes, restarts):
        """The ranks of these nodes run, and know that the others do not."""
        self.open_store()
        starts = [(to, message) for to, message in self.sent if isinstance(message, messages.Start)]
        number = self.coordinator.attempt.number
        own = [(to, one.meeting) for to, one in starts if one.meeting.attempt == number]
        assert [to for to, _ in own] == [*nodes]
        assert {meeting.nodes for _, meeting in own} == {nodes}
        assert {meeting.restart_count for _, meeting in own} == {restarts}

    def reach(self, node, boundary):
        self.tell(node, messages.Reached(attempt=0, boundary=boundary))

    def wait(self, seconds):
        self.now += seconds
        self.decide(None)

    def is_in(self, stage):
        assert self.coordinator.stage.value == stage
        assert bool(self.verdicts) == (stage == "finished")

    def has_received(self, node, *kinds):
        assert self.received(node) == [*kinds]


class Steps:
    """`do.wait(1)` is the step of a scenario that calls the method."""

    def __getattr__(self, name):
        return lambda *arguments, **options: (name, arguments, options)


do = Steps()


def play(*steps, **options):
    cluster = Cluster(**options)
    for name, arguments, step_options in steps:
        getattr(cluster, name)(*arguments, **step_options)
    return cluster


RUN, GONE = do.run(), do.gone()
SMALLER = {"nodes": 4, "ranks": 2, "min_nodes": 2}
CHECKED = {"nodes": 3, "min_nodes": 2, "preflight": True}


def ends_on(*nodes, **fields):
    """The ranks of these nodes end by order; their program can go on in another number."""
    ranks = [2 * place + local for place in range(len(nodes)) for local in range(2)]
    fields = {"stopped": True, "elastic": True} | fields
    return do.end(*(killed(rank, nodes[rank // 2], **fields) for rank in ranks))


WARNED = [RUN, do.signalled("SIGUSR2")]
FAILED = end(0, exit_code=1, exception="ValueError", message="x")
UNREACHED = "(host host1): no agent could be started there: no route"
STUCK = report(0, is_waiting=True, where="train.py:3 (step)")
ASLEEP = report(1, where="train.py:9 (load)")
BOTH_WELL, BOTH_STOP = do.end(well(0), well(1, 1)), do.end(stop(0), stop(1, 1))

SLOW = "a matrix product took 5.0 times as long as on the typical node (5e+03 and 1e+03 ms)"

SCENARIOS = {
    # name: (what the run is like, what happens, what the verdict says)
    "an agent that ends its ranks slowly is not lost": (
        {"ranks": 3, "restarts": 1},
        [
            *(RUN, do.end(FAILED), do.wait(SETTLE_S), do.end(killed(1), killed(2)), do.gone(0)),
            # closing their files takes longer than the whole time for the end
            *(step for rank in (3, 4, 5) for step in (do.wait(4.0), do.end(killed(rank, 1)))),
            *(do.wait(4.0), do.gone(1), do.open_store(), do.is_in("running")),
            *(do.end(*(well(rank, rank // 3) for rank in range(6))), GONE),
        ],
        {"kind": "done", "restarts": 1},
    ),
    "nodes that do not join in time are named": (
        {"nodes": 4},
        [
            *(do.join(0, 2), do.wait(29), do.is_in("joining"), do.wait(2), do.gone(0, 2)),
            *(do.join(3), do.has_received(3, "close"), do.has_received(1)),
        ],
        {"kind": "launch", "says": "nodes 1 and 3 did not join within 30 s"},
    ),
    "nodes are checked once, before the first ranks start": (
        {"preflight": True, "restarts": 1},
        [
            *(RUN, do.is_in("starting"), do.check(0), do.is_in("starting"), do.check(1)),
            *(do.is_in("running"), do.wait(LIMIT_S), do.end(FAILED), do.wait(SETTLE_S), GONE),
            *(do.is_in("starting"), do.open_store(), do.is_in("running"), BOTH_WELL, GONE),
        ],
        {"kind": "done", "attempts": 2},
    ),
    "a node that fails the preflight is to be left out": (
        {"preflight": True, "restarts": 1},
        [RUN, do.check(0), do.check(1, 5.0), GONE],
        {"left_out": {"host1": SLOW}, "host": "host1", "try_elsewhere": True, "attempts": 1},
    ),
    "a node that never answers fails the preflight": (
        {"preflight": True},
        [RUN, do.check(0), do.wait(LIMIT_S), GONE],
        {"host": "host1", "says": "failed the preflight: it did not answer within 120 s"},
    ),
    "a training goes on without a node that fails the preflight": (
        CHECKED | {"trains": True},
        [
            *(RUN, do.check(0), do.check(1, 5.0), do.check(2), do.is_in("ending")),
            *(do.has_received(1, "begin", "start", "close"), do.lose(1), do.gone(0, 2)),
            *(do.has(0, 2, restarts=1), do.is_in("running"), do.end(well(0), well(1, 2))),
            do.gone(0, 2),
        ],
        {"kind": "done", "attempts": 2, "says": "it went on with 2 of 3 nodes since"},
    ),
    "a training does not go on without its first node that fails the preflight": (
        CHECKED | {"trains": True},
        [RUN, do.check(0, 5.0), do.check(1), do.check(2), do.gone(0, 1, 2)],
        {"left_out": {"host0": SLOW}, "try_elsewhere": True, "attempts": 1},
    ),
    "a script has not said before the preflight that it can go on with fewer nodes": (
        CHECKED,
        [RUN, do.check(0), do.check(1, 5.0), do.check(2), do.gone(0, 1, 2)],
        {"left_out": {"host1": SLOW}, "try_elsewhere": True, "attempts": 1},
    ),
    "a node that is lost during the preflight is left out and the others are checked anew": (
        CHECKED | {"trains": True},
        [
            *(RUN, do.check(0), do.lose(1), do.gone(0, 2), do.open_store(), do.check(0)),
            *(do.is_in("starting"), do.check(2), do.is_in("running")),
            *(do.end(well(0), well(1, 2)), do.gone(0, 2)),
        ],
        {"kind": "done", "attempts": 2},
    ),
    "failures of one moment are heard before the ranks are ended": (
        {"ranks": 2},
        [
            *(RUN, do.end(victim(0, time_s=100.0)), do.is_in("settling"), do.wait(SETTLE_S / 2)),
            *(do.end(killed(3, 1, time_s=100.01)), do.wait(SETTLE_S), do.is_in("ending")),
            *(do.end(killed(1, stopped=True), killed(2, 1, stopped=True)), GONE),
        ],
        {"first": 3, "victims": [0, 1, 2]},
    ),
    "consequences wait longer for their cause": (
        {"ranks": 2},
        [
            *(RUN, do.end(victim(0)), do.wait(SETTLE_S), do.is_in("settling")),
            *(do.wait(CAUSE_S - SETTLE_S), do.is_in("ending"), GONE),
        ],
        {"first": 0},
    ),
    "nothing is waited for once all have ended": (
        {"ranks": 2},
        [RUN, do.end(victim(0), killed(3, 1), victim(1), victim(2, 1)), do.is_in("ending"), GONE],
        {"first": 3},
    ),
    "an agent that is lost is the cause of failures that are only victims": (
        {"restarts": 3},
        [RUN, do.end(victim(0)), do.wait(1), do.lose(1), do.gone(0)],
        {"kind": "agent_lost", "says": "node 1 (host host1) was lost: connection reset"},
    ),
    "an agent that is lost afterwards does not hide the failure": (
        {},
        [RUN, do.end(killed(0)), do.wait(1), do.lose(1), do.gone(0)],
        {"kind": "signal", "first": 0},
    ),
    # as where srun has all processes of a step killed on a healthy node
    "an agent whose ranks were killed just before it is the cause and not they": (
        {"ranks": 2},
        [
            *(RUN, do.end(killed(2, 1), victim(0)), do.wait(1), do.lose(1)),
            *(do.end(victim(1)), do.gone(0)),
        ],
        {"kind": "agent_lost", "node": 1},
    ),
    "an agent that is lost after a rank had no memory is not the cause": (
        {"ranks": 2},
        [RUN, do.end(killed(2, 1, out_of_memory=True)), do.wait(1), do.lose(1), do.gone(0)],
        {"kind": "out_of_memory"},
    ),
    "an agent that is lost after all ended well does not spoil the run": (
        {},
        [RUN, BOTH_WELL, do.lose(1), do.gone(0)],
        {"kind": "done"},
    ),
    "an agent that does not end its ranks in time is given up": (
        {},
        [
            *(RUN, do.end(killed(0)), do.wait(1), do.gone(0), do.is_in("ending"), do.wait(10)),
            do.has_received(1, "begin", "start", "end"),
        ],
        {"kind": "signal", "first": 0},
    ),
    "messages of an old attempt do not count": (
        {"restarts": 1},
        [
            *(RUN, do.end(killed(0)), do.wait(1), GONE, do.is_in("starting"), do.open_store()),
            *(do.end(killed(1, 1), attempt=0), do.gone(attempt=0), do.be_quiet(attempt=0)),
            *(do.is_in("running"), BOTH_WELL, GONE),
            do.has_received(0, *("begin", "start", "end"), *("begin", "start", "end"), "close"),
        ],
        {"kind": "done", "restarts": 1, "attempt": 1},
    ),
    "an attempt that was overtaken does not start again": (
        {"restarts": 1, "is_overtaken": True},
        [RUN, do.end(killed(0)), do.wait(1), GONE, do.is_in("finished")],
        {"attempt": 0, "attempts": 1},
    ),
    "a host that is lost before its agent has joined ends the run with its name": (
        {},
        [
            *(do.join(0), do.note(0, "a node that is there"), do.is_in("joining")),
            *(do.note(1, "no route", is_host_lost=True), do.gone(0)),
        ],
        {"kind": "launch", "try_elsewhere": True, "says": UNREACHED},
    ),
    "nodes that do not fit together end the run before any rank starts": (
        {},
        [do.join(0), do.join(1, num_nodes=5), GONE],
        {"kind": "launch", "says": "node 1 (host host1) belongs to a job of 5 nodes", "stores": 0},
    ),
    # Nodes that are lost while enough are left
    "a lost node ends the ranks of the others which start again without it": (
        SMALLER,
        [
            *(RUN, do.lose(2), do.is_in("ending"), ends_on(0, 1, 3), do.gone(0, 1, 3)),
            *(do.has(0, 1, 3, restarts=1), do.is_in("running")),
            *(do.end(*(well(rank, (0, 1, 3)[rank // 2]) for rank in range(6))), do.gone(0, 1, 3)),
        ],
        {"kind": "done", "restarts": 1, "says": "went on with 3 of 4 nodes since 00:16"},
    ),
    "nodes are lost one after the other until too few are left": (
        SMALLER,
        [
            *(RUN, do.lose(2), do.lose(1), ends_on(0, 3), do.gone(0, 3), do.has(0, 3, restarts=1)),
            *(do.lose(3), do.end(killed(0, stopped=True), killed(1, stopped=True)), do.gone(0)),
        ],
        {"kind": "agent_lost", "node": 3, "attempts": 2, "says": "went on with 2 of 4 nodes since"},
    ),
    "a node that is lost while the others end their ranks is left out too": (
        SMALLER,
        [
            *(RUN, do.lose(2), ends_on(0, 1), do.gone(0, 1), do.is_in("ending"), do.lose(3)),
            *(do.has(0, 1, restarts=1), do.cancel(), do.gone(0, 1)),
        ],
        {"kind": "cancelled", "attempts": 2},
    ),
    "a node that does not end its ranks is told to leave and not heard any more": (
        SMALLER,
        [
            *(RUN, do.lose(2), ends_on(0, 1), do.gone(0, 1), do.is_in("ending"), do.wait(10)),
            *(do.has(0, 1, restarts=1), do.has_received(3, "begin", "start", "end", "close")),
            *(do.tell(3, messages.Failed(sentence="no memory")), do.signalled("SIGTERM", 3)),
            *(do.is_in("running"), do.end(*(well(rank, rank // 2) for rank in range(4)))),
            do.gone(0, 1),
        ],
        {"kind": "done", "attempts": 2},
    ),
    "a loss takes none of the restarts after failures": (
        SMALLER | {"restarts": 1},
        [
            *(RUN, do.lose(3), ends_on(0, 1, 2), do.gone(0, 1, 2), do.has(0, 1, 2, restarts=1)),
            *(do.end(end(1, exit_code=3)), do.wait(SETTLE_S), do.gone(0, 1, 2)),
            *(do.has(0, 1, 2, restarts=2), do.end(end(1, exit_code=3)), do.wait(SETTLE_S)),
            do.gone(0, 1, 2),
        ],
        {"kind": "exit", "restarts": 2, "attempts": 3},
    ),
    "a program that has not said that it can go on in another number does not": (
        SMALLER,
        [RUN, do.lose(2), ends_on(0, 1, 3, elastic=False), do.gone(0, 1, 3)],
        {"kind": "agent_lost", "attempts": 1},
    ),
    "a node that is lost before the first attempt ends the run": (
        SMALLER,
        [do.join(0, 1, 2), do.lose(2), do.gone(0, 1)],
        {"kind": "agent_lost", "attempts": 0},
    ),
    "a run that has had fewer nodes for long enough stops to grow again": (
        SMALLER | {"regrow_after": 3.0},
        [
            *(RUN, do.wait(600), do.lose(2), ends_on(0, 1, 3), do.gone(0, 1, 3)),
            *(do.has(0, 1, 3, restarts=1), do.wait(179), do.lose(3), ends_on(0, 1), do.gone(0, 1)),
            *(do.has(0, 1, restarts=2), do.has_received(1, *(("begin", "start", "end") * 3)[:-1])),
            *(do.wait(1), do.end(*(stop(rank, rank // 2) for rank in range(4))), do.gone(0, 1)),
        ],
        {
            "kind": "preempted",
            "exit_code_of_run": 75,
            "says": "stopped at step 12 to start again with all nodes; it went on with 2 of 4",
        },
    ),
    # The leader is lost, and node 1 takes over
    "the next node leads all that are left": (
        SMALLER | {"leader": 1},
        [
            *(do.join(1, 3), do.is_in("joining"), do.join(2), do.has(1, 2, 3, restarts=1)),
            *(do.end(*(well(rank, 1 + rank // 2) for rank in range(6))), do.gone(1, 2, 3)),
        ],
        {"kind": "done", "attempts": 2, "says": "went on with 3 of 4 nodes since 00:16"},
    ),
    "a new leader goes on without nodes that do not come": (
        SMALLER | {"leader": 1},
        [
            *(do.join(1, 3), do.wait(REJOIN_S + 0.5), do.has(1, 3, restarts=1), do.join(2)),
            *(do.has_received(2, "close", "close"), do.lose(3), do.gone(1)),
        ],
        {"kind": "agent_lost", "node": 3, "attempts": 2},
    ),
    "a new leader to whom too few come ends the attempt that it has claimed": (
        SMALLER | {"leader": 1, "min_nodes": 3},
        [do.join(1, 3), do.wait(REJOIN_S + 0.5), do.has_received(3, "close")],
        {"kind": "agent_lost", "node": 0, "attempt": 1, "message": "node 0 was lost"},
    ),
    # Cancel
    "cancel after a failure does not hide a last failure": (
        {},
        [RUN, do.end(end(0, exit_code=3)), do.wait(1), do.cancel(), GONE],
        {"state": "failed"},
    ),
    "cancel after a failure stops the restarts": (
        {"restarts": 1},
        [RUN, do.end(end(0, exit_code=3)), do.wait(1), do.cancel(), GONE],
        {"state": "cancelled"},
    ),
    "a signal that reached the ranks before the agent is a cancel": (
        {},
        [RUN, do.end(end(1, 1, signal="SIGTERM")), do.cancel(), do.wait(1), GONE],
        {"state": "cancelled"},
    ),
    "a run whose ranks have just stopped can still be cancelled": (
        {},
        [*WARNED, BOTH_STOP, do.cancel("SIGINT"), GONE],
        {"kind": "cancelled"},
    ),
    # Limits and warnings
    "the time limit is told once": (
        {"restarts": 1, "limit_min": 2.0},
        [
            *(RUN, do.wait(120), do.wait(1), GONE),
            do.has_received(0, "begin", "start", "pause", "end", "close"),
        ],
        {"kind": "time_limit"},
    ),
    "a warning makes all nodes stop after the last boundary that any has reached": (
        {},
        [
            *(*WARNED, do.signalled("SIGUSR2", 1), do.reach(0, 11)),
            *(do.has_received(0, "begin", "start", "pause"), do.reach(1, 12)),
            *(do.has_received(1, "begin", "start", "pause", "pause"), BOTH_STOP, GONE),
        ],
        {
            "kind": "time_limit",
            "state": "preempted",
            "exit_code_of_run": 75,
            "stop_at": 13,
            "message": "stopped at step 12 before the time limit",
        },
    ),
    "a run that ends before it stops is done": ({}, [*WARNED, BOTH_WELL, GONE], {"kind": "done"}),
    "a rank that lost a peer that stopped is no failure": (
        {},
        [*WARNED, do.end(stop(0)), do.end(victim(1, 1)), do.is_in("ending"), GONE],
        {"kind": "time_limit"},
    ),
    "once one rank has stopped the others have a minute": (
        {},
        [
            *(*WARNED, do.end(stop(0)), do.is_in("running"), do.wait(STOP_TOGETHER_S)),
            *(do.is_in("ending"), do.end(killed(1, 1, stopped=True)), GONE),
        ],
        {"kind": "time_limit", "exit_code_of_run": 75},
    ),
    "a rank that fails while it is to stop is a failure": (
        {},
        [
            *(*WARNED, do.end(stop(0))),
            *(do.end(end(1, 1, exit_code=1, exception="OSError", message="disk full")), GONE),
        ],
        {"state": "failed", "first": 1, "says": "disk full"},
    ),
    "75 without a warning is a failure": (
        {},
        [RUN, do.end(stop(0)), do.wait(SETTLE_S), GONE],
        {"kind": "exit", "first": 0, "says": "without having been asked to"},
    ),
    "a warning that comes after the first stop is heard": (
        {},
        [
            *(RUN, do.end(stop(0)), do.is_in("settling"), do.signalled("SIGUSR2", 1)),
            *(do.wait(SETTLE_S), do.is_in("running"), do.end(stop(1, 1)), GONE),
        ],
        {"kind": "time_limit"},
    ),
    "ranks that die of the warning itself are no failure": (
        {},
        [
            *(RUN, do.signalled("SIGTERM")),
            *(do.end(end(0, signal="SIGTERM"), end(1, 1, signal="SIGTERM")), GONE),
        ],
        {
            "kind": "preempted",
            "exit_code_of_run": 75,
            "exit_code": None,
            "message": "ended by SIGTERM",
        },
    ),
    "a warned run does not start its ranks again": (
        {"restarts": 3},
        [*WARNED, do.end(killed(0)), do.wait(SETTLE_S), GONE],
        {
            "kind": "time_limit",
            "exit_code_of_run": 75,
            "attempts": 1,
            "says": "after a failure: rank 0",
        },
    ),
    "ranks that are asked to stop and do not, end at the limit": (
        {"limit_min": 5.0},
        [RUN, do.wait(240), do.has_received(0, "begin", "start", "pause"), do.wait(60), GONE],
        {"kind": "time_limit", "state": "failed", "says": "had been asked to stop, and did not"},
    ),
    "a kill while the ranks stop for a limit that was told is not taken for the limit": (
        {},
        [*WARNED, do.signalled("SIGINT"), BOTH_STOP, GONE],
        {"kind": "preempted", "signal": "SIGINT"},
    ),
    "an agent that is lost after SIGTERM was lost to the kill": (
        {},
        [RUN, do.signalled("SIGTERM"), do.lose(1), do.end(killed(0, stopped=True)), do.gone(0)],
        {"kind": "preempted", "signal": "SIGTERM", "says": "agent of node 1"},
    ),
    "an agent that is lost just before SIGTERM was lost to the kill": (
        {},
        [RUN, do.lose(1), do.signalled("SIGTERM"), do.end(killed(0, stopped=True)), do.gone(0)],
        {"kind": "preempted", "signal": "SIGTERM", "says": "agent of node 1"},
    ),
    "SIGTERM after a warning does not hide a failure": (
        {},
        [
            *(*WARNED, do.end(end(0, exit_code=3)), do.signalled("SIGTERM")),
            *(do.end(killed(1, 1, stopped=True)), GONE),
        ],
        {"kind": "exit", "exit_code_of_run": 1},
    ),
    "SIGTERM after a warning does not hide a stop": (
        {},
        [
            *(*WARNED, do.end(stop(0)), do.signalled("SIGTERM")),
            *(do.end(killed(1, 1, stopped=True)), GONE),
        ],
        {"kind": "time_limit", "exit_code_of_run": 75},
    ),
    # Hangs
    "a hang is decided when all agents have answered": (
        {},
        [
            *(RUN, do.be_quiet(), do.has_received(0, "begin", "start", "dump")),
            *(do.stacks(0, STUCK), do.is_in("running"), do.stacks(1, ASLEEP), GONE),
        ],
        {
            "kind": "hang",
            "first": 1,
            "message": "rank 1 (node 1, host host1) hangs: no sign of work for 5 s, in "
            "train.py:9 (load); rank 0 ended because of it",
        },
    ),
    "a hang of which no agent says anything is a hang all the same": (
        {},
        [RUN, do.be_quiet(), do.wait(6), GONE],
        {
            "kind": "hang",
            "state": "failed",
            "says": "the agents of nodes 0 and 1 did not say where",
        },
    ),
    "a rank that fails while stacks are collected is the cause": (
        {},
        [
            *(RUN, do.be_quiet(), do.end(killed(1, 1)), do.stacks(0, report(0)), do.stacks(1)),
            *(do.wait(SETTLE_S), GONE),
        ],
        {"kind": "signal", "first": 1},
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_happens_leads_to_the_verdict(name):
    options, steps, expected = SCENARIOS[name]
    cluster = play(*steps, **options)
    verdict = cluster.verdict
    pauses = [message for _, message in cluster.sent if isinstance(message, messages.Pause)]
    found = {
        "first": verdict.first and verdict.first.rank,
        "attempts": cluster.attempts,
        "stores": cluster.stores,
        "stop_at": pauses[-1].stop_at if pauses else None,
    }
    says = expected.get("says", "")
    assert says in verdict.message
    for key, value in expected.items():
        if key != "says":
            assert (found[key] if key in found else getattr(verdict, key)) == value, key


@pytest.mark.parametrize(
    ("before", "has_started"),
    [
        ([do.join(0), do.is_in("joining")], False),
        ([do.join(0, 1), do.is_in("starting")], False),
        ([RUN, do.be_quiet(), do.is_in("running")], True),
    ],
    ids=["joining", "starting", "hanging"],
)
def test_cancel_wins_while_nothing_has_failed(before, has_started):
    cluster = play(*before, do.cancel("SIGINT"), restarts=2)
    cluster.open_store()  # an answer that was on its way
    cluster.gone()
    assert (cluster.verdict.state, cluster.verdict.signal) == ("cancelled", "SIGINT")
    assert ("start" in cluster.received(0)) == has_started


@pytest.mark.parametrize("nodes", [[0], [0, 1]], ids=["joining", "starting"])
def test_a_warning_before_the_ranks_run_starts_none(nodes):
    cluster = play(do.join(*nodes), do.signalled("SIGTERM"), do.open_store(), GONE)
    assert (cluster.verdict.kind, cluster.verdict.exit_code_of_run) == ("preempted", 75)
    assert cluster.verdict.exit_code is None
    assert "start" not in cluster.received(0)


def test_ranks_of_a_job_that_is_killed_have_the_time_that_the_scheduler_leaves():
    _, order = play(RUN, do.cancel("SIGINT"), nodes=1).sent[-1]
    assert (order.signal, order.grace_s) == (signal.SIGINT, 0.2)


@pytest.mark.parametrize("num_before", [0, 1, 2], ids=["the agents", "a rank", "all ranks"])
def test_sigterm_after_a_warning_ends_the_ranks_at_once(num_before):
    last = [end(0, signal="SIGTERM"), end(1, 1, signal="SIGTERM")]
    if num_before == 0:
        last = [killed(0, stopped=True), killed(1, 1, stopped=True)]
    both = [do.signalled("SIGTERM"), do.signalled("SIGTERM", 1), do.is_in("ending")]
    cluster = play(*WARNED, do.end(*last[:num_before]), *both, do.end(*last), GONE, restarts=1)
    assert cluster.received(0).count("end") == 1
    verdict = cluster.verdict
    assert (verdict.kind, verdict.state, verdict.signal) == ("time_limit", "failed", "SIGTERM")
    assert verdict.first is None
    assert "had been asked to stop by SIGUSR2, and did not" in verdict.message


@pytest.mark.parametrize(
    ("reports", "first", "words"),
    [
        ([report(0, is_waiting=True), report(1)], 1, "does not answer"),
        ([report(0, is_waiting=True), report(1, state="T")], 1, "is stopped"),
        ([report(0, step=9), report(1, step=8)], 1, "after step 8"),
        ([report(0, step=9), report(1)], 1, "hangs: no sign of work"),
        ([report(0, silent_s=9.0), report(1, silent_s=9.6)], 1, "no sign of work for 10 s"),
        (
            [report(0, is_waiting=True, where="a.py:1 (f)"), report(1, is_waiting=True)],
            0,
            "all ranks wait for each other",
        ),
    ],
)
def test_the_rank_that_makes_the_others_wait(reports, first, words):
    verdict = hang_verdict(reports, 2, {})
    assert (verdict.first.rank, verdict.victims) == (first, [1 - first])
    assert words in verdict.message
