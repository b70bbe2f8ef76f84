"""The outcome of a submitted function in each rank, as a private file of the run: what it returned,
or raised."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path
from typing import Any, Literal

from hpcdist.base import files
from hpcdist.base.errors import HpcdistError, RunFailedError
from hpcdist.runs.run import Run
from hpcdist.runs.verdict import Verdict

Kind = Literal["returned", "raised", "lost"]
"""Lost: it could not be pickled; then the sentence that says so is in the place of the value."""


def write_outcome(run: Run, rank: int, attempt: int, kind: Kind, value: Any) -> None:
    """Keep what this rank returned or raised.

    A training is not failed for a result that cannot be sent: who asks for it is told. Raises
    OSError.
    """
    try:
        data = _pickled((kind, value))
    except Exception as error:  # noqa: BLE001 - objects pickle themselves as they like
        sentence = f"a {type(value).__qualname__}, which cannot be pickled: {error}"
        files.print_line(f"hpcdist: this rank {kind} {sentence}", sys.stderr)
        data = pickle.dumps(("lost", sentence))
    path = run.outcome_file(rank, attempt)
    for folder in (run.path / "results", path.parent):
        folder.mkdir(mode=files.PRIVATE_FOLDER, exist_ok=True)
    files.write_whole(path, data)


def _pickled(value: tuple[Kind, Any]) -> bytes:
    """Pickle by cloudpickle, but for exceptions: pickle makes them anew by a call with their
    `args`, which fails for all whose __init__ takes anything else."""
    import cloudpickle

    names = ("__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__")

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, BaseException) and all(
                getattr(type(value), name, None) is getattr(BaseException, name, None)
                for name in names
            ):
                return _without_own_init, (type(value), value.args), value.__dict__
            return super().reducer_override(value)

    buffer = io.BytesIO()
    Pickler(buffer).dump(value)
    return buffer.getvalue()


def _without_own_init(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """`args` are what Python's own class was given, and that of UnicodeDecodeError keeps more."""
    error = kind.__new__(kind, *args)
    pythons_own: Any = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    pythons_own.__init__(error, *args)
    return error


def returned_by(run: Run, rank: int, verdict: Verdict) -> Any:
    """Return what one rank of an ended run returned.

    Raises RunFailedError where the run failed, from what was raised in the rank where that can be
    read; HpcdistError where the value cannot.
    """
    if verdict.state != "done":
        raise RunFailedError(run.id, verdict) from _raised(run, verdict)
    path = run.outcome_file(rank, verdict.attempt)
    try:
        kind, value = _read(path)
    except FileNotFoundError:
        raise HpcdistError(
            f"rank {rank} of run {run.id} left no result", hint=f"look into {path.parent}"
        ) from None
    except OSError as error:
        raise HpcdistError(
            f"the result of rank {rank} of run {run.id} cannot be read: {error}",
            hint="results are for the user whose run it is",
        ) from None
    except Exception as error:
        raise HpcdistError(
            f"what rank {rank} of run {run.id} returned cannot be read here: "
            f"{type(error).__name__}: {error}",
            hint="return plain values, and tensors that are on the CPU",
        ) from error
    if kind == "lost":
        raise HpcdistError(
            f"rank {rank} of run {run.id} returned {value}",
            hint="return plain values, such as numbers, lists and dicts",
        )
    return value


def _raised(run: Run, verdict: Verdict) -> BaseException | None:
    """Return the exception of the rank that failed first; None where none can be read."""
    if verdict.first is None:
        return None
    try:
        kind, value = _read(run.outcome_file(verdict.first.rank, verdict.attempt))
    except Exception:  # noqa: BLE001 - the verdict has its text and its traceback
        return None
    return value if kind == "raised" and isinstance(value, BaseException) else None


def _read(path: Path) -> tuple[Kind, Any]:
    with files.open_private(path) as file:
        outcome: tuple[Kind, Any] = pickle.load(file)  # noqa: S301 - written by the user's own ranks
    return outcome
