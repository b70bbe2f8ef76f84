"""The coordinator by itself: messages and time in, messages and one verdict out."""

import signal
from dataclasses import dataclass, field

import pytest
from rank_ends import rank_end

from hpcdist.agent import messages
from hpcdist.agent.coordinator import (
    CAUSE_S,
    SETTLE_S,
    STOP_TOGETHER_S,
    ClaimAttempt,
    Claimed,
    Coordinator,
    Heard,
    Lost,
    Now,
    Send,
    Stage,
)
from hpcdist.agent.messages import HangReport
from hpcdist.agent.node import NodeFacts, OwnNode, RankMeeting
from hpcdist.agent.outcome.hang import hang_verdict
from hpcdist.job.spec import Launch, Resources, ScriptJob
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
    return end(
        rank,
        node,
        exit_code=1,
        exception="RuntimeError",
        message="[gloo] Connection closed by peer",
        **fields,
    )


def kind_of(message):
    return message.__struct_config__.tag


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
    limit_min: float | None = None

    def __post_init__(self):
        launch = {"grace_s": 0.5, "join_timeout_s": 30, "hang_timeout_s": 60.0, "warning_s": 60.0}
        job = ScriptJob(
            name="x",
            workload="script",
            script="x.py",
            launch=Launch(max_restarts=self.restarts, **launch),
            resources=Resources(gpus=self.ranks, time_limit_min=self.limit_min),
        )
        plan = LaunchPlan(
            nodes=[NodePlan()] * self.nodes, device="auto", backend="auto", enforces_limits=True
        )
        node = OwnNode(job, plan, JobPlace(node_rank=0, host="host0"), now_s=self.now)
        self.coordinator = Coordinator(node, 0.2, Now(self.now, self.now))

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

    def tell(self, node, message):
        self.decide(Heard(node, message))

    def open_store(self, port=20001, error=None):
        if error is not None:
            self.tell(0, messages.Failed(sentence=error))
        else:
            self.tell(0, messages.StoreOpened(port=port))

    def lose(self, node):
        self.decide(Lost(node, "connection reset"))

    def join(self, *nodes):
        for node in nodes:
            facts = NodeFacts(
                node=node,
                host=f"host{node}",
                num_nodes=self.nodes,
                device="cpu",
                master_addr="10.0.0.1",
            )
            self.tell(node, messages.Join(facts=facts))

    def run(self):
        self.join(*range(self.nodes))
        self.open_store()

    def end(self, *ends, attempt=None):
        for one in ends:
            number = self.coordinator.attempt.number if attempt is None else attempt
            self.tell(one.node, messages.Ended(attempt=number, end=one))

    def gone(self, *nodes, attempt=None):
        for node in nodes:
            number = self.coordinator.attempt.number if attempt is None else attempt
            self.tell(node, messages.Gone(attempt=number))

    def be_quiet(self, attempt=0):
        for node in range(self.nodes):
            self.tell(node, messages.Quiet(attempt=attempt, quiet_s=60.0))

    def wait(self, seconds):
        self.now += seconds
        self.decide(None)

    def received(self, node):
        return [kind_of(message) for to, message in self.sent if to == node]

    @property
    def stage(self):
        return self.coordinator.stage

    @property
    def verdict(self):
        (verdict,) = self.verdicts
        return verdict


def test_a_run_goes_from_joining_to_its_verdict():
    cluster = Cluster()
    cluster.join(0)
    assert cluster.stage is Stage.JOINING
    assert not cluster.stores
    cluster.join(1)
    assert cluster.stage is Stage.STARTING
    cluster.open_store()
    assert [(node, begin.meeting.attempt) for node, begin in cluster.sent[:2]] == [(0, 0), (1, 0)]
    (start, _) = (message for _, message in cluster.sent[2:])
    assert start.meeting == RankMeeting(
        attempt=0,
        restart_count=0,
        master_addr="10.0.0.1",
        bind_to="10.0.0.1",
        master_port=20001,
        device="cpu",
        backend="gloo",
    )
    cluster.end(well(0), well(1, 1))
    assert cluster.stage is Stage.ENDING
    cluster.gone(0)
    assert not cluster.verdicts
    cluster.gone(1)
    assert cluster.verdict.kind == "done"
    assert cluster.received(0) == cluster.received(1) == ["begin", "start", "end", "close"]
    assert cluster.coordinator.deadline is None


