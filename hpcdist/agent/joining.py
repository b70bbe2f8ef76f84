"""The way of an agent to the leader: it finds the meeting, and proves that it is of the run."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from hpcdist.agent.handshake import StrangerError, prove_to_leader
from hpcdist.agent.leader import Era, MeetingPlace
from hpcdist.agent.messages import (
    TO_AGENT,
    WELCOME,
    Beat,
    Channel,
    ChannelClosedError,
    Hello,
    ToAgent,
)
from hpcdist.agent.node import DisagreementError
from hpcdist.base import files
from hpcdist.base.version import __version__
from hpcdist.machine.network import network_key
from hpcdist.runs.run import Run
from hpcdist.schedulers.base import Rendezvous

_SHORTEST_POLL_S = 0.02
_LONGEST_POLL_S = 1.0
_POLL_SHARE = 0.05
"""Share of the time that an agent has waited: it hears of node 0 so much later at most."""
_MOST_POLLS_PER_S = 2000
"""Limit for all nodes together: their file server has other things to do."""
_CONNECT_TIMEOUT_S = 3.0


class NotReachedError(Exception):
    """Node 0's agent could not be reached in time; the message says what was found instead."""


class Joined(NamedTuple):
    """A connection to node 0's agent."""

    channel: Channel[ToAgent | Beat]
    clock_offset_s: float
    """Seconds to add to this host's clock for node 0's."""
    address: str
    """The address of node 0 that answered."""
    source: str
    """This host's own address on the way there."""


class _OtherLifeError(Exception):
    """The meeting is of another life of the job; the message says which."""


class OvertakenError(Exception):
    """A later life of the job has begun; the message says which."""


def join_meeting(
    run: Run,
    *,
    node_rank: int,
    num_nodes: int,
    source: str | None,
    timeout_s: float,
    give_up: Callable[[], bool],
    rendezvous: Rendezvous | None = None,
    era: Era | None = None,
) -> Joined | None:
    """Connect to node 0's agent; the caller's first message is Join.

    None where `give_up` says that the run is over. An old file, of an agent that is gone or of
    another life of the job, is read again until it names one that answers. Raises NotReachedError
    where none does in time, DisagreementError where node 0 is there, and this one cannot take part
    with it, and OvertakenError where this one is of a life that is over.
    """
    hello = Hello(
        node=node_rank,
        version=__version__,
        life=era.life if era else None,
        attempt=era.attempt if era else None,
    )
    begin_s = time.monotonic()
    while not give_up():
        troubles = []
        try:
            place = _read_place(run) if rendezvous is None else _place_of(rendezvous)
            check_life(place.life, hello.life)
            for address in usable_addresses(place):
                try:
                    return _join(place, address, hello, source=source)
                except (OSError, StrangerError, ChannelClosedError) as error:
                    reason = getattr(error, "strerror", None) or error
                    troubles.append(f"at {address} port {place.port}: {reason}")
        except _OtherLifeError as error:
            troubles.append(str(error))
        except FileNotFoundError:
            troubles.append(f"there is no {run.meeting_file} yet")
        except OSError as error:  # it is not ours
            troubles.append(str(error))
        except ValueError as error:
            troubles.append(f"{run.meeting_file} is damaged: {error}")
        waited_s = time.monotonic() - begin_s
        if waited_s >= timeout_s:
            raise NotReachedError(
                f"could not reach the agent of node 0 within {timeout_s:g} s; {'; '.join(troubles)}"
            )
        time.sleep(min(poll_s(waited_s, num_nodes), timeout_s - waited_s))
    return None


def poll_s(waited_s: float, num_nodes: int) -> float:
    """Return how long an agent that has waited so long for node 0 waits until it looks again."""
    shortest_s = min(max(_SHORTEST_POLL_S, num_nodes / _MOST_POLLS_PER_S), _LONGEST_POLL_S)
    return min(max(shortest_s, waited_s * _POLL_SHARE), _LONGEST_POLL_S)


def _place_of(rendezvous: Rendezvous) -> MeetingPlace:
    return MeetingPlace(
        addresses=[rendezvous.address],
        network=network_key(),  # whoever named it names no loopback
        port=rendezvous.port,
        secret=rendezvous.secret,
    )


def _read_place(run: Run) -> MeetingPlace:
    files.refresh(run.launch_folder)
    with files.open_private(run.meeting_file) as file:
        return msgspec.json.decode(file.read(), type=MeetingPlace)


def usable_addresses(place: MeetingPlace) -> list[str]:
    """Return the addresses of node 0 that mean node 0 here too: not loopback, but on the same host.

    Raises DisagreementError where none is left.
    """
    if place.network == network_key():
        return place.addresses
    usable = [ip for ip in place.addresses if not ipaddress.ip_address(ip).is_loopback]
    if not usable:
        raise DisagreementError(
            f"node 0 offers {', '.join(place.addresses)}, which other nodes cannot reach: its name "
            "resolves to loopback, and it has no other interface"
        )
    return usable


def check_life(theirs: int | None, own: int | None) -> None:
    """Raise _OtherLifeError where node 0's agent is of a former life of the job, and OvertakenError
    where it is of a later one."""
    if theirs is None or own is None or theirs == own:
        return
    if theirs < own:
        raise _OtherLifeError(
            f"its agent of start {theirs + 1} of the job is still there, and this is start "
            f"{own + 1}"
        )
    raise OvertakenError(f"start {theirs + 1} of the job has begun, and this is start {own + 1}")


def _join(place: MeetingPlace, address: str, hello: Hello, *, source: str | None) -> Joined:
    """Raise OSError, StrangerError or ChannelClosedError where it is not node 0's agent that
    answers, _OtherLifeError or OvertakenError where it is that of another life, and
    DisagreementError where it is of another version."""
    with contextlib.ExitStack() as on_failure:
        connection = on_failure.enter_context(
            socket.create_connection(
                (address, place.port),
                timeout=_CONNECT_TIMEOUT_S,
                source_address=(source, 0) if source else None,
            )
        )
        prove_to_leader(connection, bytes.fromhex(place.secret))
        channel = Channel(connection, WELCOME)
        sent_s = time.time()
        channel.send(hello)
        while not (answers := channel.receive()):
            pass
        (answer, *_) = answers
        if answer.version != __version__:
            raise DisagreementError(
                f"this node has hpcdist {__version__}, node 0 has {answer.version}: all nodes of a "
                "run must have the same"
            )
        if answer.time_s is None:
            check_life(answer.life, hello.life)
            raise _OtherLifeError(
                f"its agent knows attempt {answer.attempt}, and there is attempt {hello.attempt} "
                "already"
            )
        offset_s = answer.time_s - (sent_s + time.time()) / 2
        own_address = str(connection.getsockname()[0])
        on_failure.pop_all()
    return Joined(channel.expect(TO_AGENT), offset_s, address, own_address)
