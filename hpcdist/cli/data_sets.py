"""How the verbs of `hpcdist data` are told which data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from hpcdist.cli.printing import note

if TYPE_CHECKING:
    from hpcdist.job.spec import Data


def data_set_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """NAME, --root and --split."""
    options = (
        click.argument("name"),
        click.option("--root", metavar="DIR", help="Where it is, as data.root of a job."),
        click.option("--split", metavar="HOW", help="auto or stratified, as data.split of a job."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def note_unmade(data: Data) -> None:
    """Say what is made first, which takes a while."""
    from hpcdist.data.catalog import find_data_set

    unmade = find_data_set(data).unmade(data)
    if unmade is not None:
        note(unmade)


def chosen_data(name: str, flags: Mapping[str, str | None]) -> Data:
    """The section `data` of a job with these flags; --size is data.size, and so on.

    JobError for what no job takes. Relative folders are those of the shell.
    """
    from hpcdist.job.load import Flag, load_values, parse_flag
    from hpcdist.job.spec import TrainJob

    given = {"data.name": Flag(name="NAME", value=name)}
    for flag, text in flags.items():
        if text is not None:
            given[f"data.{flag.removeprefix('--')}"] = parse_flag(flag, text)
    values = {"name": "data", "workload": "train"}
    job = load_values(values, source="hpcdist data", flags=given).job
    assert isinstance(job, TrainJob)
    return job.data