def test_an_agent_that_ends_its_ranks_slowly_is_not_lost():
    cluster = Cluster(nodes=2, ranks=3, restarts=1)
    cluster.run()
    cluster.end(end(0, exit_code=1, exception="ValueError", message="x"))
    cluster.wait(SETTLE_S)
    cluster.end(*[killed(rank) for rank in (1, 2)])
    cluster.gone(0)

    for rank in (3, 4, 5):  # closing their files takes longer than the whole time for the end
        cluster.wait(4.0)
        cluster.end(killed(rank, 1))
    cluster.wait(4.0)
    cluster.gone(1)

    assert cluster.coordinator.attempt.restarts == 1
    assert cluster.failed_attempts[0].first.report.exception == "ValueError"
    cluster.open_store()
    assert cluster.stage is Stage.RUNNING


def test_nodes_that_do_not_join_in_time_are_named():
    cluster = Cluster(nodes=4)
    cluster.join(0, 2)
    cluster.wait(29)
    assert cluster.stage is Stage.JOINING
    cluster.wait(2)
    cluster.gone(0, 2)
    assert cluster.verdict.kind == "launch"
    assert "nodes 1 and 3 did not join within 30 s" in cluster.verdict.message
    cluster.join(3)
    assert cluster.received(3) == ["close"]
    assert cluster.received(1) == []


def test_failures_of_one_moment_are_heard_before_the_ranks_are_ended():
    cluster = Cluster(ranks=2)
    cluster.run()
    cluster.end(victim(0, time_s=100.0))
    assert cluster.stage is Stage.SETTLING
    cluster.wait(SETTLE_S / 2)
    cluster.end(killed(3, 1, time_s=100.01))
    cluster.wait(SETTLE_S)
    assert cluster.stage is Stage.ENDING
    cluster.end(killed(1, stopped=True), killed(2, 1, stopped=True))
    cluster.gone(0, 1)
    assert (cluster.verdict.first.rank, cluster.verdict.victims) == (3, [0, 1, 2])


def test_consequences_wait_longer_for_their_cause_and_nothing_is_waited_for_once_all_have_ended():
    cluster = Cluster(ranks=2)
    cluster.run()
    cluster.end(victim(0))
    cluster.wait(SETTLE_S)
    assert cluster.stage is Stage.SETTLING
    cluster.wait(CAUSE_S - SETTLE_S)
    assert cluster.stage is Stage.ENDING

    cluster = Cluster(ranks=2)
    cluster.run()
    cluster.end(victim(0), killed(3, 1))
    cluster.end(victim(1), victim(2, 1))
    assert cluster.stage is Stage.ENDING


def test_an_agent_that_is_lost_is_the_cause_of_failures_that_are_only_victims():
    cluster = Cluster(restarts=3)
    cluster.run()
    cluster.end(victim(0))
    cluster.wait(1)
    cluster.lose(1)
    cluster.gone(0)
    assert cluster.verdict.kind == "agent_lost"
    assert "node 1 (host host1) was lost: connection reset" in cluster.verdict.message
    assert not cluster.coordinator.attempt.restarts


def test_an_agent_that_is_lost_afterwards_does_not_hide_the_failure():
    cluster = Cluster()
    cluster.run()
    cluster.end(killed(0))
    cluster.wait(1)
    cluster.lose(1)
    cluster.gone(0)
    assert (cluster.verdict.kind, cluster.verdict.first.rank) == ("signal", 0)


