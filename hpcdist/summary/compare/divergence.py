"""Two runs beside each other: the first step at which they part, and in what they differ.

A value is the same or it is not: two runs of the same program on the same hardware can agree to the
last bit, and the first bit that differs is the one to explain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from hpcdist.base.errors import UserError
from hpcdist.runs.events import Digest, Evaluation, NodeBegin, Start, Window
from hpcdist.runs.run import Run
from hpcdist.runs.snapshot import find_code, read_contents
from hpcdist.summary.figures.run import flatten
from hpcdist.summary.read.collect import job_as_submitted
from hpcdist.summary.read.event_file import EventFile, read_events

_VARIABLES = (
    *("CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32", "NCCL_", "OMP_", "MKL_", "HIP_", "ROCR_"),
    *("TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "PYTHONHASHSEED", "ACCELERATE_", "KMP_"),
)
_SHORT = 10
"""Digits of a digest or commit that are shown."""

Values = dict[int, dict[str, Any]]
"""Step -> quantity -> its value."""


class Difference(Struct, frozen=True, kw_only=True):
    """Something in which two runs differ."""

    kind: str
    key: str
    """Key of the job, package, file, or what else it is."""
    values: list[Any]
    """Values of both runs; None where one has none."""


class RunDiff(Struct, frozen=True, kw_only=True):
    """Two runs beside each other: where they part, and in what they differ."""

    runs: list[str]
    num_compared: int
    """Steps at which the lowest ranks of both recorded something."""
    last_step: int
    """Last of these."""
    step: int | None = None
    """First of these at which a value differs; None where they do not part."""
    equal_at: int | None = None
    """Last step before at which all was equal."""
    values: dict[str, list[Any]] = {}
    """Quantity that differs at `step` -> its values in both runs."""
    differences: list[Difference]


def diff_runs(runs: Sequence[Run]) -> RunDiff:
    """Compare two runs. Raises UserError where they recorded nothing at the same steps."""
    records = [_records_of_lowest_rank(run) for run in runs]
    has_digests = all(any(record.all(Digest) for record in own) for own in records)
    first, second = (_values(own, has_digests=has_digests) for own in records)
    steps = sorted(first.keys() & second.keys())
    if not steps:
        raise UserError(
            f"{runs[0].id} and {runs[1].id} have no step in common at which both recorded "
            "something",
            hint="submit both with --set record.digest=10; your own script needs "
            "record.start(model=model) before its loop and record.step(...) in it, too",
        )
    equal_at = None
    unlike: dict[str, list[Any]] = {}
    for step in steps:
        a, b = first[step], second[step]
        unlike = {name: [a[name], b[name]] for name in a if name in b and a[name] != b[name]}
        if unlike:
            break
        equal_at = step
    return RunDiff(
        runs=[run.id for run in runs],
        num_compared=len(steps),
        last_step=steps[-1],
        step=step if unlike else None,
        equal_at=equal_at,
        values=unlike,
        differences=_find_differences(*map(_facts, runs, records)),
    )


def _records_of_lowest_rank(run: Run) -> list[EventFile]:
    files = sorted(run.event_files())
    lowest = [file for file in files if file[0] == files[0][0]]
    return [read_events(path, number=rank, attempt=n) for rank, n, path in lowest]


def _values(records: Sequence[EventFile], *, has_digests: bool) -> Values:
    """Return the values of a rank; what a restart did again counts once, as the restart did it."""
    values: Values = {}
    for record in records:
        own: Values = {}
        recorded: dict[str, Sequence[Any]] = {
            "loss": record.all(Window),
            "loss of the test data": record.all(Evaluation),
        }
        if has_digests:
            recorded = {"parameters": record.all(Digest), "loss": record.all(Digest)}
        for name, events in recorded.items():
            field = "parameters" if name == "parameters" else "loss"
            for event in events:
                if event.step is not None and getattr(event, field) is not None:
                    own.setdefault(event.step, {})[name] = getattr(event, field)
        begin = min(own, default=None)
        values = {step: old for step, old in values.items() if begin is None or step < begin} | own
    return values


def _facts(run: Run, records: Sequence[EventFile]) -> dict[tuple[str, str], Any]:
    """Return what a run recorded of itself, by its kind and name, as far as it is there."""
    spec = run.spec
    start = next(filter(None, (record.last(Start) for record in reversed(records))), None)
    files = run.usage_files()
    newest = max((attempt for _, attempt, _ in files), default=0)
    nodes = [read_events(path, number=node, attempt=n) for node, n, path in files if n == newest]
    begins = [begin for node in nodes if (begin := node.last(NodeBegin))]
    gpus = [gpu for begin in begins for gpu in begin.gpus]
    copy = find_code(run, spec)
    files_of_copy = {} if copy is None else read_contents(copy)
    facts: dict[str, dict[str, Any]] = {
        "setting": flatten(job_as_submitted(spec)),
        "version": {**spec.versions, "driver": _joined(gpu.driver for gpu in gpus)},
        "code": {
            "commit": spec.commit and spec.commit[:_SHORT],
            "changes not committed": spec.has_changes,
            **{
                f"file {path}": content if content.startswith("link") else content[:_SHORT]
                for path, content in files_of_copy.items()
            },
            "file of the program": start and start.code,
        },
        "device": {
            "device": _joined(gpu.name for gpu in gpus) or (start and start.device),
            "ranks": start and start.world_size,
            "ranks per node": start and start.local_world_size,
            "backend": start and start.backend,
        },
        "variable": {
            name: value for name, value in spec.environment.items() if name.startswith(_VARIABLES)
        },
        "host": {
            "hosts": _joined(begin.host for begin in begins) or (start and start.host),
            "cluster": spec.cluster.name,
        },
    }
    return {(kind, key): value for kind, own in facts.items() for key, value in own.items()}


def _joined(names: Iterable[str | None]) -> str | None:
    return ", ".join(sorted({name for name in names if name})) or None


def _find_differences(
    first: dict[tuple[str, str], Any], second: dict[tuple[str, str], Any]
) -> list[Difference]:
    """Return all differences by their kinds. A file where only one run has any is none, and so are
    a version or a device of which one says nothing."""
    have_files = all(any(key.startswith("file ") for _, key in facts) for facts in (first, second))
    kinds = dict.fromkeys(kind for kind, _ in first)
    return [
        Difference(kind=kind, key=key, values=[first.get((kind, key)), second.get((kind, key))])
        for kind in kinds
        for own, key in dict.fromkeys([*first, *second])
        if own == kind
        and first.get((kind, key)) != second.get((kind, key))
        and (have_files or not key.startswith("file "))
        and (
            kind not in ("version", "device")
            or None not in (first.get((kind, key)), second.get((kind, key)))
        )
    ]
