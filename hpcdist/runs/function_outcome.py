"""The outcome of a submitted function in each rank, as a private file of the run: what it returned,
or raised."""

from __future__ import annotations

import pickle
import sys
from typing import Any

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, RunFailedError
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict


def write_outcome(run: Run, rank: int, attempt: int, kind: str, value: Any) -> None:
    """Keep what this rank `returned` or `raised`. A training does not fail for a result that cannot
    be pickled: the sentence that says so is kept as `lost`. Raises OSError."""
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
    if verdict.state != "done" and verdict.first is not None:
        rank = verdict.first.rank
    kind, value, path = "lost", None, run.outcome_file(rank, verdict.attempt)
    try:
        with files.open_private(path) as file:
            kind, value = pickle.load(file)  # noqa: S301 - written by the user's own ranks
    except Exception as error:
        if verdict.state == "done":
            raise HpcdistError(
                f"the result of rank {rank} of run {run.id} cannot be read: "
                f"{type(error).__name__}: {error}",
                hint=f"return plain values, and tensors that are on the CPU; see {path}",
            ) from error
    if verdict.state != "done":  # the verdict has the text and the traceback in any case
        raise RunFailedError(run.id, verdict) from (value if kind == "raised" else None)
    if kind == "lost":
        raise HpcdistError(
            f"rank {rank} of run {run.id} returned {value}",
            hint="return plain values, such as numbers, lists and dicts",
        )
    return value