def test_an_agent_whose_ranks_were_killed_just_before_it_is_the_cause_and_not_they():
    """As where srun has all processes of a step killed on a healthy node."""
    cluster = Cluster(ranks=2)
    cluster.run()
    cluster.end(killed(2, 1), victim(0))
    cluster.wait(1)
    cluster.lose(1)
    cluster.end(victim(1))
    cluster.gone(0)
    assert (cluster.verdict.kind, cluster.verdict.node) == ("agent_lost", 1)

    cluster = Cluster(ranks=2)
    cluster.run()
    cluster.end(killed(2, 1, out_of_memory=True))
    cluster.wait(1)
    cluster.lose(1)
    cluster.gone(0)
    assert cluster.verdict.kind == "out_of_memory"


def test_an_agent_that_is_lost_after_all_ended_well_does_not_spoil_the_run():
    cluster = Cluster()
    cluster.run()
    cluster.end(well(0), well(1, 1))
    cluster.lose(1)
    cluster.gone(0)
    assert cluster.verdict.kind == "done"


def test_an_agent_that_does_not_end_its_ranks_in_time_is_given_up():
    cluster = Cluster()
    cluster.run()
    cluster.end(killed(0))
    cluster.wait(1)
    cluster.gone(0)
    assert not cluster.verdicts
    cluster.wait(10)
    assert (cluster.verdict.kind, cluster.verdict.first.rank) == ("signal", 0)
    assert cluster.received(1) == ["begin", "start", "end"]


def test_an_agent_that_comes_and_goes_before_it_joins_is_not_lost():
    cluster = Cluster()
    cluster.join(0)
    cluster.lose(1)
    assert cluster.stage is Stage.JOINING
    cluster.run()
    assert cluster.stage is Stage.RUNNING


def test_messages_of_an_old_attempt_do_not_count():
    cluster = Cluster(restarts=1)
    cluster.run()
    cluster.end(killed(0))
    cluster.wait(1)
    cluster.gone(0, 1)
    assert (cluster.stage, cluster.stores) == (Stage.STARTING, 2)
    cluster.open_store(20002)
    cluster.end(killed(1, 1), attempt=0)
    cluster.gone(0, 1, attempt=0)
    cluster.be_quiet(attempt=0)
    assert cluster.stage is Stage.RUNNING
    assert "dump" not in cluster.received(0)
    cluster.end(well(0), well(1, 1))
    cluster.gone(0, 1)
    assert (cluster.verdict.kind, cluster.verdict.restarts) == ("done", 1)
    assert cluster.verdict.attempt == 1


def test_an_attempt_that_was_overtaken_does_not_start_again():
    cluster = Cluster(restarts=1, is_overtaken=True)
    cluster.run()
    cluster.end(killed(0))
    cluster.wait(1)
    cluster.gone(0, 1)
    assert (cluster.stage, cluster.attempts, cluster.failed_attempts) == (Stage.FINISHED, 1, [])
    assert cluster.verdict.attempt == 0


def test_a_host_that_is_lost_before_its_agent_has_joined_ends_the_run_with_its_name():
    cluster = Cluster()
    cluster.join(0)
    cluster.decide(Note(node=0, host="host0", said="a node that is there"))
    assert cluster.stage is Stage.JOINING
    cluster.decide(Note(node=1, host="host1", said="no route", is_host_lost=True))
    cluster.gone(0)
    assert (cluster.verdict.kind, cluster.verdict.try_elsewhere) == ("launch", True)
    assert cluster.verdict.message.endswith(
        "(host host1): no agent could be started there: no route"
    )


def test_node_0_s_own_agent_is_let_go_also_where_the_run_ends_before_it_has_joined():
    cluster = Cluster()
    cluster.decide(Note(node=1, host="host1", said="no route"))
    assert cluster.verdict.message.endswith(
        "(host host1): no agent could be started there: no route"
    )
    assert [(node, kind_of(message)) for node, message in cluster.sent] == [(0, "close")]


