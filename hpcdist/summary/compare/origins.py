"""The differences between two runs that may explain why they part: settings, versions, code,
devices, hosts and variables, as far as the runs recorded them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from hpcdist.agent.usage import NodeBegin
from hpcdist.runs.run import Run
from hpcdist.runs.snapshot_store import read_manifest
from hpcdist.runs.spec import RunSpec
from hpcdist.summary.figures.run import flatten
from hpcdist.summary.read.collect import job_as_submitted, read_node, read_rank
from hpcdist.summary.read.records import Digested, Start

Kind = Literal["setting", "version", "code", "device", "variable", "host"]
_KINDS: tuple[Kind, ...] = ("setting", "version", "code", "device", "variable", "host")
"""In the order in which they are shown."""

_HARMLESS = (
    *("name", "description", "record", "python_path", "modules", "data.download"),
    *("checkpoint.keep", "checkpoint.every_epochs", "checkpoint.every_steps"),
    *("resources.mem_gb", "resources.time_limit_min", "train.evaluate_every_epochs"),
    *("container.runtime", "container.mounts", "container.python", "container.options"),
)
"""Keys and sections of a job that change no result."""
_LAUNCH = ("launch.device", "launch.backend")
"""Keys of `launch` that do; all others supervise."""
_VARIABLES = ("CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32", "NCCL_", "OMP_", "MKL_", "HIP_", "ROCR_")
_MORE_VARIABLES = ("TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "PYTHONHASHSEED", "ACCELERATE_", "KMP_")
_MOST_FILES = 20
"""Files of the code that are named."""
_SHORT = 10
"""Digits of a digest or commit that are shown."""


class Difference(Struct, frozen=True, kw_only=True):
    """Something in which two runs differ."""

    kind: Kind
    key: str
    """Key of the job, package, file, or what else it is."""
    values: list[Any]
    """Of both runs; None where one has none."""
    changes_results: bool = True
    """False where it can change no figure of the model."""


class Origin(Struct, frozen=True, kw_only=True):
    """What a run was made from, and what it ran on."""

    facts: dict[Kind, dict[str, Any]]
    has_code: bool
    """Its files are known."""


def read_origin(run: Run) -> Origin:
    """Read what a run recorded of itself, as far as it is there."""
    spec = run.read_spec() or RunSpec()
    start, digested = _first_events(run)
    code = _code(spec)
    return Origin(
        facts={
            "setting": {
                key: value for key, value in flatten(job_as_submitted(spec)).items() if value != {}
            },
            "version": {**spec.versions, **_known(digested.versions)} | _drivers(run),
            "code": code,
            "device": _devices(start, digested, run),
            "variable": {
                name: value
                for name, value in spec.environment.items()
                if name.startswith((*_VARIABLES, *_MORE_VARIABLES))
            },
            "host": {"hosts": _hosts(run) or start.host, "cluster": spec.cluster.name},
        },
        has_code=any(key.startswith("file ") for key in code),
    )


def find_differences(first: Origin, second: Origin) -> list[Difference]:
    """Return all differences, those first that may change results."""
    found = [
        Difference(
            kind=kind,
            key=key,
            values=[a.get(key), b.get(key)],
            changes_results=not _is_harmless(kind, key),
        )
        for kind in _KINDS
        for a, b in [(first.facts.get(kind, {}), second.facts.get(kind, {}))]
        for key in dict.fromkeys([*a, *b])
        if a.get(key) != b.get(key) and not _is_unknown(kind, key, first, second)
    ]
    return sorted(_few_files(found), key=lambda difference: not difference.changes_results)


def _is_unknown(kind: Kind, key: str, first: Origin, second: Origin) -> bool:
    """Return whether one run has no files to compare with, or says nothing of a version."""
    if kind == "code" and key.startswith("file "):
        return not (first.has_code and second.has_code)
    return kind in ("version", "device") and None in (
        first.facts[kind].get(key),
        second.facts[kind].get(key),
    )


def _is_harmless(kind: Kind, key: str) -> bool:
    if kind == "host":
        return True  # the devices are compared
    if kind != "setting":
        return False
    if key.startswith("launch."):
        return key not in _LAUNCH
    return any(key == free or key.startswith(f"{free}.") for free in _HARMLESS)


def _few_files(found: Sequence[Difference]) -> Iterator[Difference]:
    """Yield the differences, with the number of files in place of those beyond the first few."""
    files = [one for one in found if one.kind == "code" and one.key.startswith("file ")]
    beyond = {one.key for one in files[_MOST_FILES:]}
    for one in found:
        if one.kind != "code" or one.key not in beyond:
            yield one
        elif one.key == files[_MOST_FILES].key:
            yield Difference(kind="code", key=f"{len(beyond)} more files", values=[None, None])


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _first_events(run: Run) -> tuple[Start, Digested]:
    """Return how the lowest rank of the newest attempt began, and what its digests are of."""
    files = sorted(run.event_files(), key=lambda file: (-file[1], file[0]))
    for rank, attempt, path in files[:1]:
        record = read_rank(path, rank=rank, attempt=attempt)
        starts, digested = record.starts or [Start()], record.digested or [Digested()]
        return starts[-1], digested[-1]
    return Start(), Digested()


def _code(spec: RunSpec) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if spec.git is not None:
        found["commit"] = None if spec.git.commit is None else spec.git.commit[:_SHORT]
    snapshot = spec.snapshot
    if snapshot is None or snapshot.folder is None:
        found["changes not committed"] = None if spec.git is None else spec.git.dirty
        return found
    manifest = read_manifest(Path(snapshot.folder))
    for entry in manifest.entries if manifest else ():
        found[f"file {entry.path}"] = entry.sha256[:_SHORT] or f"link to {entry.target}"
    return found


def _devices(start: Start, digested: Digested, run: Run) -> dict[str, Any]:
    kind = None if start.device is None else start.device.split(":")[0]
    names = {gpu.name for begin in _begins(run) for gpu in begin.gpus if gpu.name}
    return {
        "device": ", ".join(sorted(names)) or digested.device or kind,
        "ranks": start.world_size,
        "ranks per node": start.local_world_size,
        "backend": start.backend,
        "threads per rank": digested.num_threads,
    }


def _drivers(run: Run) -> dict[str, Any]:
    drivers = {gpu.driver for begin in _begins(run) for gpu in begin.gpus if gpu.driver}
    return {"driver": ", ".join(sorted(drivers))} if drivers else {}


def _hosts(run: Run) -> str:
    return ", ".join(sorted({begin.host for begin in _begins(run) if begin.host}))


def _begins(run: Run) -> Iterable[NodeBegin]:
    newest = max((attempt for _, attempt, _ in run.usage_files()), default=0)
    for node, attempt, path in run.usage_files():
        if attempt == newest and os.path.exists(path):
            yield from read_node(path, node=node, attempt=attempt).begins[-1:]
