"""The ledger of nodes: what went wrong on which, by the verdicts of the user's runs, so that the
next submission leaves out a node that has failed twice.

It is a file of lines that are only ever added to, in the user's home: agents of all runs write it,
one line at a time. A group may have one in common, which is read and not written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from hpcdist.base import files
from hpcdist.runs.verdict import UnixTime, Verdict

DAYS = 7
"""What is older does not count."""
_LEAST_RUNS = 2
"""A node is left out after so many runs: one may have had bad luck, or a fault of its own."""
_MOST_SHARE = 0.05
"""At most this share of a partition's nodes is left out, and one where it has fewer."""
_MOST_BYTES = 10_000_000
_KINDS = {
    "agent_lost": "was lost",
    "launch": "could start nothing",
    "preflight": "failed the preflight",
    "gpu": "had a fault of a GPU",
    "slow": "was slower than the others",
    "pin": "is left out by hand",
    "forget": "was taken again by hand",
}
"""Kind of an event -> what the node did."""

Kind = Literal["agent_lost", "launch", "preflight", "gpu", "slow"]
_Host = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,200}\Z")]
"""It stands in scripts."""


class NodeEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the ledger."""

    time_s: UnixTime
    host: _Host
    kind: Literal[Kind, "pin", "forget"]
    """forget: what came before does not count."""
    run: str = ""
    """Id of the run; empty: the user said so."""
    figure: str = ""
    """The measurement that showed it."""

    @property
    def words(self) -> str:
        where = f" in {self.run}" if self.run else ""
        return _KINDS[self.kind] + where + (f" ({self.figure})" if self.figure else "")


def ledger_file() -> Path:
    """Return the user's ledger: $XDG_DATA_HOME/hpcdist/nodes.jsonl, or in ~/.local/share."""
    base = os.environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.local/share")
    return Path(base, "hpcdist", "nodes.jsonl")


def ledgers(shared: str | None) -> list[Path]:
    """Return the user's ledger, and that of a group, where a profile names one."""
    return [ledger_file(), *([Path(os.path.expanduser(shared))] if shared else [])]


def write(event: NodeEvent) -> None:
    """Add a line to the user's ledger. Raises OSError."""
    path = ledger_file()
    path.parent.mkdir(mode=files.PRIVATE_FOLDER, parents=True, exist_ok=True)
    with open(files.open_to_append(path), "ab", buffering=0) as file:
        file.write(msgspec.json.encode(event) + b"\n")


def note(kind: Kind, host: str | None, run: str, figure: str = "") -> None:
    """Add what a node did in a run; a home that is full, or none, ends no run."""
    with suppress(OSError, msgspec.ValidationError):
        event = {"time_s": time.time(), "host": host, "kind": kind, "run": run, "figure": figure}
        write(msgspec.convert(event, NodeEvent))


def note_verdict(run: str, verdict: Verdict) -> None:
    """Add the node that a verdict blames. Exceptions of the program blame none, nor do ranks that
    ended because of others."""
    if verdict.kind == "agent_lost":
        note("agent_lost", verdict.host, run)
    elif verdict.try_elsewhere and not verdict.left_out:
        note("launch", verdict.host, run)


def read(paths: Iterable[Path]) -> list[NodeEvent]:
    """Return the events of ledgers, oldest first; lines that are none are left out, for others may
    have written them, and what others pinned and forgot. Raises OSError where one cannot be read
    that is there."""
    events, latest_s = list[NodeEvent](), time.time() + 3600
    for path in paths:
        is_own = path == ledger_file()
        with suppress(FileNotFoundError):
            for line in files.read_bytes(path, most_bytes=_MOST_BYTES).splitlines():
                with suppress(msgspec.DecodeError):
                    event = msgspec.json.decode(line, type=NodeEvent)
                    counts = is_own or event.kind not in ("pin", "forget")
                    events += [event] if counts and event.time_s < latest_s else []
    return sorted(events, key=lambda event: event.time_s)


def suspects(events: Iterable[NodeEvent], now_s: float) -> dict[str, list[NodeEvent]]:
    """Return by host what counts against it: what happened in several runs within the last days,
    or that the user wants it left out. Those with the newest events come first."""
    found: dict[str, list[NodeEvent]] = {}
    for event in events:
        if event.kind == "forget":
            found.pop(event.host, None)
        elif event.kind == "pin" or event.time_s > now_s - DAYS * 86400:
            found.setdefault(event.host, []).append(event)
    counted = [
        (host, theirs)
        for host, theirs in found.items()
        if len({event.run for event in theirs}) >= _LEAST_RUNS
        or any(e.kind == "pin" for e in theirs)
    ]
    return dict(sorted(counted, key=lambda item: -item[1][-1].time_s))


def to_leave_out(
    found: dict[str, list[NodeEvent]], hosts: Sequence[str] | None
) -> dict[str, list[NodeEvent]]:
    """Return those of the suspects that a submission leaves out, of the hosts of its partition;
    None: these are not known. A pinned one always, and others as long as few are."""
    there = {host: e for host, e in found.items() if hosts is None or host in hosts}
    pinned = {host: e for host, e in there.items() if any(one.kind == "pin" for one in e)}
    most = max(1, int(_MOST_SHARE * len(hosts or [])))
    return pinned | dict(list(there.items())[:most])