@pytest.mark.parametrize("stage", ["joining", "starting", "running", "hanging"])
def test_cancel_wins_while_nothing_has_failed(stage):
    cluster = Cluster(restarts=2)
    cluster.join(0)
    if stage != "joining":
        cluster.join(1)
    if stage in {"running", "hanging"}:
        cluster.open_store()
    if stage == "hanging":
        cluster.be_quiet()
    assert cluster.stage.value == stage.replace("hanging", "running")
    cluster.tell(0, messages.Signalled(signal="SIGINT", is_cancel=True))
    cluster.open_store()  # an answer that was on its way
    cluster.gone(0, 1)
    assert (cluster.verdict.state, cluster.verdict.signal) == ("cancelled", "SIGINT")
    assert "start" not in cluster.received(0) or stage in {"running", "hanging"}


def test_ranks_of_a_job_that_is_killed_have_the_time_that_the_scheduler_leaves():
    cluster = Cluster(nodes=1)
    cluster.run()
    cluster.tell(0, messages.Signalled(signal="SIGINT", is_cancel=True))
    _, order = cluster.sent[-1]
    assert (order.signal, order.grace_s) == (signal.SIGINT, 0.2)


def test_cancel_after_a_failure_stops_the_restarts_but_does_not_hide_a_last_failure():
    for restarts, state in ((0, "failed"), (1, "cancelled")):
        cluster = Cluster(restarts=restarts)
        cluster.run()
        cluster.end(end(0, exit_code=3))
        cluster.wait(1)
        cluster.tell(0, messages.Signalled(signal="SIGTERM", is_cancel=True))
        cluster.gone(0, 1)
        assert cluster.verdict.state == state


def test_a_signal_that_reached_the_ranks_before_the_agent_is_a_cancel():
    cluster = Cluster()
    cluster.run()
    cluster.end(end(1, 1, signal="SIGTERM"))
    cluster.tell(0, messages.Signalled(signal="SIGTERM", is_cancel=True))
    cluster.wait(1)
    cluster.gone(0, 1)
    assert cluster.verdict.state == "cancelled"


def test_cancel_after_all_ended_well_changes_nothing():
    cluster = Cluster()
    cluster.run()
    cluster.end(well(0), well(1, 1))
    cluster.tell(0, messages.Signalled(signal="SIGTERM", is_cancel=True))
    cluster.gone(0, 1)
    cluster.tell(0, messages.Signalled(signal="SIGTERM", is_cancel=True))
    assert cluster.verdict.kind == "done"


def test_the_time_limit_does_not_hide_a_failure_and_is_told_once():
    cluster = Cluster(restarts=1, limit_min=2.0)
    cluster.run()
    cluster.wait(120)
    cluster.wait(1)
    cluster.gone(0, 1)
    assert (cluster.verdict.kind, cluster.received(0)) == (
        "time_limit",
        ["begin", "start", "pause", "end", "close"],
    )
    cluster = Cluster(limit_min=2.0)
    cluster.run()
    cluster.wait(119.9)
    cluster.end(killed(0))
    cluster.wait(0.1)
    cluster.wait(1)
    cluster.gone(0, 1)
    assert cluster.verdict.kind == "signal"


def test_a_store_that_cannot_be_opened_is_told():
    cluster = Cluster(restarts=1)
    cluster.join(0, 1)
    cluster.open_store(None, "no port from 1 to 2 is free")
    cluster.gone(0, 1)
    assert (cluster.verdict.kind, cluster.verdict.message) == (
        "launch",
        "node 0 (host host0): no port from 1 to 2 is free",
    )


def report(rank, **fields):
    ends = {key: fields.pop(key) for key in ("step",) if key in fields}
    return HangReport(end=end(rank, node=rank, **ends), **{"silent_s": 5.0} | fields)


def test_a_hang_is_decided_when_all_agents_have_answered():
    cluster = Cluster()
    cluster.run()
    cluster.be_quiet()
    assert cluster.received(0) == ["begin", "start", "dump"]
    waiting = report(0, is_waiting=True, where="train.py:3 (step)")
    asleep = report(1, where="train.py:9 (load)")
    cluster.tell(0, messages.Stacks(attempt=0, reports=[waiting]))
    assert cluster.stage is Stage.RUNNING
    cluster.tell(1, messages.Stacks(attempt=0, reports=[asleep]))
    cluster.gone(0, 1)
    assert (cluster.verdict.kind, cluster.verdict.first.rank) == ("hang", 1)
    assert cluster.verdict.message == (
        "rank 1 (node 1, host host1) hangs: no sign of work for 5 s, in train.py:9 (load); "
        "rank 0 ended because of it"
    )


