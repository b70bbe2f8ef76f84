"""Ports for the agents and the store: never a constant, never one the kernel hands out itself."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

_DEFAULT_RANGE = (20_000, 29_999)
_MOST_TRIES = 1_000
_BACKLOG = 1_024


class NoFreePortError(OSError):
    """Every port of the range is taken."""


def candidate_ports(port_range: tuple[int, int] | None) -> list[int]:
    """Return ports to try, in random order, so that two jobs on one node seldom try the same.

    Ports of the kernel's ephemeral range are left out, since any outgoing connection of any process
    may take them at any moment: unless the user names the range, or the kernel's holds all of ours,
    as some sites set it; then those are tried, and held from the probe on.
    """
    first, last = port_range or _DEFAULT_RANGE
    ports = list(range(first, last + 1))
    if port_range is None:
        low, high = _ephemeral_range()
        ports = [port for port in ports if not low <= port <= high] or ports
    return random.sample(ports, min(_MOST_TRIES, len(ports)))


def listen(address: str, port_range: tuple[int, int] | None) -> socket.socket:
    """Return a socket listening on a free port, held from the probe on; raises NoFreePortError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in candidate_ports(port_range):
        # create_server reuses the port of a run that ended a moment ago; Linux still refuses one on
        # which somebody listens.
        with contextlib.suppress(OSError):
            return socket.create_server((address, port), family=family, backlog=_BACKLOG)
    first, last = port_range or _DEFAULT_RANGE
    raise NoFreePortError(f"no port from {first} to {last} is free on {address or 'this host'}")


def _ephemeral_range() -> tuple[int, int]:
    low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return int(low), int(high)


def local_addresses() -> Iterator[str]:
    """Return loopback addresses for simulated nodes: 127.0.0.1, 127.0.0.2 and so on."""
    return (f"127.0.{number >> 8}.{number & 255}" for number in range(1, 1 << 16))
