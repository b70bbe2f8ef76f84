"""A function with its arguments, pickled: the one file of a run that is loaded as code.

It is private to the user, and a rank refuses one that is not: whoever could write it could run
anything.
"""

from __future__ import annotations

import inspect
import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from hpcdist.base.errors import JobError
from hpcdist.job.function import function_name
from hpcdist.job.private_file import open_private

Call: TypeAlias = "tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]"

MOST_BYTES = 64 * 1000 * 1000
"""More than code and settings need: data belong into files that all nodes can read."""


class _TooLargeError(Exception):
    """More was pickled than may be."""


class _LimitedBuffer(io.BytesIO):
    """Takes no more than the limit, so that no more than that is ever copied."""

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > MOST_BYTES:
            raise _TooLargeError
        return super().write(data)


def pickle_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bytes:
    """The call as bytes.

    Functions of modules go by name, and are imported in the ranks; those of `__main__`, of a
    notebook and of other functions go whole.

    Raises JobError, which names the argument that cannot be sent, and shows no value.
    """
    check_arguments(function, args, kwargs)
    try:
        return _pickled((function, tuple(args), dict(kwargs)))
    except Exception as error:  # objects pickle themselves as they like
        raise _refused(_culprit(function, args, kwargs), error) from error


def check_arguments(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raise JobError where the call would fail at once, which a job in a queue finds out late."""
    name = function_name(function)
    if isinstance(args, str | bytes) or not isinstance(args, Iterable):
        raise JobError(
            f"args is a {type(args).__qualname__}, and not a tuple of the arguments of {name}",
            hint="put a single argument as (argument,), with its comma",
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some that are written in C nothing is known
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise JobError(
            f"{name} cannot be called with these args and kwargs: {error}",
            hint=f"it takes {signature}",
        ) from None


def load_call(path: Path) -> Call:
    """What `pickle_call` made; PermissionError where others may write or read the file."""
    with open_private(path) as file:
        call: Call = pickle.load(file)  # noqa: S301 - the user's own
    return call


def _pickled(value: Any) -> bytes:
    import cloudpickle

    buffer = _LimitedBuffer()
    cloudpickle.dump(value, buffer)
    return buffer.getvalue()


def _culprit(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, Any]:
    """The first part that cannot be sent by itself; else all of them together."""
    for name, value in _parts(function, args, kwargs):
        try:
            _pickled(value)
        except Exception:  # noqa: BLE001 - as above
            return name, value
    return "the function with all its arguments", None


def _parts(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    yield f"the function {function_name(function)}", function
    for index, value in enumerate(args):
        yield f"args[{index}]", value
    for key, value in kwargs.items():
        yield f"kwargs[{key!r}]", value


def _refused(culprit: tuple[str, Any], error: Exception) -> JobError:
    name, value = culprit
    kind = "" if callable(value) or value is None else f", a {type(value).__qualname__},"
    if isinstance(error, _TooLargeError):
        return JobError(
            f"{name}{kind} takes more than {MOST_BYTES // 10**6} MB pickled",
            hint="save large data to a file that all nodes can read, and send its path",
        )
    return JobError(
        f"{name}{kind} cannot be pickled, and so not be sent to the ranks: "
        f"{type(error).__name__}: {error}",
        hint="send what it is made from, such as a path, and make it in the function",
    )
