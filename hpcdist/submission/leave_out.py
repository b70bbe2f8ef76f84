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
    """Return the profile with the nodes that this submission leaves out, and a note that says which
    and why. Where a ledger cannot be read, the note says that: it is no clean record."""
    if not (scheduler.has_queue and scheduler.shares_files):
        return cluster
    profile, notes = cluster.profile, list(cluster.notes)
    try:
        found = nodes.suspects(nodes.read(nodes.ledgers(profile.nodes_ledger)), time.time())
    except (OSError, ValueError) as error:
        notes.append(f"which nodes have failed before is not known: {error}")
        return replace(cluster, notes=notes)
    hosts: Sequence[str] | None = None
    try:
        hosts = scheduler.list_hosts(profile) if found else ()
    except SchedulerError as error:
        why = f"how many nodes the partition has is not known: {error.message}"
        notes.append(f"{why}, so one is left out at most")
    left_out, title = nodes.to_leave_out(found, hosts), scheduler.title
    for host, events in left_out.items():
        did = ", ".join(dict.fromkeys(event.words for event in events[-2:]))
        if scheduler.leaves_out_nodes:
            forget = f"hpcdist cluster nodes --forget {host} takes it again"
            notes.append(f"{host} is left out: it {did}; {forget}")
        else:
            notes.append(f"{host} {did}, and {title} cannot leave out a node: tell the site")
    names = list(left_out) if scheduler.leaves_out_nodes else []
    return replace(cluster, notes=notes, left_out=names)
