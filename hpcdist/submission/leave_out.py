"""The nodes that a submission leaves out, because runs have failed on them again and again."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec.structs import replace

from hpcdist.base.errors import SchedulerError
from hpcdist.cluster.load import LoadedProfile
from hpcdist.runs import nodes
from hpcdist.schedulers.base import Scheduler


def leave_out_nodes(scheduler: Scheduler, cluster: LoadedProfile) -> LoadedProfile:
    """Return the profile with the nodes that are to be left out, and a note that says which and
    why. Where a ledger cannot be read, the note says that: it is no clean record."""
    if not scheduler.leaves_out_nodes:
        return cluster
    profile = cluster.profile
    try:
        ledgers = nodes.ledgers(profile.nodes_ledger)
        found = nodes.suspects(nodes.read(ledgers), time.time())
    except (OSError, ValueError) as error:
        return _with_notes(cluster, [f"which nodes have failed before is not known: {error}"])
    if not found:
        return cluster
    try:
        hosts: Sequence[str] | None = scheduler.list_hosts(profile)
    except SchedulerError as error:
        note = f"how many nodes the partition has is not known, so one is left out: {error.message}"
        hosts, cluster = None, _with_notes(cluster, [note])
    left_out = nodes.to_leave_out(found, hosts)
    notes = [
        f"{host} is left out: it {', '.join(dict.fromkeys(one.words for one in events[-2:]))}; "
        f"hpcdist cluster nodes --forget {host} takes it again"
        for host, events in left_out.items()
    ]
    exclude = [*dict.fromkeys([*profile.exclude, *left_out])]
    return _with_notes(replace(cluster, profile=replace(profile, exclude=exclude)), notes)


def _with_notes(cluster: LoadedProfile, notes: Sequence[str]) -> LoadedProfile:
    return replace(cluster, notes=[*cluster.notes, *notes])
