"""Findings from the evidence that the doctor's job left; pure.

Each check is proven by what the job wrote. The first that is not is where the job failed, and gets
the reason; of what would have come after it nothing is known.
"""

from __future__ import annotations

import ipaddress
import re

from hpcdist.base.text import number_of, show_bytes
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.doctor.trial import Evidence
from hpcdist.machine.network import NO_INTERFACE
from hpcdist.monitor.states import SETUP_MARK
from hpcdist.schedulers.base import Finding, Scheduler, failed, passed, skipped
from hpcdist.schedulers.notes import Note

_HOST_SCRIPT = re.compile(r"_host\.sh\b")
"""The script that a node's shell is given, from the run directory."""
_OF_BASH = re.compile(r"^/\S+: (line \d+: .+)")
_OF_LAUNCHER = re.compile(r"\w+: error:")
_ADVICE = {
    "interpreter": "see the logs; the key python of the cluster profile names the interpreter",
    "GPUs": "see the node's driver with nvidia-smi or rocm-smi, and gpu_request and gpu_type",
    "port": "a firewall between the nodes may close the ports; try --set launch.port_range=[A,B], "
    "or another network with the key interface of the profile",
    "interface": "name an interface that all nodes have with the key interface of the profile",
    "collective": "see the logs of the ranks; the key interface of the profile chooses the network",
}


def judge(
    evidence: Evidence,
    cluster: ClusterProfile,
    *,
    asks_for_gpus: bool,
    launcher_advice: str = Scheduler.launcher_advice,
) -> list[Finding]:
    """Return one finding per check, in the order in which a job meets what they check;
    `launcher_advice` is the scheduler's."""
    checks: dict[str, Finding | None] = {
        "shared folder": _folder(evidence),
        "setup lines": _setup(evidence, cluster),
        "container": _container(evidence),
        "interpreter": _interpreter(evidence),
        "GPUs": _gpus(evidence, cluster, asks_for_gpus=asks_for_gpus),
        "interface": _interface(evidence, cluster),
        "port": _port(evidence),
        "collective": _collective(evidence),
    }
    found = [
        failed(
            "launcher",
            f"nothing can be started on node {first.node} (host {first.host}): {first.said}",
            launcher_advice,
        )
        for first in _unlaunched(evidence)[:1]
    ]
    for name, finding in checks.items():
        is_explained = any(one.state == "FAIL" for one in found)
        unproven = failed(name, evidence.reason, _ADVICE.get(name, ""))
        found.append(finding or (skipped(name, "not reached") if is_explained else unproven))
    return found


def _unlaunched(evidence: Evidence) -> list[Note]:
    """Return the hosts that the command which starts something on them did not reach."""
    seen = {one.node for one in evidence.nodes}
    lost = [note for note in evidence.notes if note.is_host_lost or "cannot be run:" in note.said]
    return [note for note in lost if note.node not in seen]


def _blind(evidence: Evidence) -> dict[int, Note]:
    """Return the nodes whose shell could not read the script that is in the run directory."""
    return {note.node: note for note in evidence.notes if _HOST_SCRIPT.search(note.said)}


def _silent_nodes(evidence: Evidence) -> list[int]:
    """Return the nodes that have written nothing themselves: the log of a node counts where there
    is something in it, for the first node may have opened it."""
    wrote = {seen.node for seen in evidence.nodes} | evidence.ended
    wrote |= {node for node, lines in evidence.logs.items() if lines} - _blind(evidence).keys()
    wrote -= {note.node for note in _unlaunched(evidence)}
    return [node for node in range(evidence.num_nodes) if node not in wrote]


def _folder(evidence: Evidence) -> Finding | None:
    """Judge the folder: a node has seen it where it has written something there."""
    name = "shared folder"
    missing, blind = _silent_nodes(evidence), _blind(evidence)
    for place in evidence.places:
        if place["token"] != evidence.run_id:
            said = f"{place['host']} reads another run's files there, {place['token']}"
            advice = "the folder is not the same on all nodes: name another with --runs"
            return failed(name, said, advice)
    if not missing:
        return passed(name, f"{evidence.all_nodes} read it, and what they wrote is here")
    if _unlaunched(evidence) and not blind:
        return None
    why = blind[missing[0]].said if missing[0] in blind else evidence.reason
    return failed(
        name,
        f"nothing that node {', '.join(map(str, missing))} wrote is here: {why}",
        "name a folder that the nodes see, too, with --runs or HPCDIST_RUNS, and submit from one: "
        "they go to the current directory",
    )


def _setup(evidence: Evidence, cluster: ClusterProfile) -> Finding | None:
    name = "setup lines"
    if not cluster.setup:
        return skipped(name, "the cluster profile has none")
    lines = [line for lines in evidence.logs.values() for line in lines]
    problems = [line for line in lines if line.startswith(SETUP_MARK)]
    if problems:
        # What bash itself said of the script, without the path of the scheduler's copy.
        first = next((f" ({found[1]})" for line in lines if (found := _OF_BASH.search(line))), "")
        return failed(
            name,
            "; ".join(line.removeprefix(SETUP_MARK) for line in problems) + first,
            "change the key setup of the cluster profile; try its lines in a shell on a node",
        )
    return passed(name, "ran without an error") if evidence.nodes else None


