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
    """Return the addresses by which other nodes may reach this one, best first.

    That of the node's name comes first, then physical interfaces, then virtual ones; with
    `interface`, only its own. Raises NoSuchInterfaceError.
    """
    if interface is not None:
        return _addresses_of(interface)
    found = local_addresses()
    own = {address.ip for address in found}
    try:
        answers = socket.getaddrinfo(node_name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        answers = []
    named = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
    loopback = [
        Address(ip=ip, interface=loopback_interface())
        for ip in named
        if ip not in own and ipaddress.ip_address(ip).is_loopback  # all of 127.0.0.0/8 is local
    ]

    def drawback(address: Address) -> tuple[bool, bool, bool, bool]:
        is_virtual = bool(_VIRTUAL.match(address.interface))
        return (address.is_loopback, address.ip not in named, is_virtual, ":" in address.ip)

    return [*loopback, *sorted(found, key=drawback)]


def require_interface(interface: str | None) -> None:
    """Raise NoSuchInterfaceError where an interface that the user named is not here."""
    if interface is not None:
        _addresses_of(interface)


def local_addresses() -> list[Address]:
    """Return all addresses of interfaces that are up, but for IPv6 ones that need a scope."""
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
    if ipaddress.ip_address(ip).is_loopback:
        return loopback_interface()
    return next((address.interface for address in local_addresses() if address.ip == ip), None)


def loopback_interface() -> str:
    """Return the name of the loopback interface: lo, on all but exotic systems."""
    return next((address.interface for address in local_addresses() if address.is_loopback), "lo")


def network_key() -> str:
    """Return what is equal for two processes where loopback leads from one to the other."""
    return f"{boot_id()} {os.readlink('/proc/self/ns/net')}"


def _addresses_of(interface: str) -> list[Address]:
    found = local_addresses()
    chosen = [address for address in found if address.interface == interface]
    if not chosen:
        names = ", ".join(sorted({address.interface for address in found}))
        raise NoSuchInterfaceError(f"{NO_INTERFACE} {interface} with an address; there are {names}")
    return chosen
