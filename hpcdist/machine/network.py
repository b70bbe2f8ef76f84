"""The addresses and interfaces of this host: by which one the others can reach it.

A cluster's nodes have several interfaces (Ethernet, InfiniBand, a bridge for containers that has
the same address on every node), and names that resolve to loopback or not at all. So node 0 offers
all its addresses, best first, and the others take the first that answers.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Sequence

import msgspec

from hpcdist.machine.process import boot_id

_VIRTUAL = re.compile(r"docker|virbr|veth|br-|cni|flannel|podman|lxc|tun|tap")
"""Interfaces of containers and virtual machines: on other nodes their addresses mean others."""


NO_INTERFACE = "there is no interface"
"""Begins the message of NoSuchInterfaceError."""


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """One address of this host."""

    ip: str
    interface: str

    @property
    def is_loopback(self) -> bool:
        """It means the asking host itself, wherever it is asked for."""
        return ipaddress.ip_address(self.ip).is_loopback


class NoSuchInterfaceError(Exception):
    """The interface that was asked for is not there, or has no address."""


def offered_addresses(node_name: str, interface: str | None) -> list[Address]:
    """Addresses by which other nodes may reach this one, best first.

    That of the node's name comes first, then physical interfaces, then virtual ones; with
    `interface`, only its own. Raises NoSuchInterfaceError.
    """
    if interface is not None:
        return _addresses_of(interface)
    found = local_addresses()
    named = _resolve(node_name)
    own = {address.ip for address in found}
    loopback = [
        Address(ip=ip, interface=loopback_interface())
        for ip in named
        if ip not in own and ipaddress.ip_address(ip).is_loopback  # all of 127.0.0.0/8 is local
    ]
    ordered = sorted(found, key=lambda address: _preference(address, named))
    return [*loopback, *ordered]


def require_interface(interface: str | None) -> None:
    """Raise NoSuchInterfaceError where an interface that the user named is not here."""
    if interface is not None:
        _addresses_of(interface)


def local_addresses() -> list[Address]:
    """All addresses of interfaces that are up; IPv6 ones that need a scope are left out."""
    import psutil

    is_up = {name: stats.isup for name, stats in psutil.net_if_stats().items()}
    return [
        Address(ip=address.address, interface=name)
        for name, addresses in psutil.net_if_addrs().items()
        if is_up.get(name, True)
        for address in addresses
        if address.family in {socket.AF_INET, socket.AF_INET6} and "%" not in address.address
    ]


def interface_of(ip: str) -> str | None:
    """The interface that has an address; None where none has."""
    if ipaddress.ip_address(ip).is_loopback:
        return loopback_interface()
    return next((address.interface for address in local_addresses() if address.ip == ip), None)


def loopback_interface() -> str:
    """Name of the loopback interface: lo, on all but exotic systems."""
    return next((address.interface for address in local_addresses() if address.is_loopback), "lo")


def network_key() -> str:
    """Equal for two processes if and only if loopback leads from one to the other."""
    return f"{boot_id()} {os.readlink('/proc/self/ns/net')}"


def _addresses_of(interface: str) -> list[Address]:
    found = local_addresses()
    chosen = [address for address in found if address.interface == interface]
    if not chosen:
        names = ", ".join(sorted({address.interface for address in found}))
        raise NoSuchInterfaceError(f"{NO_INTERFACE} {interface} with an address; there are {names}")
    return chosen


def _preference(address: Address, named: Sequence[str]) -> tuple[bool, bool, bool, bool]:
    return (
        address.is_loopback,
        address.ip not in named,
        bool(_VIRTUAL.match(address.interface)),
        ":" in address.ip,
    )


def _resolve(name: str) -> list[str]:
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))
