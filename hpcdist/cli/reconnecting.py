"""Commands at a host, over as many connections as it takes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from hpcdist.base.errors import SchedulerError
from hpcdist.cli.printing import note, say
from hpcdist.remote.bring import Where
from hpcdist.remote.call import Output, call
from hpcdist.remote.ssh import Connection, ConnectionLostError
from hpcdist.remote.wire import Call, WireError
from hpcdist.runs.snapshot import SnapshotPlan

WAITS_S = (1, 2, 4, 8, 15, *[30] * 15)
"""Between the attempts to connect again."""
LASTED_S = 60.0
"""After a connection that lasted so long, attempts are counted anew."""


class Shown:
    """The lines of each log that were shown, for a log that goes on where it was."""

    def __init__(self) -> None:
        self._lines: dict[str, int] = {}

    def take(self, value: dict[str, Any]) -> None:
        """Take what the host tells."""
        with suppress(msgspec.ValidationError):
            self._lines.update(msgspec.convert(value.get("shown", {}), dict[str, int]))

    def resumed(self, request: Call) -> Call:
        """Return the request, for the log to go on behind these lines."""
        if not self._lines:
            return request
        verb, *words = request.argv
        argv = [verb, f"--shown={json.dumps(self._lines)}", *words]
        return msgspec.structs.replace(request, argv=argv)


def call_at(
    where: Where,
    request: Call | Callable[[], Call],
    output: Output | None = None,
    *,
    tree: SnapshotPlan | None = None,
    again: bool = False,
) -> int:
    """Run a command at a host; `again` connects and runs it anew where the connection breaks."""
    output = output or Output()
    waits = iter(WAITS_S if again else ())
    has_begun = False
    while True:
        begun_s = time.monotonic()
        try:
            with Connection(where.host) as connection:
                if (said := connection.greet()) and not has_begun:
                    note(said)
                if has_begun:
                    say(f"connected to {where.host.name} again")
                has_begun = True
                asked = request() if callable(request) else request
                return call(connection, asked, output, tree=tree)
        except SchedulerError as error:
            if time.monotonic() - begun_s > LASTED_S:
                waits = iter(WAITS_S if again else ())
            wait_s = next(waits, None)
            if not has_begun or wait_s is None or isinstance(error, WireError):
                raise
            output.forget()
            is_lost = isinstance(error, ConnectionLostError)
            if is_lost:
                say(f"{error.message}; connecting again")
            time.sleep(wait_s)


def follow_log(where: Where, request: Call) -> int:
    """Follow a log, over as many connections as it takes: no line is shown twice."""
    shown = Shown()
    output = Output(told=shown.take, holds=True)
    return call_at(where, lambda: shown.resumed(request), output, again=True)