def test_a_hang_is_decided_without_an_agent_that_does_not_answer():
    cluster = Cluster()
    cluster.run()
    cluster.be_quiet()
    cluster.tell(0, messages.Stacks(attempt=0, reports=[report(0)]))
    cluster.wait(6)
    cluster.gone(0, 1)
    assert (cluster.verdict.kind, cluster.verdict.first.rank) == ("hang", 0)


def test_a_hang_of_which_no_agent_says_anything_is_a_hang_all_the_same():
    cluster = Cluster()
    cluster.run()
    cluster.be_quiet()
    cluster.wait(6)
    cluster.gone(0, 1)
    assert (cluster.verdict.kind, cluster.verdict.state) == ("hang", "failed")
    assert "the agents of nodes 0 and 1 did not say where" in cluster.verdict.message


def test_a_rank_that_fails_while_stacks_are_collected_is_the_cause():
    cluster = Cluster()
    cluster.run()
    cluster.be_quiet()
    cluster.end(killed(1, 1))
    cluster.tell(0, messages.Stacks(attempt=0, reports=[report(0)]))
    cluster.tell(1, messages.Stacks(attempt=0, reports=[]))
    cluster.wait(SETTLE_S)
    cluster.gone(0, 1)
    assert (cluster.verdict.kind, cluster.verdict.first.rank) == ("signal", 1)


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
    assert verdict.first.rank == first
    assert verdict.victims == [1 - first]
    assert words in verdict.message


def stop(rank, node=0, **fields):
    return end(rank, node, exit_code=75, step=12, **fields)


def warned(signal="SIGUSR2", **options):
    """Where there is no signal, it is our own clock that warns."""
    cluster = Cluster(limit_min=5.0, **options)
    cluster.run()
    if signal is None:
        cluster.wait(240)
    else:
        cluster.tell(0, messages.Signalled(signal=signal))
    return cluster


def test_a_warning_makes_all_nodes_stop_after_the_last_boundary_that_any_has_reached():
    cluster = warned()
    cluster.tell(1, messages.Signalled(signal="SIGUSR2"))
    assert cluster.received(0) == cluster.received(1) == ["begin", "start", "pause"]
    cluster.tell(0, messages.Reached(attempt=0, boundary=11))
    assert "stop_at" not in cluster.received(0)
    cluster.tell(1, messages.Reached(attempt=0, boundary=12))
    assert cluster.sent[-2:] == [(node, messages.Pause(stop_at=13)) for node in (0, 1)]
    cluster.end(stop(0), stop(1, 1))
    cluster.gone(0, 1)
    verdict = cluster.verdict
    assert (verdict.kind, verdict.state, verdict.exit_code_of_run) == (
        "time_limit",
        "preempted",
        75,
    )
    assert verdict.message == "stopped at step 12 before the time limit"


def test_sigterm_is_a_preemption():
    cluster = warned("SIGTERM")
    cluster.end(stop(0), stop(1, 1))
    cluster.gone(0, 1)
    assert (cluster.verdict.kind, cluster.verdict.signal) == ("preempted", "SIGTERM")
    assert cluster.verdict.message == "stopped at step 12 by SIGTERM"


def test_a_run_that_ends_before_it_stops_is_done():
    cluster = warned()
    cluster.end(well(0), well(1, 1))
    cluster.gone(0, 1)
    assert cluster.verdict.kind == "done"


