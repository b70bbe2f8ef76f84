"""Ports: held from the probe on, and not the kernel's own."""

import pytest

from hpcdist.machine import ports


def test_ports_stay_out_of_the_ephemeral_range(monkeypatch):
    monkeypatch.setattr(ports, "_ephemeral_range", lambda: (20_500, 60_000))
    chosen = ports.candidate_ports(None)
    assert len(chosen) == len(set(chosen)) == 500
    assert set(chosen) <= set(range(20_000, 20_500))


def test_a_port_is_held_from_the_probe_on_and_a_full_range_is_told():
    with ports.listen("127.0.0.1", (21_300, 21_340)) as held:
        port = held.getsockname()[1]
        with pytest.raises(ports.NoFreePortError, match=f"no port from {port} to {port} is free"):
            ports.listen("127.0.0.1", (port, port))
        ports.listen("127.0.0.2", (port, port)).close()
    ports.listen("127.0.0.1", (port, port)).close()
