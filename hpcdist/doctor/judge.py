"""Findings from the evidence that the doctor's job left; pure.

Each check is proven by what the job wrote. The first that is not is where the job failed, and gets
the reason; of what would have come after it nothing is known.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable

from hpcdist.base.text import show_bytes
from hpcdist.cluster.profile import ClusterProfile
from hpcdist.doctor.trial import Evidence
from hpcdist.machine.network import NO_INTERFACE
from hpcdist.monitor.states import SETUP_MARK
from hpcdist.schedulers.base import Finding, Scheduler, failed, passed, skipped
from hpcdist.schedulers.notes import Note

_NO_LAUNCHER = "cannot be run:"
_HOST_SCRIPT = re.compile(r"_host\.sh\b")
"""The script that a node's shell is given, from the run directory."""
_OF_BASH = re.compile(r"(?:slurm_script|\.lsbatch/\S+): (.+)")


def judge(
    evidence: Evidence,
    cluster: ClusterProfile,
    *,
    asks_for_gpus: bool,
    launcher_advice: str = Scheduler.launcher_advice,
) -> list[Finding]:
    """Return one finding per check, in the order in which a job meets what they check;
    `launcher_advice` is the scheduler's."""
    checks: dict[str, Callable[[], Finding | None]] = {
        **(
            {"launcher": lambda: _launcher(evidence, launcher_advice)}
            if _unlaunched(evidence)
            else {}
        ),
        "shared folder": lambda: _folder(evidence),
        "setup lines": lambda: _setup(evidence, cluster),
        "container": lambda: _container(evidence),
        "interpreter": lambda: _interpreter(evidence),
        "GPUs": lambda: _gpus(evidence, asks_for_gpus=asks_for_gpus),
        "interface": lambda: _interface(evidence, cluster),
        "port": lambda: _port(evidence),
        "collective": lambda: _collective(evidence),
    }
    found: list[Finding] = []
    for name, check in checks.items():
        finding = check()
        if finding is None:
            is_explained = any(one.state == "FAIL" for one in found)
            finding = skipped(name, "not reached") if is_explained else _unproven(name, evidence)
        found.append(finding)
    return found


_ADVICE = {
    "interpreter": "see the logs; the key python of the cluster profile names the interpreter",
    "GPUs": "see the node's driver with nvidia-smi or rocm-smi, and gpu_request and gpu_type",
    "port": "a firewall between the nodes may close the ports; try --set launch.port_range=[A,B], "
    "or another network with the key interface of the profile",
    "interface": "name an interface that all nodes have with the key interface of the profile",
    "collective": "see the logs of the ranks; the key interface of the profile chooses the network",
}


def _unproven(name: str, evidence: Evidence) -> Finding:
    return failed(name, _reason(evidence), _ADVICE[name])


def _reason(evidence: Evidence) -> str:
    parts = (evidence.verdict.message, evidence.scheduler_says)
    return "; ".join(part for part in parts if part)


def _unlaunched(evidence: Evidence) -> list[Note]:
    """Return the hosts that the command which starts something on them did not reach."""
    seen = {one.node for one in evidence.nodes}
    return [
        note
        for note in evidence.notes
        if note.node not in seen and (note.is_host_lost or _NO_LAUNCHER in note.said)
    ]