@pytest.mark.parametrize("stage", [Stage.JOINING, Stage.STARTING])
def test_a_warning_before_the_ranks_run_starts_none(stage):
    cluster = Cluster()
    cluster.join(*range(1 if stage is Stage.JOINING else 2))
    assert cluster.stage is stage
    cluster.tell(0, messages.Signalled(signal="SIGTERM"))
    cluster.open_store()
    cluster.gone(0, 1)
    assert (cluster.verdict.kind, cluster.verdict.exit_code_of_run) == ("preempted", 75)
    assert cluster.verdict.exit_code is None
    assert "start" not in cluster.received(0)


def test_once_one_rank_has_stopped_the_others_have_a_minute():
    cluster = warned()
    cluster.end(stop(0))
    cluster.end(victim(1, 1))  # it lost a peer that stopped
    assert cluster.stage is Stage.ENDING  # all have ended
    cluster.gone(0, 1)
    assert cluster.verdict.kind == "time_limit"

    cluster = warned()
    cluster.end(stop(0))
    assert cluster.stage is Stage.RUNNING
    cluster.wait(STOP_TOGETHER_S)
    assert cluster.stage is Stage.ENDING
    cluster.end(killed(1, 1, stopped=True))
    cluster.gone(0, 1)
    assert (cluster.verdict.kind, cluster.verdict.exit_code_of_run) == ("time_limit", 75)


def test_a_rank_that_fails_while_it_is_to_stop_is_a_failure():
    cluster = warned()
    cluster.end(stop(0))
    cluster.end(end(1, 1, exit_code=1, exception="OSError", message="disk full"))
    cluster.gone(0, 1)
    assert (cluster.verdict.state, cluster.verdict.first.rank) == ("failed", 1)
    assert "disk full" in cluster.verdict.message


def test_75_without_a_warning_is_a_failure():
    cluster = Cluster()
    cluster.run()
    cluster.end(stop(0))
    cluster.wait(SETTLE_S)
    cluster.gone(0, 1)
    assert (cluster.verdict.kind, cluster.verdict.first.exit_code) == ("exit", 75)
    assert "without having been asked to" in cluster.verdict.message


def test_a_warning_that_comes_after_the_first_stop_is_heard():
    cluster = Cluster()
    cluster.run()
    cluster.end(stop(0))
    assert cluster.stage is Stage.SETTLING
    cluster.tell(1, messages.Signalled(signal="SIGUSR2"))
    cluster.wait(SETTLE_S)
    assert cluster.stage is Stage.RUNNING
    cluster.end(stop(1, 1))
    cluster.gone(0, 1)
    assert cluster.verdict.kind == "time_limit"


def test_ranks_that_die_of_the_warning_itself_are_no_failure():
    cluster = warned("SIGTERM")
    cluster.end(end(0, signal="SIGTERM"), end(1, 1, signal="SIGTERM"))
    cluster.gone(0, 1)
    assert (cluster.verdict.kind, cluster.verdict.exit_code_of_run) == ("preempted", 75)
    assert cluster.verdict.exit_code is None
    assert cluster.verdict.message == "ended by SIGTERM"


def test_a_warned_run_does_not_start_its_ranks_again():
    cluster = warned(restarts=3)
    cluster.end(killed(0))
    cluster.wait(SETTLE_S)
    cluster.gone(0, 1)
    assert not cluster.failed_attempts
    assert (cluster.verdict.kind, cluster.verdict.exit_code_of_run) == ("time_limit", 75)
    assert "after a failure: rank 0" in cluster.verdict.message


def test_a_warned_run_can_be_cancelled():
    cluster = warned()
    cluster.tell(0, messages.Signalled(signal="SIGINT", is_cancel=True))
    cluster.gone(0, 1)
    assert cluster.verdict.kind == "cancelled"


def test_a_run_whose_ranks_have_just_stopped_can_still_be_cancelled():
    cluster = warned()
    cluster.end(stop(0), stop(1, 1))
    cluster.tell(0, messages.Signalled(signal="SIGINT", is_cancel=True))
    cluster.gone(0, 1)
    assert cluster.verdict.kind == "cancelled"