def _container(evidence: Evidence) -> Finding | None:
    """Judge the image by what ranks wrote inside."""
    name, used = "container", evidence.container
    if used is None:
        return skipped(name, "the job is in no image")
    if len(evidence.places) < evidence.num_ranks:
        return failed(name, evidence.reason, "see docs/containers.md for what an image must have")
    done = f"starts on {evidence.all_nodes}, writes the run directory"
    return passed(name, f"{used.described} by {used.runtime}: {done}")


def _interpreter(evidence: Evidence) -> Finding | None:
    name, agents = "interpreter", {seen.node for seen in evidence.nodes}
    silent = set(_silent_nodes(evidence))
    for node in evidence.logs.keys() - agents - evidence.ended - silent:
        lines = [line.strip() for line in evidence.logs[node] if not _OF_LAUNCHER.match(line)]
        last = next(filter(None, reversed(lines)), evidence.reason)
        return failed(
            name,
            f"it does not start on node {node}: {last}",
            "the key python of the cluster profile must name, on the nodes, a Python that has "
            "hpcdist; setup lines can make it ready",
        )
    if not evidence.places and (not agents or silent):
        return None
    if not evidence.places:
        # Then torch could not be imported, or something before the ranks went wrong.
        why, first = evidence.verdict.message, evidence.verdict.first
        kind = None if first is None else first.report.exception
        if "import" in why or kind in {"ModuleNotFoundError", "ImportError"}:
            return failed(name, why, "install what is missing, where the job runs")
        return passed(name, f"it starts, and hpcdist is there, on {evidence.all_nodes}")
    return _versions(evidence)


def _versions(evidence: Evidence) -> Finding:
    name, here, places = "interpreter", evidence.versions, evidence.places
    for place in places:
        if (theirs := place["versions"]["hpcdist"]) != here["hpcdist"]:
            said = f"{place['host']} has hpcdist {theirs}, this machine {here['hpcdist']}"
            advice = "install the same version in both; the key python names the interpreter"
            return failed(name, said, advice)
    torches = sorted({str(place["versions"]["torch"]) for place in places})
    if len(torches) > 1:
        said = f"the nodes have different versions of torch: {', '.join(torches)}"
        return failed(name, said, "have one environment that all nodes see")
    python = places[0]["versions"]["python"]
    return passed(name, f"Python {python}, hpcdist {here['hpcdist']} as here, torch {torches[0]}")


def _gpus(evidence: Evidence, cluster: ClusterProfile, *, asks_for_gpus: bool) -> Finding | None:
    name = "GPUs"
    per_node = evidence.ranks_per_node
    if not asks_for_gpus:
        why = "gpu_request is none" if cluster.gpu_request == "none" else "no GPU, or device=cpu"
        return skipped(name, f"{number_of(per_node, 'rank')} per node on CPUs: {why}")
    devices = [seen for seen in evidence.nodes if seen.device is not None]
    if len(devices) < evidence.num_nodes:
        return None
    if without := [seen.host for seen in devices if seen.device != "cuda"]:
        return failed(
            name,
            f"{per_node} per node were asked for, and NVML shows none on {', '.join(without)}",
            "see the node's driver with nvidia-smi; the keys gpu_request and gpu_type say how GPUs "
            "are asked for; --set launch.device=cpu checks without them",
        )
    return passed(name, f"{per_node} per node asked for, and NVML shows them, each once")


def _interface(evidence: Evidence, cluster: ClusterProfile) -> Finding | None:
    name = "interface"
    offers = next((seen.offers for seen in evidence.nodes if seen.node == 0), [])
    reached = [seen for seen in evidence.nodes if seen.master_addr is not None]
    is_out_of_reach = len(reached) < evidence.num_nodes and all(
        ipaddress.ip_address(one).is_loopback for one in offers
    )
    if NO_INTERFACE in evidence.verdict.message or (offers and is_out_of_reach):
        return failed(name, evidence.reason, _ADVICE[name])
    chosen = list(dict.fromkeys(seen.interface for seen in reached))
    if chosen and evidence.places:
        is_given = cluster.interface in chosen
        why = "as the profile says" if is_given else "node 0 is reached through it"
        return passed(name, f"{' and '.join(map(str, chosen))}, {why}")
    return passed(name, f"node 0 offers {', '.join(offers)}") if offers else None


def _port(evidence: Evidence) -> Finding | None:
    name = "port"
    reached = [seen for seen in evidence.nodes if seen.master_addr is not None]
    if len(reached) < evidence.num_nodes or not evidence.places:
        return None
    environment = evidence.places[0]["environment"]
    where = f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
    if (others := evidence.num_nodes - 1) > 0:
        where += f" on node 0, reached from {number_of(others, 'node')}"
    return passed(name, where)


def _collective(evidence: Evidence) -> Finding | None:
    ranks = evidence.num_ranks
    if evidence.verdict.state != "done" or len(evidence.collectives) < ranks:
        return None
    times = evidence.collectives[0]
    said = (
        f"{ranks} ranks on {evidence.all_nodes}: process group {times['group_time_s']:.2f} s, "
        f"all-reduce of 1 MiB {times['all_reduce_time_s'] * 1e3:.1f} ms"
    )
    if bandwidth := times.get("bus_bytes_per_s"):  # one rank sends nothing
        said += f", bus bandwidth {show_bytes(bandwidth)}/s"
    return passed("collective", said)
