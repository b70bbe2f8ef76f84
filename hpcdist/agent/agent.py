"""The agent: one per node. Starts, watches and ends the node's ranks.

Node 0's agent also leads: it holds the coordinator, which the others reach over TCP at the address
in launch/meeting.json. An agent is one thread around one `select`, and another that samples what
the ranks use (agent/usage); it imports no torch, so it answers within milliseconds whatever the
ranks do.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import sys
import time
import traceback
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from hpcdist.agent import messages
from hpcdist.agent.agreement import DisagreementError, NodeFacts
from hpcdist.agent.coordinator import CANCEL_SIGNALS, Coordinator
from hpcdist.agent.local_ranks import LocalRanks
from hpcdist.agent.meeting import CannotJoinError, HostedMeeting, join_meeting
from hpcdist.agent.messages import Channel, ChannelClosedError, ToAgent, ToCoordinator
from hpcdist.agent.node import (
    Meeting,
    RankOrder,
    find_device,
    node_environment,
    rank_orders,
)
from hpcdist.agent.outcome import failure, lives
from hpcdist.agent.sampler import NodeShare, UsageSampler
from hpcdist.agent.watch import STANDSTILL_S
from hpcdist.base import files
from hpcdist.base.errors import EXIT_FAILED, JobError
from hpcdist.job.spec import JobSpec, warning_before_s
from hpcdist.machine.cpus import cpu_quota, threads_per_rank, usable_cpus
from hpcdist.machine.gpus import claim
from hpcdist.machine.network import (
    NoSuchInterfaceError,
    interface_of,
    offered_addresses,
    require_interface,
)
from hpcdist.machine.ports import NoFreePortError
from hpcdist.machine.process import adopt_orphans, identify, kill_descendants
from hpcdist.runs.run import Run
from hpcdist.runs.spec import LaunchPlan, decode_launch
from hpcdist.runs.verdict import Kind, Verdict
from hpcdist.schedulers import load_requeuer
from hpcdist.schedulers.base import JobPlace, Scheduler
from hpcdist.schedulers.notes import Notes
from hpcdist.workloads import load_workload

_LOOPBACK = "127.0.0.1"
_TICK_S = 0.5
_STACKS_WAIT_S = 0.5
_PAUSE_SETTLES_S = 0.01
"""After the order to pause, when every rank that had not seen it has told its boundary."""


class CannotLaunchError(Exception):
    """The ranks of this node cannot be started, and why."""


class Agent:
    """See the module; `run_to_end` is its life."""

    def __init__(
        self,
        run: Run,
        job: JobSpec,
        plan: LaunchPlan,
        place: JobPlace,
        requeuer: Scheduler | None = None,
    ) -> None:
        self.run = run
        self.job = job
        self.plan = plan
        self.place = place
        self.node_rank = place.node_rank
        self.node = plan.nodes[self.node_rank]
        self.host = place.host
        self.verdict: Verdict | None = None
        self.requeuer = requeuer

        self._num_ranks = job.ranks_per_node
        self._told: deque[ToCoordinator] = deque()  # by node 0's agent to its coordinator
        self._orders: deque[ToAgent] = deque()
        self._coordinator: Coordinator | None = None  # of node 0
        self._leader: Channel[ToAgent] | None = None  # of the others
        self._closing = False
        self._signals: int | None = None
        self._attempt = 0
        self._newest_known = run.newest_attempt()  # its own, or from before its time
        self._has_begun = False
        self._stacks_at: float | None = None
        self._reached_at: float | None = None
        self._early_warning: str | None = None
        self._is_limit_near = False
        self._tick_at = time.monotonic() + _TICK_S
        self._begin_s = self._turned_at = time.monotonic()
        self._announced: dict[str, Any] = {}
        self._notes = Notes()
        self._usage = UsageSampler(
            run,
            node=self.node_rank,
            host=self.host,
            every_s=job.record.usage_s,
            log=self._log,
        )

    def run_to_end(self) -> None:
        """Take part in the run until it has a verdict, and leave no process behind."""
        try:
            if self._is_over() or self._is_not_to_begin():
                self._closing = True
            else:
                self._set_up()
            while not self._closing:
                self._turn()
        except CannotLaunchError as error:
            self.verdict = self._own_verdict("launch", str(error))
        except Exception as error:  # noqa: BLE001 - a run must not end without a verdict
            sentence = f"the agent of node {self.node_rank} (host {self.host}) failed: {error!r}"
            self.verdict = self._own_verdict("agent_lost", sentence, traceback.format_exc())
        finally:
            kill_descendants()
            self._usage.end()
        # Last of all: whoever sees a verdict may count on it that the ranks are gone.
        if self.verdict is not None and self._has_a_say():
            self.verdict = lives.conclude(
                self.run,
                self.job,
                self.verdict,
                self.requeuer,
                patience=lives.Patience(self.verdict, self._pause),
                has_a_say=self._has_a_say,
                begin_attempt=None if self._has_begun else self._begin_attempt,
            )

    def _pause(self, seconds: float) -> bool:
        """Wait, or until SIGTERM comes; True where it does."""
        if self._signals is None:
            time.sleep(seconds)
            return False
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            readable, _, _ = select.select([self._signals], [], [], left_s)
            if readable and signal.SIGTERM in os.read(self._signals, 4096):
                return True
        return False

    def _begin_attempt(self) -> int:
        life = self.requeuer.life() if self.requeuer is not None else 0
        return lives.begin_attempt(self.run, self.job, life=life)

    def _has_a_say(self) -> bool:
        newest = self.run.newest_attempt()
        if newest > self._newest_known:
            self._log(f"attempt {newest} has begun elsewhere: this one has no say any more")
        return newest <= self._newest_known

    # Set-up.

    def _set_up(self) -> None:
        adopt_orphans()
        variables = node_environment(self.plan, self.node_rank, self._num_threads(), os.environ)
        os.environ.update(variables)
        self._ranks = LocalRanks(
            self.run, self.job, tell=self._tell, on_store=self._on_store, log=self._log
        )
        self._selector = selectors.DefaultSelector()  # not before the fork: it would be shared
        self._watch_signals()
        self._announce()
        self._ranks.listen(self._selector)
        self._claim_gpus()
        self._find_device()
        self._announce(device=self._device, gpus=self._gpus)
        if self.node_rank == 0:
            self._lead()
        else:
            self._join()

    def _find_device(self) -> None:
        try:
            self._choose_device()
            workload = load_workload(self.job)
            workload.check_device(self._device)
            workload.check_host(self._device)
        except (DisagreementError, JobError) as error:
            raise CannotLaunchError(f"node {self.node_rank} (host {self.host}): {error}") from None

    def _choose_device(self) -> None:
        if self.plan.device != "auto" and self.node.gpus is not None:
            self._device, self._gpus = self.plan.device, self.node.gpus
        else:
            self._device, self._gpus = find_device(
                self.plan.device, self._num_ranks, self.job.resources.gpus
            )

    def _claim_gpus(self) -> None:
        try:
            self._claims = claim(self.node.gpus or [])
        except OSError:
            raise CannotLaunchError(
                f"another run took one of the GPUs chosen for node {self.node_rank} at the same "
                "moment; submit again"
            ) from None

    def _num_threads(self) -> int:
        if self.plan.num_threads is not None:
            return self.plan.num_threads
        return threads_per_rank(
            len(usable_cpus()), self._num_ranks, cpus_per_rank=self.job.cpus_per_rank
        )

    def _watch_signals(self) -> None:
        self._signals, writing = os.pipe()
        os.set_blocking(writing, False)
        os.set_blocking(self._signals, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for signum in {*CANCEL_SIGNALS, *self._warning_signals()}:
            signal.signal(signum, lambda *_: None)
        self._selector.register(self._signals, selectors.EVENT_READ, self._on_signals)

    def _warning_signals(self) -> set[signal.Signals]:
        return {signal.Signals[name] for name in self.plan.warning_signals}

    def _announce(self, **facts: Any) -> None:
        """Let others find this process, and see how far it has come: its devices, the addresses
        that it offers as node 0, and by which way it reaches node 0."""
        self._announced |= facts
        files.write_json(
            self.run.agent_file(self.node_rank),
            {
                "node": self.node_rank,
                "host": self.host,
                "process": msgspec.to_builtins(identify(os.getpid())),
                **self._announced,
            },
        )

    def _lead(self) -> None:
        launch = self.job.launch
        self._coordinator = Coordinator(
            num_nodes=len(self.plan.nodes),
            ranks_per_node=self._num_ranks,
            max_restarts=launch.max_restarts,
            grace_s=launch.grace_s,
            join_timeout_s=launch.join_timeout_s,
            backend=self.plan.backend,
            send=self._send_to_agent,
            open_store=self._open_store,
            claim_attempt=self._claim_attempt,
            is_overtaken=lambda: self.run.newest_attempt() > self._newest_known,
            note_restart=self.run.write_attempt_verdict,
            finish=self._finish,
            now=time.monotonic,
            unix_now=time.time,
            saves="checkpoint" in self.job.__struct_fields__,
        )
        self._coordinator.begin()
        addresses = self._own_addresses()
        self._announce(offers=addresses)
        if len(self.plan.nodes) > 1:
            self._host_meeting(self._coordinator, addresses)
        self._tell_facts(master_addr=addresses[0], own_address=addresses[0])

    def _own_addresses(self) -> list[str]:
        """Addresses of this host, node 0, that the other nodes may try, best first."""
        if self.node.address is not None:
            return [self.node.address]
        if len(self.plan.nodes) == 1:
            return [_LOOPBACK]
        try:
            offered = offered_addresses(self.host, self.plan.interface)
        except NoSuchInterfaceError as error:
            raise CannotLaunchError(f"node 0 (host {self.host}): {error}") from None
        return [address.ip for address in offered]

    def _use_address(self, *, master_addr: str, own_address: str) -> None:
        self._master_addr = master_addr
        self._interface = self.plan.interface or interface_of(own_address)
        self._announce(address=own_address, master_addr=master_addr, interface=self._interface)

    def _tell_facts(self, *, master_addr: str, own_address: str) -> None:
        self._use_address(master_addr=master_addr, own_address=own_address)
        facts = NodeFacts(
            node=self.node_rank,
            host=self.host,
            num_nodes=self.place.num_nodes or len(self.plan.nodes),
            ranks=self._num_ranks,
            device=self._device,
            gpus=self._gpus,
            master_addr=master_addr,
            interface=self._interface,
        )
        self._tell(messages.Join(facts=facts))

    def _host_meeting(self, coordinator: Coordinator, addresses: list[str]) -> None:
        try:
            self._meeting = HostedMeeting(
                self.run,
                addresses=addresses,
                bind_to=self.node.address or "",
                port_range=self.job.launch.port_range,
                selector=self._selector,
                on_message=coordinator.on_message,
                on_lost=coordinator.on_lost,
            )
        except NoFreePortError as error:
            raise CannotLaunchError(f"node 0 (host {self.host}): {error}") from None

    def _join(self) -> None:
        timeout_s = self.job.launch.join_timeout_s
        try:
            joined = join_meeting(
                self.run,
                node_rank=self.node_rank,
                source=self.node.address,
                timeout_s=timeout_s,
                give_up=self._is_over_while_joining,
            )
        except CannotJoinError as error:
            raise CannotLaunchError(f"node {self.node_rank} (host {self.host}): {error}") from None
        if joined is not None:
            self._check_interface()
            self._leader, self._ranks.clock_offset_s = joined.channel, joined.clock_offset_s
            self._selector.register(self._leader, selectors.EVENT_READ, self._on_leader)
            self._tell_facts(master_addr=joined.address, own_address=joined.source)
            if self._early_warning is not None:
                self._warn(self._early_warning)
        elif not self._closing:
            raise CannotLaunchError(
                f"node {self.node_rank} (host {self.host}) could not reach the agent of node 0 "
                f"within {timeout_s:g} s"
            )

    def _is_not_to_begin(self) -> bool:
        """Whether the job was started before without coming further, and must not be again."""
        if self.requeuer is None:
            return False
        lives.note_lost_attempt(self.run, life=self.requeuer.life())
        if self.node_rank != 0:
            return False
        self.verdict = lives.stalled_at_begin(self.run, self.job)
        return self.verdict is not None

    def _check_interface(self) -> None:
        """Without it, gloo and NCCL would fail in words that name neither node nor profile."""
        try:
            require_interface(self.plan.interface)
        except NoSuchInterfaceError as error:
            raise CannotLaunchError(f"node {self.node_rank} (host {self.host}): {error}") from None

    def _is_over(self) -> bool:
        """Whether the run has a verdict: told by an agent that could not join, or before a restart
        of the job; or was cancelled in the meantime."""
        if self.run.verdict_file.exists():
            self._closing = True
        elif self.run.cancel_file.exists():
            self._cancel("SIGTERM")
        return self._closing

    def _is_over_while_joining(self) -> bool:
        for key, _ in self._selector.select(0):
            if key.fileobj == self._signals:
                self._on_signals()
        return self._is_over()

    # The loop.

    def _turn(self) -> None:
        ready = {key.fileobj: key.data for key, _ in self._selector.select(self._timeout_s())}
        self._note_standstill()  # before what others said meanwhile is heard
        # Signals first: what the ranks' ends mean depends on whether a kill came before them.
        self._heed_notes()
        if self._signals in ready:
            ready.pop(self._signals)()
        self._deliver()
        for callback in ready.values():
            callback()
        now = time.monotonic()
        if self._stacks_at is not None and now >= self._stacks_at:
            self._stacks_at = None
            reports = self._ranks.hang_reports()
            self._tell(messages.Stacks(attempt=self._attempt, reports=reports))
        if self._reached_at is not None and now >= self._reached_at:
            self._reached_at = None
            boundary = self._ranks.last_boundary()
            self._tell(messages.Reached(attempt=self._attempt, boundary=boundary))
        if now >= self._tick_at:
            self._tick_at = now + _TICK_S
            self._tick()
        if self._coordinator is not None:
            self._coordinator.on_time()
        self._deliver()

    def _deliver(self) -> None:
        while self._told or self._orders:
            if self._orders:
                self._obey(self._orders.popleft())
            else:
                assert self._coordinator is not None
                self._coordinator.on_message(0, self._told.popleft())

    def _timeout_s(self) -> float:
        deadlines = [self._tick_at]
        deadlines += [at for at in (self._stacks_at, self._reached_at) if at is not None]
        if self._coordinator is not None and (due := self._coordinator.next_deadline()) is not None:
            deadlines.append(due)
        return 0.0 if self._told or self._orders else max(0.0, min(deadlines) - time.monotonic())

    def _tick(self) -> None:
        if self._is_over():
            return
        self._watch_time()
        silent = self._ranks.look(enforces_limits=self.plan.enforces_limits)
        if silent is not None:
            self._tell(messages.Silent(attempt=self._attempt, rank=silent))

    def _note_standstill(self) -> None:
        """After a suspension the others' ranks, which had to wait, are no more to blame than its
        own."""
        now = time.monotonic()
        if self._coordinator is not None and now - self._turned_at > STANDSTILL_S:
            self._coordinator.on_standstill()
        self._turned_at = now

    def _watch_time(self) -> None:
        enforced_min = self.job.resources.time_limit_min if self.plan.enforces_limits else None
        limit_min = enforced_min or self.plan.limit_min
        if limit_min is None or self._coordinator is None:
            return
        left_s = self._begin_s + limit_min * 60 - time.monotonic()
        warning_s = warning_before_s(self.job.launch, limit_min)
        if left_s <= 0 and enforced_min is not None:
            self._tell(messages.LimitReached(limit_min=limit_min))
        elif left_s <= warning_s and not self._is_limit_near:
            self._is_limit_near = True
            self._warn(None)

    def _heed_notes(self) -> None:
        """What started the agents may know more than reaches this one."""
        if self._coordinator is None:
            return
        for note in self._notes.new():
            if "signal" in note:
                self._on_signal(signal.Signals[note["signal"]])
            else:
                sentence = f"no agent could be started there: {note['said']}"
                self._coordinator.on_unreachable(note["node"], note["host"], sentence)

    def _on_signals(self) -> None:
        assert self._signals is not None
        for number in os.read(self._signals, 4096):
            self._on_signal(number)

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        self._log(f"received {name}")
        if number in self._warning_signals() and not self.run.cancel_file.exists():
            self._warn(name)
        elif number in {*CANCEL_SIGNALS, *self._warning_signals()}:
            self._cancel(name)

    def _warn(self, signal_name: str | None) -> None:
        """The job will be ended soon; told later where the leader is not known yet."""
        if self._coordinator is None and self._leader is None:
            self._early_warning = signal_name
        else:
            self._tell(messages.Warned(signal=signal_name))

    def _cancel(self, signal_name: str) -> None:
        if self._coordinator is not None or self._leader is not None:
            self._tell(messages.Cancelled(signal=signal_name))
            return
        self._closing = True
        self.verdict = failure.cancelled(
            signal_name, attempt=self._attempt, restarts=0, time_s=time.time()
        )

    # Talking to the coordinator, and obeying it.

    def _tell(self, message: ToCoordinator) -> None:
        """To the coordinator."""
        if self._coordinator is not None:
            self._told.append(message)
            return
        assert self._leader is not None
        try:
            self._leader.send(message)
        except ChannelClosedError as error:
            self._on_leader_lost(str(error))

    def _send_to_agent(self, node: int, message: ToAgent) -> None:
        if node == 0:
            self._orders.append(message)
        else:
            self._meeting.send(node, message)

    def _on_leader(self) -> None:
        assert self._leader is not None
        try:
            self._orders.extend(self._leader.receive())
        except ChannelClosedError as error:
            self._on_leader_lost(str(error))

    def _on_leader_lost(self, reason: str) -> None:
        """Without the leader nobody would end the ranks, or say why the run ended."""
        if self._closing:
            return
        self._closing = True
        self.verdict = failure.without_rank(
            "agent_lost",
            f"the agent of node 0 was lost: {reason}",
            time_s=time.time(),
            attempt=self._attempt,
            node=0,
        )

    def _obey(self, order: ToAgent) -> None:
        match order:
            case messages.Begin():
                self._attempt = self._newest_known = order.attempt
                self._has_begun = True
            case messages.Start():
                self._start(order.meeting)
            case messages.End():
                self._ranks.end(order)
            case messages.Dump():
                self._ranks.dump_stacks()
                self._stacks_at = time.monotonic() + _STACKS_WAIT_S
            case messages.Pause():
                self._ranks.pause()
                self._reached_at = time.monotonic() + _PAUSE_SETTLES_S
            case messages.Forgive():
                self._ranks.forgive()
            case messages.StopAt():
                self._ranks.stop_at(order.boundary)
            case messages.Close():
                self._closing = True

    def _start(self, meeting: Meeting) -> None:
        if self.node_rank == 0:
            self._settle_address(meeting.master_addr)
        elif self._master_addr != meeting.master_addr:
            self._log(f"node 0 is reached by {self._master_addr}, not by {meeting.master_addr}")
            meeting = msgspec.structs.replace(meeting, master_addr=self._master_addr)
        orders = rank_orders(
            self.run,
            self.job,
            self.plan,
            self.place,
            num_threads=self._num_threads(),
            interface=self._interface,
            gpus=self._gpus,
            meeting=meeting,
        )
        self._ranks.start(orders)
        self._sample_usage(orders)

    def _sample_usage(self, orders: list[RankOrder]) -> None:
        cpus = sorted({cpu for order in orders for cpu in order.cpus})
        num_cpus = orders[0].num_cpus
        share = NodeShare(
            ranks=self._ranks.living,
            cpus=cpus or None,
            num_cpus=min(num_cpus, cpu_quota() or num_cpus),
            gpus=self._gpus,
        )
        self._usage.begin(orders[0].attempt, share)

    def _settle_address(self, master_addr: str) -> None:
        """Node 0 is known by the address that the others reached, whatever its own name means to
        itself: Debian gives it 127.0.1.1."""
        if self._master_addr != master_addr:
            self._use_address(master_addr=master_addr, own_address=master_addr)

    # For the coordinator.

    def _claim_attempt(self) -> int:
        self._attempt = self._newest_known = self._begin_attempt()
        self._has_begun = True
        return self._attempt

    def _open_store(self) -> None:
        bind_to = self.node.address or ""
        self._ranks.open_store(bind_to, self._master_addr, self.job.launch.port_range)

    def _on_store(self, port: int | None, error: str | None) -> None:
        assert self._coordinator is not None
        self._coordinator.on_store(port, error)

    def _finish(self, verdict: Verdict) -> None:
        self.verdict = verdict

    def _own_verdict(self, kind: Kind, sentence: str, trace: str | None = None) -> Verdict:
        return failure.without_rank(
            kind,
            sentence,
            time_s=time.time(),
            attempt=self._attempt,
            node=self.node_rank,
            host=self.host,
            traceback=trace,
        )

    def _log(self, line: str) -> None:
        """A disk that is full must not end a run: then nobody is told."""
        with (
            contextlib.suppress(OSError),
            self.run.agent_log_file(self.node_rank).open("a") as log,
        ):
            print(time.strftime("%H:%M:%S"), line, file=log)


def run_agent(run_path: Path, place: JobPlace) -> int:
    """Be the agent of one node; returns the exit code of the run, as far as this node knows it."""
    run = Run(run_path)
    try:
        job, plan, spec = decode_launch(files.read_json(run.spec_file))
    except (KeyError, msgspec.ValidationError) as error:
        sentence = f"node {place.node_rank}: {run.spec_file} cannot be read: {error!r}"
        print(sentence, file=sys.stderr)
        run.write_verdict(
            failure.without_rank("launch", sentence, time_s=time.time(), node=place.node_rank)
        )
        return EXIT_FAILED
    requeuer = load_requeuer(str(spec.scheduler))
    agent = Agent(run, job, plan, place, requeuer)
    agent.run_to_end()
    verdict = run.read_verdict() or agent.verdict
    return verdict.exit_code_of_run if verdict else EXIT_FAILED
