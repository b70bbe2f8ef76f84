"""Ports that no other cluster on this machine takes, held for as long as the process lives."""

import contextlib
import random
import socket

# Below the kernel's ephemeral range, and below the ports that hpcdist itself takes.
_FIRST, _LAST = 10_000, 19_999


class NoFreePortsError(RuntimeError):
    """Every block of ports is taken."""


def claim_ports(num_ports):
    """The first of so many free consecutive ports, and the claim, to be kept open.

    Two clusters that boot at once would both find the same ports free. So a block is claimed first, by
    a name that the kernel gives to one process only and takes back however that ends.
    """
    blocks = list(range(_FIRST, _LAST - num_ports, num_ports))
    for base in random.sample(blocks, len(blocks)):
        with contextlib.ExitStack() as kept:
            try:
                claim = kept.enter_context(_claim(base))
                _check_free(range(base, base + num_ports))
            except OSError:
                continue
            kept.pop_all()
            return base, claim
    raise NoFreePortsError(f"no {num_ports} ports in a row are free from {_FIRST} to {_LAST}")


def _claim(base):
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0hpcdist-test-cluster-{base}")
    except OSError:
        claim.close()
        raise
    return claim


def _check_free(ports):
    with contextlib.ExitStack() as opened:
        for port in ports:
            listener = opened.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("0.0.0.0", port))