def test_ranks_that_are_asked_to_stop_and_do_not_end_at_the_limit():
    cluster = warned(None)
    assert cluster.received(0)[-1] == "pause"
    cluster.wait(60)
    cluster.gone(0, 1)
    assert (cluster.verdict.kind, cluster.verdict.state) == ("time_limit", "failed")
    assert "had been asked to stop, and did not" in cluster.verdict.message


@pytest.mark.parametrize("first", ["the agents", "a rank", "all ranks"])
def test_sigterm_after_a_warning_ends_the_ranks_at_once(first):
    cluster = warned(restarts=1)
    last = [end(0, signal="SIGTERM"), end(1, 1, signal="SIGTERM")]
    if first == "the agents":
        last = [killed(0, stopped=True), killed(1, 1, stopped=True)]
    cluster.end(*last[: {"the agents": 0, "a rank": 1}.get(first, 2)])
    cluster.tell(0, messages.Signalled(signal="SIGTERM"))
    cluster.tell(1, messages.Signalled(signal="SIGTERM"))
    assert cluster.stage is Stage.ENDING
    assert cluster.received(0).count("end") == 1
    cluster.end(*last)
    cluster.gone(0, 1)
    verdict = cluster.verdict
    assert (verdict.kind, verdict.state, verdict.signal) == ("time_limit", "failed", "SIGTERM")
    assert verdict.first is None
    assert "had been asked to stop by SIGUSR2, and did not" in verdict.message


@pytest.mark.parametrize("limit", [None, "SIGUSR2"], ids=["own-clock", "told"])
def test_a_kill_while_the_ranks_stop_for_the_time_limit_is_not_taken_for_the_limit(limit):
    cluster = warned(limit)
    cluster.tell(0, messages.Signalled(signal="SIGINT"))
    cluster.end(stop(0), stop(1, 1))
    cluster.gone(0, 1)
    assert (cluster.verdict.kind, cluster.verdict.signal) == ("preempted", "SIGINT")


def test_an_agent_that_is_lost_after_sigint_was_lost_to_the_kill():
    cluster = warned("SIGINT")
    cluster.lose(1)
    cluster.end(killed(0, stopped=True))
    cluster.gone(0)
    assert (cluster.verdict.kind, cluster.verdict.signal) == ("preempted", "SIGINT")
    assert "agent of node 1" in cluster.verdict.message


def test_the_limit_that_is_told_after_our_own_warning_is_the_same_limit():
    cluster = warned(None)
    cluster.tell(0, messages.Signalled(signal="SIGUSR2"))
    cluster.end(stop(0), stop(1, 1))
    cluster.gone(0, 1)
    assert (cluster.verdict.kind, cluster.verdict.signal) == ("time_limit", "SIGUSR2")
    assert cluster.received(0).count("pause") == 1


def test_sigterm_after_a_warning_hides_neither_a_failure_nor_a_stop():
    for own, kind in ((end(0, exit_code=3), "exit"), (stop(0), "time_limit")):
        cluster = warned()
        cluster.end(own)
        cluster.tell(0, messages.Signalled(signal="SIGTERM"))
        cluster.end(killed(1, 1, stopped=True))
        cluster.gone(0, 1)
        assert cluster.verdict.kind == kind
        assert cluster.verdict.exit_code_of_run == (75 if own.exit_code == 75 else 1)


def test_sigterm_after_a_warning_has_a_verdict_where_no_rank_had_begun():
    cluster = warned()
    cluster.tell(0, messages.Signalled(signal="SIGTERM"))
    cluster.gone(0, 1)
    assert (cluster.verdict.kind, cluster.verdict.state) == ("time_limit", "failed")


def test_nodes_that_do_not_fit_together_end_the_run_before_any_rank_starts():
    cluster = Cluster()
    cluster.join(0)
    odd = NodeFacts(node=1, host="host1", num_nodes=5, device="cpu")
    cluster.tell(1, messages.Join(facts=odd))
    cluster.gone(0, 1)
    assert cluster.verdict.kind == "launch"
    assert "node 1 (host host1) belongs to a job of 5 nodes" in cluster.verdict.message
    assert cluster.stores == 0
