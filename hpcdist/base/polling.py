"""Looking again and again until there is something to see: the one loop that waits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

_Value = TypeVar("_Value")


def poll(
    look: Callable[[], _Value | None], *, interval_s: float, limit_s: float | None
) -> _Value | None:
    """Call `look` every `interval_s` seconds and return the first value that is not None.

    Returns None once `limit_s` seconds have passed; None: it goes on. What `look` raises
    ends the waiting.
    """
    deadline_s = math.inf if limit_s is None else time.monotonic() + limit_s
    while (value := look()) is None:
        if time.monotonic() >= deadline_s:
            return None
        time.sleep(interval_s)
    return value
