"""The addresses and interfaces of this host: by which one the others can reach it.

A cluster's nodes have several interfaces (Ethernet, InfiniBand, a bridge for containers that has
the same address on every node), and names that resolve to loopback or not at all. So node 0 offers
all its addresses, best first, and the others take the first that answers.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket

_VIRTUAL = re.compile(r"docker|virbr|veth|br-|cni|flannel|podman|lxc|tun|tap")
"""Interfaces of containers and virtual machines: on other nodes their addresses mean others."""
NO_INTERFACE = "there is no interface"
"""Begins the message of NoSuchInterfaceError."""


class NoSuchInterfaceError(Exception):
    """The interface that was asked for is not there, or has no address."""


def offered_addresses(node_name: str, interface: str | None) -> list[str]:
    """Return the addresses by which other nodes may reach this one, best first.

    That of the node's name comes first, then physical interfaces, then virtual ones; with
    `interface`, only its own. Raises NoSuchInterfaceError.
    """
    if chosen := require_interface(interface):
        return chosen
    found = local_addresses()
    named: list[str] = []
    with contextlib.suppress(OSError, UnicodeError):
        answers = socket.getaddrinfo(node_name, None, type=socket.SOCK_STREAM)
        named = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
    # All of 127.0.0.0/8 is local.
    loopback = [ip for ip in named if ip not in found and _is_loopback(ip)]

    def drawback(ip: str) -> tuple[bool, bool, bool, bool]:
        return (_is_loopback(ip), ip not in named, bool(_VIRTUAL.match(found[ip])), ":" in ip)

    return [*loopback, *sorted(found, key=drawback)]


def require_interface(interface: str | None) -> list[str]:
    """Return the addresses of an interface that the user named. Raises NoSuchInterfaceError."""
    found = local_addresses()
    chosen = [ip for ip, name in found.items() if name == interface]
    if interface is not None and not chosen:
        names = ", ".join(sorted({*found.values()}))
        raise NoSuchInterfaceError(f"{NO_INTERFACE} {interface} with an address; there are {names}")
    return chosen


def local_addresses() -> dict[str, str]:
    """Return the interface of each address, of interfaces that are up, but for IPv6 addresses that
    need a scope."""
    import psutil

    is_up = {name: stats.isup for name, stats in psutil.net_if_stats().items()}
    return {
        address.address: name
        for name, addresses in psutil.net_if_addrs().items()
        if is_up.get(name, True)
        for address in addresses
        if address.family in {socket.AF_INET, socket.AF_INET6} and "%" not in address.address
    }


def interface_of(ip: str) -> str | None:
    found = local_addresses()
    if not _is_loopback(ip):
        return found.get(ip)
    # Its name is lo on all but exotic systems.
    return next((name for own, name in found.items() if _is_loopback(own)), "lo")


def _is_loopback(ip: str) -> bool:
    """Return whether an address means the asking host itself, wherever it is asked for."""
    return ipaddress.ip_address(ip).is_loopback
