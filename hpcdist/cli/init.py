"""`hpcdist init`: a first script or job file, by three questions."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import click

from hpcdist.base.errors import UserError
from hpcdist.base.files import shipped_folder
from hpcdist.cli.options import Choice

_KINDS = {
    "script": "a script of your own, which runs under torchrun too",
    "job": "a job file for hpcdist's trainer: a model and a data set by their names",
}
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_SCRIPT = "ddp_digits.py"
_JOB = {
    "description": None,
    "workload": "train",
    "strategy": "ddp",
    "resources.nodes": 1,
    "resources.gpus": None,
    "model.name": "fashion_cnn",
    "data.name": "digits",
    "train.epochs": 10,
    "train.batch_size": 32,
    "train.lr": 0.002,
    "checkpoint.every_epochs": 5,
}
"""Keys of the first job file; None: as the user says."""


@click.command
@click.argument("name", required=False)
@click.option("--kind", type=Choice(list(_KINDS)), help="What to make.  [default: script]")
@click.option("--gpus", type=click.IntRange(1, 1024), help="GPUs per node.  [default: 2]")
@click.option("--yes", is_flag=True, help="Ask nothing: defaults for what is not given.")
def init(*, name: str | None, kind: str | None, gpus: int | None, yes: bool) -> None:
    """Make a first script (./NAME.py) or job file (./jobs/NAME.yaml) that runs as it is.

    It asks for the kind, the name and the GPUs, unless they are given. Nothing is overwritten.
    """
    kind = kind or _ask("what to make", "script", yes=yes, about=_KINDS)
    name = name or _ask("its name", "train", yes=yes)
    if not _NAME.fullmatch(name):
        raise click.UsageError(f"NAME is {name!r}, must be letters, digits, and . _ - within")
    number = gpus or int(_ask("GPUs per node; without GPUs, processes", "2", yes=yes, of=int))
    path = _script(name) if kind == "script" else _job(name, number)
    what = path if kind == "script" else path.stem
    size = f" --gpus {number}" if kind == "script" else ""
    print(path)
    for verb in (f"submit {what}{size} --local", f"submit {what}{size}", f"explain {what}{size}"):
        print(f"  hpcdist {verb}", file=sys.stderr)


def _ask(
    question: str,
    default: str,
    *,
    yes: bool,
    about: dict[str, str] | None = None,
    of: type = str,
) -> str:
    if yes:
        return default
    if not sys.stdin.isatty():
        raise click.UsageError(
            "there is no terminal to ask on: give NAME, --kind and --gpus, or --yes"
        )
    for choice, meaning in (about or {}).items():
        click.echo(f"  {choice}: {meaning}", err=True)
    kind = Choice(list(about)) if about else click.IntRange(1, 1024) if of is int else None
    return str(click.prompt(question, default=default, type=kind, err=True)).strip()


def _script(name: str) -> Path:
    """Write the example that trains on digits, saves checkpoints and goes on from them."""
    path = Path(f"{name.removesuffix('.py')}.py")
    text = (shipped_folder("examples") / _SCRIPT).read_text(encoding="utf-8")
    return _write(path, text.replace(f"examples/{_SCRIPT}", str(path)))


def _job(name: str, gpus: int) -> Path:
    """Write a job file whose comments are the meanings of its keys."""
    from hpcdist.job.keys import job_keys

    meanings = {key.path: key.meaning for key in job_keys() if "train" in key.workloads}
    given = {"description": f"{name}, made by hpcdist init", "resources.gpus": gpus}
    lines = ["# `hpcdist explain train` lists the keys of a section, `explain train.lr` says more."]
    section = ""
    for path, value in _JOB.items():
        *above, key = path.split(".")
        if above and above[0] != section:
            section = above[0]
            lines.append(f"{section}:")
        line = f"{'  ' if above else ''}{key}: {given.get(path, value)}"
        meaning = re.split(r"[.:;]", re.sub(r" \(.*?\)", "", meanings.get(path, "")))[0]
        lines.append(f"{line:<28}  # {meaning}" if meaning and path != "description" else line)
    return _write(Path("jobs", f"{name}.yaml"), "\n".join(lines) + "\n")


def _write(path: Path, text: str) -> Path:
    if os.path.lexists(path):
        raise UserError(f"{path} exists already, and was not changed", hint="give another NAME")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror}", hint="go to a folder of your own"
        ) from None
    return path
