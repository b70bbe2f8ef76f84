"""Waiting for something to come true, with a limit."""

import time

import pytest

LIMIT_S = 90.0


def wait_for(condition, limit_s=LIMIT_S, *, told=lambda: ""):
    """Return what the condition does, once that is true; after the limit, fail and say `told`."""
    deadline_s = time.monotonic() + limit_s
    begin_s = time.monotonic()
    while not (value := condition()):
        if time.monotonic() > deadline_s:
            pytest.fail(f"did not come true within {limit_s} s\n{told()}")
        # To look takes the CPU from what is waited for.
        time.sleep(min(1.0, max(0.005, 2 * (time.monotonic() - begin_s))))
        begin_s = time.monotonic()
    return value