def _launcher(evidence: Evidence, advice: str) -> Finding:
    """Tell why the command that starts agents on other hosts failed."""
    first = _unlaunched(evidence)[0]
    return failed(
        "launcher",
        f"nothing can be started on node {first.node} (host {first.host}): {first.said}",
        advice,
    )


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
    stale = [place for place in evidence.places if place["token"] != evidence.run_id]
    if stale:
        return failed(
            name,
            f"{stale[0]['host']} reads another run's files there, {stale[0]['token']}",
            "the folder is not the same on all nodes: name another with --runs",
        )
    if missing and not blind and _unlaunched(evidence):
        return None
    if not missing:
        return passed(name, f"{_nodes(evidence.num_nodes)} read it, and what they wrote is here")
    listed = ", ".join(map(str, missing))
    return failed(
        name,
        f"nothing that node {listed} wrote is here: "
        + (blind[missing[0]].said if missing[0] in blind else _reason(evidence)),
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
        said = "; ".join(line.removeprefix(SETUP_MARK) for line in problems)
        # What bash itself said of the script, without the path of the scheduler's copy.
        first = next((f" ({found[1]})" for line in lines if (found := _OF_BASH.search(line))), "")
        return failed(
            name,
            f"{said}{first}",
            "change the key setup of the cluster profile; try its lines in a shell on a node",
        )
    return passed(name, "ran without an error") if evidence.nodes else None


def _container(evidence: Evidence) -> Finding | None:
    """Judge the image by what ranks wrote inside, and by torch's CUDA beside the driver's."""
    name, used = "container", evidence.container
    if used is None:
        return skipped(name, "the job is in no image")
    if len(evidence.places) < evidence.num_nodes * evidence.ranks_per_node:
        return failed(name, _reason(evidence), "see docs/containers.md for what an image must have")
    cudas = (place["cuda"] for place in evidence.places if "cuda" in place)
    torch, driver = next(((one["torch"], one["driver"]) for one in cudas), (None, None))
    if torch and driver and _major(torch) > _major(driver):
        return failed(
            name,
            f"torch in {used.image} is for CUDA {torch}, and the nodes' driver supports {driver}",
            "take an image with an older CUDA, or ask for a newer driver",
        )
    runs_on = f", torch for CUDA {torch}, driver for {driver}" if torch and driver else ""
    done = f"starts on {_nodes(evidence.num_nodes)}, writes the run directory"
    return passed(name, f"{used.described} by {used.runtime}: {done}{runs_on}")


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def _interpreter(evidence: Evidence) -> Finding | None:
    name = "interpreter"
    agents = {seen.node for seen in evidence.nodes}
    silent = set(_silent_nodes(evidence))
    for node, lines in evidence.logs.items():
        if node not in agents | evidence.ended | silent:
            said = [line.strip() for line in lines if not line.startswith("srun: error:")]
            last = next(filter(None, reversed(said)), _reason(evidence))
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
        return passed(name, f"it starts, and hpcdist is there, on {_nodes(evidence.num_nodes)}")
    return _versions(evidence)


def _versions(evidence: Evidence) -> Finding:
    name, here = "interpreter", evidence.versions
    for place in evidence.places:
        there = place["versions"]
        if there["hpcdist"] != here["hpcdist"]:
            return failed(
                name,
                f"{place['host']} has hpcdist {there['hpcdist']}, this machine {here['hpcdist']}",
                "install the same version in both; the key python names the interpreter",
            )
    torches = sorted({str(place["versions"]["torch"]) for place in evidence.places})
    if len(torches) > 1:
        return failed(
            name,
            f"the nodes have different versions of torch: {', '.join(torches)}",
            "have one environment that all nodes see",
        )
    python = evidence.places[0]["versions"]["python"]
    return passed(name, f"Python {python}, hpcdist {here['hpcdist']} as here, torch {torches[0]}")


def _gpus(evidence: Evidence, *, asks_for_gpus: bool) -> Finding | None:
    name = "GPUs"
    if not asks_for_gpus:
        return skipped(name, "none are asked for")
    devices = {seen.node: seen for seen in evidence.nodes if seen.device is not None}
    if len(devices) < evidence.num_nodes:
        return None
    without = [seen.host for seen in devices.values() if seen.device != "cuda"]
    if without:
        variable = next(
            (place["environment"].get("CUDA_VISIBLE_DEVICES") for place in evidence.places), None
        )
        return failed(
            name,
            f"{evidence.ranks_per_node} per node were asked for, and NVML shows none on "
            f"{', '.join(without)} (CUDA_VISIBLE_DEVICES is {variable})",
            "see the node's driver with nvidia-smi; the keys gpu_request and gpu_type say how GPUs "
            "are asked for; --set launch.device=cpu checks without them",
        )
    return passed(
        name, f"{evidence.ranks_per_node} per node asked for, and NVML shows them, each once"
    )


def _interface(evidence: Evidence, cluster: ClusterProfile) -> Finding | None:
    name = "interface"
    offers = next((seen.offers for seen in evidence.nodes if seen.node == 0), [])
    reached = [seen for seen in evidence.nodes if seen.master_addr is not None]
    is_out_of_reach = len(reached) < evidence.num_nodes and all(
        ipaddress.ip_address(one).is_loopback for one in offers
    )
    if NO_INTERFACE in evidence.verdict.message or (offers and is_out_of_reach):
        return _unproven(name, evidence)
    chosen = list(dict.fromkeys(seen.interface for seen in reached))
    if chosen and evidence.places:
        why = (
            "as the profile says" if cluster.interface in chosen else "node 0 is reached through it"
        )
        return passed(name, f"{' and '.join(map(str, chosen))}, {why}")
    return passed(name, f"node 0 offers {', '.join(offers)}") if offers else None


def _port(evidence: Evidence) -> Finding | None:
    name = "port"
    reached = [seen for seen in evidence.nodes if seen.master_addr is not None]
    if len(reached) < evidence.num_nodes or not evidence.places:
        return None
    environment = evidence.places[0]["environment"]
    where = f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
    others = evidence.num_nodes - 1
    return passed(
        name, f"{where} on node 0" + (f", reached from {_nodes(others)}" if others else "")
    )


def _collective(evidence: Evidence) -> Finding | None:
    ranks = evidence.num_nodes * evidence.ranks_per_node
    if evidence.verdict.state != "done" or len(evidence.collectives) < ranks:
        return None
    times = evidence.collectives[0]
    bandwidth = times.get("bus_bytes_per_s")  # one rank sends nothing
    rate = f", bus bandwidth {show_bytes(bandwidth)}/s" if bandwidth else ""
    return passed(
        "collective",
        f"{ranks} ranks on {_nodes(evidence.num_nodes)}: process group "
        f"{times['group_time_s']:.2f} s, all-reduce of 1 MiB "
        f"{times['all_reduce_time_s'] * 1e3:.1f} ms{rate}",
    )


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"
