"""The outcome of a submitted function in each rank, as a private file of the run: what it returned,
or raised."""

from __future__ import annotations

import pickle
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, RunFailedError
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict

Kind = Literal["returned", "raised", "lost"]
"""Lost: it could not be pickled; then the sentence that says so is in the place of the value."""


def write_outcome(run: Run, rank: int, attempt: int, kind: Kind, value: Any) -> None:
    """Keep what this rank returned or raised. A training does not fail for a result that cannot be
    sent: `returned_by` says so. Raises OSError."""
    import cloudpickle

    try:
        data = cloudpickle.dumps((kind, value))
    except Exception as error:  # noqa: BLE001 - objects pickle themselves as they like
        sentence = f"a {type(value).__qualname__}, which cannot be pickled: {error}"
        files.print_line(f"hpcdist: this rank {kind} {sentence}", sys.stderr)
        data = pickle.dumps(("lost", sentence))
    path = run.outcome_file(rank, attempt)
    path.parent.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
    files.write_whole(path, data)


def returned_by(run: Run, rank: int, verdict: Verdict) -> Any:
    """Return what one rank of an ended run returned.

    Raises RunFailedError where the run failed, from what was raised in the rank where that can be
    read; HpcdistError where the value cannot.
    """
    if verdict.state != "done":
        cause: Any = None
        with suppress(Exception):  # the verdict has its text and its traceback
            first = verdict.first
            cause = first and _read(run.outcome_file(first.rank, verdict.attempt))[1]
        was_raised = isinstance(cause, BaseException)
        raise RunFailedError(run.id, verdict) from (cause if was_raised else None)
    path = run.outcome_file(rank, verdict.attempt)
    try:
        kind, value = _read(path)
    except Exception as error:
        raise HpcdistError(
            f"the result of rank {rank} of run {run.id} cannot be read: "
            f"{type(error).__name__}: {error}",
            hint=f"return plain values, and tensors that are on the CPU; see {path}",
        ) from error
    if kind == "lost":
        raise HpcdistError(
            f"rank {rank} of run {run.id} returned {value}",
            hint="return plain values, such as numbers, lists and dicts",
        )
    return value


def _read(path: Path) -> tuple[Kind, Any]:
    with files.open_private(path) as file:
        outcome: tuple[Kind, Any] = pickle.load(file)  # noqa: S301 - written by the user's own ranks
    return outcome
