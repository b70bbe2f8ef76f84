"""`hpcdist diff`: the first step at which two runs part, and in what the runs differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdist.base.errors import EXIT_DONE, EXIT_FAILED, UserError
from hpcdist.base.text import number_of, one_line
from hpcdist.cli.host import HostCommand
from hpcdist.cli.options import host_option, json_option, runs_option
from hpcdist.cli.printing import note, paged, print_columns, print_json, print_wrapped
from hpcdist.runs.run import find_run

if TYPE_CHECKING:
    from hpcdist.summary.compare.divergence import Divergence, RunDiff
    from hpcdist.summary.compare.origins import Difference

_WIDTH = 20
"""Characters of a value in the table."""


@click.command(name="diff", cls=HostCommand)
@click.argument("first", metavar="RUN_A")
@click.argument("second", metavar="RUN_B")
@host_option
@runs_option
@json_option
@paged
def diff(*, first: str, second: str, runs: Path, as_json: bool) -> int:
    """Name the first step at which two runs part, and the settings, versions, code, devices and
    variables in which they differ.

    Runs are compared by the digests that record.digest=K has them record, else by their losses.
    Exit code: 0 where they do not part, 1 where they do.

    \b
    hpcdist submit ddp --gpus 2 --set record.digest=10
    hpcdist diff ddp-20260301 last
    """
    from hpcdist.monitor.states import bring_home
    from hpcdist.summary.compare.divergence import diff_runs

    pair = [find_run(runs, name) for name in (first, second)]
    if pair[0].path == pair[1].path:
        raise UserError(
            f"{first} and {second} are the same run, {pair[0].id}",
            hint="name two runs: hpcdist runs lists them",
        )
    for run in pair:
        bring_home(run, warn=note)
    result = diff_runs(pair)
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(result))
    else:
        _print(result)
    return EXIT_DONE if result.divergence is None else EXIT_FAILED


def _print(result: RunDiff) -> None:
    print_wrapped(conclusion(result))
    print_wrapped(why(result))
    changing = [one for one in result.differences if one.changes_results]
    others = [one for one in result.differences if not one.changes_results]
    for title, found in (
        ("What differs and may change results:", changing),
        ("What differs, too, and does not change results:", others),
    ):
        if found:
            print(f"\n{title}")
            print_columns(("KIND", "RUN_A", "RUN_B", "WHAT"), [_row(one) for one in found])
    note(*result.notes)


def conclusion(result: RunDiff) -> str:
    """Say whether the runs part, and where."""
    a, b = map(one_line, result.runs)
    compared = (
        f"by their {result.compared_by} at {number_of(result.num_compared, 'step')} up to step "
        f"{result.last_step}"
    )
    parted = result.divergence
    if parted is None:
        return f"{a} and {b} do not part: they are equal {compared}."
    before = (
        "and were equal at no earlier step"
        if parted.equal_at is None
        else f"and were equal at step {parted.equal_at}"
    )
    losses = result.last_losses
    later = ""
    if losses is not None and losses.step > parted.step:
        first, second = (_shown(loss) for loss in losses.losses)
        later = f" At step {losses.step} their losses are {first} and {second}."
    return (
        f"{a} and {b} part at step {parted.step}, on rank {parted.rank}, in {_quantities(parted)}, "
        f"{before} ({result.compared_by} of {number_of(result.num_compared, 'step')} compared)."
        f"{later}"
    )


def _quantities(parted: Divergence) -> str:
    texts = []
    for name in parted.quantities:
        values = parted.values[name]
        if name == "parameters" and parted.first_part is not None:
            more = f" and {parted.num_parts - 1} more parts" if parted.num_parts > 1 else ""
            texts.append(f"the parameters (first of {one_line(parted.first_part)}{more})")
        elif any(isinstance(value, str) for value in values):
            texts.append(f"the {name}")
        else:
            texts.append(f"the {name} ({_shown(values[0])} and {_shown(values[1])})")
    return ", ".join(texts)


def why(result: RunDiff) -> str:
    """Say what kind of cause the first difference has."""
    parted = result.divergence
    changing = [one for one in result.differences if one.changes_results]
    if parted is None:
        return (
            "What differs between them changes nothing so far." if changing else "Nothing differs."
        )
    is_begin = parted.equal_at is None
    if "parameters" in parted.quantities and not parted.num_parts:
        cause = "Their models have other parts, or are cut up in another way."
    elif "batch" in parted.quantities:
        cause = "The data differ: another batch, another order, or other random transforms."
    elif "learning rate" in parted.quantities:
        cause = "The learning rate differs before anything else."
    elif is_begin and parted.quantities == ["parameters"]:
        cause = "They begin with other weights: another seed, model or checkpoint."
    elif result.compared_by == "digests":
        cause = "The same batch and learning rate gave something else: the computation differs."
    else:
        cause = ""
    if not changing:
        cause += (
            " Nothing that the runs recorded differs, so the computation does not repeat itself: "
            "see torch.use_deterministic_algorithms, and docs/divergence.md."
        )
    return cause.strip()


def _row(difference: Difference) -> tuple[str, ...]:
    first, second = (_short(_shown(value)) for value in difference.values)
    return difference.kind, first, second, difference.key


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.10g}" if isinstance(value, float) else one_line(str(value))


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."
