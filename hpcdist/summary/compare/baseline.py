"""The baseline of a comparison: runs, or what an earlier `hpcdist summary --json` printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from hpcdist.base.errors import HpcdistError, UserError
from hpcdist.summary.values import SCHEMA, RunSummary

_HINT = "a baseline is a run, a sweep, a folder of runs, or the output of: hpcdist summary --json"
_SHOWN = 5


def is_saved(name: str) -> bool:
    """Whether a name is that of a file, and so of a saved summary: runs are folders."""
    return Path(name).is_file()


def read_saved(path: Path) -> list[RunSummary]:
    """The runs of a saved summary; raises UserError where it is none.

    Keys that a newer version added are left out; what it means by the others is not known where its
    schema is newer, too.
    """
    try:
        content = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}", hint=_HINT) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not JSON: {error}", hint=_HINT) from None
    runs = _runs(content)
    if isinstance(runs, list) and any(map(_is_newer, runs)):
        raise UserError(
            f"{path} is of a newer hpcdist: its schema is more than {SCHEMA}",
            hint="use that version, or save the baseline again with this one",
        )
    try:
        return msgspec.convert(runs, list[RunSummary])
    except msgspec.ValidationError as error:
        raise UserError(f"{path} is no summary: {error}", hint=_HINT) from None


def _is_newer(run: Any) -> bool:
    schema = run.get("schema") if isinstance(run, dict) else None
    return isinstance(schema, int) and schema > SCHEMA


def no_baseline(name: str, error: HpcdistError) -> UserError:
    """The error for a name that is neither a file nor that of runs."""
    return UserError(f"there is no baseline {name}: {error.message}", hint=_HINT)


def check_comparable(
    baseline: Sequence[RunSummary], runs: Sequence[RunSummary], *, name: str
) -> None:
    """Raise UserError where there is nothing to compare on one of the sides."""
    if not any(run.state == "done" for run in baseline):
        raise UserError(f"the baseline {name} has no run that is done", hint=_HINT)
    if not runs:
        raise UserError(
            f"there is no run to compare with {name}: all that are there are its own",
            hint="submit the jobs again, or name the runs",
        )


def nothing_in_common(
    baseline: Sequence[RunSummary], runs: Sequence[RunSummary], *, name: str
) -> UserError:
    """The error where no job of one size is on both sides."""
    return UserError(
        f"{name} has nothing in common with the runs: it has {_sizes(baseline)}, and they are "
        f"{_sizes(runs)}",
        hint="compare runs of one job, on as many nodes and GPUs, and with equal settings",
    )


def _sizes(runs: Sequence[RunSummary]) -> str:
    sizes = list(dict.fromkeys(f"{run.job} on {run.nodes} x {run.gpus_per_node}" for run in runs))
    more = f" and {len(sizes) - _SHOWN} more" if len(sizes) > _SHOWN else ""
    return ", ".join(sizes[:_SHOWN]) + more


def _runs(content: Any) -> Any:
    """The list of the runs, by itself or as a key of the whole."""
    return content["runs"] if isinstance(content, dict) and "runs" in content else content
