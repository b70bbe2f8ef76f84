"""`hpcdist course`: the exercises of docs/course/, and their files to start from."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
from msgspec import Struct

from hpcdist.base.errors import UserError
from hpcdist.base.files import shipped_folder
from hpcdist.cli.options import json_option
from hpcdist.cli.printing import note, print_columns, print_json
from hpcdist.runs.run import refused_doors

_FACES = ("lfw_dataset_solved.py",)
_FASHION = ("fashion_cnn.py",)


class Exercise(Struct, frozen=True):
    """One exercise; its page is docs/course/NUMBER-NAME.md."""

    name: str
    title: str
    """What is asked, in one line."""
    script: str
    """The file with TODOs; the solved one has `_solved` before its suffix."""
    others: tuple[str, ...] = ()
    """Files that both need."""
    command: str = "python {script}"
    """What to type first."""

    @property
    def files(self) -> tuple[str, ...]:
        stem, _, suffix = self.script.rpartition(".")
        return tuple(dict.fromkeys((self.script, f"{stem}_solved.{suffix}", *self.others)))


_TWO_RANKS = "hpcdist submit {script} --gpus 2 --local"

EXERCISES = (
    Exercise("dataset", "Photographs as a Dataset: PIL image or tensor?", "lfw_dataset.py"),
    Exercise("workers", "How many workers load fastest?", "workers.py", _FACES),
    Exercise("augmentation", "Do workers help more with augmentation?", "augmentation.py", _FACES),
    Exercise("handover", "What do pin_memory and fork change?", "handover.py", _FACES),
    Exercise("data-parallel", "Why is DataParallel slower?", "data_parallel.py", _FASHION),
    Exercise("ddp", "What does each part of DDP do?", "distributed.py", (), _TWO_RANKS),
    Exercise(
        "spawn",
        "What to change in a script that calls mp.spawn?",
        "main.py",
        _FASHION,
        "python {script} --nodes 1 --gpus 2 --epochs 2 --nr 0",
    ),
    Exercise(
        "two-gpus",
        "How much faster are two GPUs, and why not twice?",
        "two_gpus.py",
        _FASHION,
        "hpcdist submit {script} --local --set resources.cpus_per_gpu=1 "
        '--sweep "gpus=1,2" --repeat 3',
    ),
    Exercise(
        "lightning",
        "Which two arguments spread a Lightning training?",
        "lightning_fashion.py",
        _FASHION,
        _TWO_RANKS,
    ),
    Exercise("half-precision", "What does half precision gain and cost?", "half.py", _FASHION),
    Exercise("sharded", "What does sharded training save?", "sharded.py", (), _TWO_RANKS),
    Exercise(
        "fashion", "How much faster is a GPU for FashionMNIST?", "fashion_trainer.py", _FASHION
    ),
    Exercise(
        "cluster",
        "How to get onto a cluster: modules, conda, free GPUs?",
        "choose_gpus.py",
        ("nvidia-smi.csv",),
        "python {script} 2 --listing nvidia-smi.csv",
    ),
    Exercise(
        "azure",
        "Is a GPU of Azure faster, and is it cheaper?",
        "price.py",
        ("fashion_trainer_solved.py", *_FASHION),
    ),
)
"""In the order of their numbers, from 1 on."""


@click.command
@click.argument("exercise", required=False)
@click.option("--out", metavar="DIR", help="Copy the files here.  [default: course-N-NAME]")
@json_option
def course(*, exercise: str | None, out: str | None, as_json: bool) -> None:
    """List the exercises of a course on distributed training, or start one.

    \b
    hpcdist course           lists them
    hpcdist course 3         copies exercise 3 to ./course-3-augmentation
    hpcdist course workers   an exercise by its name

    Each has a script with TODOs, which runs as it is, and one that is solved. A file that is there
    is never overwritten. The page of an exercise, docs/course/3-augmentation.md, has the question,
    the commands with what they printed, and the answer.
    """
    if exercise is None:
        if out is not None:
            raise UserError("--out without an exercise", hint="for example: hpcdist course 1")
        _list(as_json=as_json)
        return
    number = _find(exercise)
    chosen = EXERCISES[number - 1]
    if out is None:
        _refuse_inside_an_exercise(exercise)
    folder = Path(out or _folder_name(number))
    new = _copy(chosen, folder)
    command = chosen.command.format(script=chosen.script)
    if as_json:
        print_json({"exercise": number, "folder": str(folder), "files": new, "command": command})
        return
    print(f"exercise {number}: {chosen.title}")
    if new:
        rows = [(str(folder / name), _what(chosen, name)) for name in new]
        print_columns(("FILE", "USE"), rows)
    print(f"begin with: cd {shlex.quote(str(folder))} && {command}")


def _list(*, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {"exercise": number, "name": one.name, "title": one.title, "files": one.files}
                for number, one in enumerate(EXERCISES, start=1)
            ]
        )
        return
    rows = [(str(number), one.name, one.title) for number, one in enumerate(EXERCISES, start=1)]
    print_columns(("N", "NAME", "QUESTION"), rows)
    note("hpcdist course N copies the files of an exercise; docs/course/ has a page for each")


def _find(text: str) -> int:
    """Return the number of an exercise that is given by number or name."""
    names = [one.name for one in EXERCISES]
    if text in names:
        return names.index(text) + 1
    if text.isdecimal() and 1 <= int(text) <= len(names):
        return int(text)
    raise UserError(
        f"there is no exercise {text!r}",
        hint=f"it is a number from 1 to {len(names)}, or a name: hpcdist course lists them",
    )


def _folder_name(number: int) -> str:
    return f"course-{number}-{EXERCISES[number - 1].name}"


def _refuse_inside_an_exercise(exercise: str) -> None:
    """The scripts look for the photographs in ../lfw, so that all folders stand side by side."""
    here = Path.cwd().name
    if here in map(_folder_name, range(1, len(EXERCISES) + 1)):
        raise UserError(
            f"this is the folder of an exercise, {here}, and exercises stand side by side",
            hint=f"cd .. && hpcdist course {exercise}",
        )


def _what(exercise: Exercise, name: str) -> str:
    if name == exercise.script:
        return "to fill in"
    return "solved" if name in exercise.files[:2] else "used by both"


def _refuse_strangers(folder: Path) -> None:
    if others := refused_doors(folder):
        raise UserError(
            f"{others[0]}, who could exchange the scripts that you are to run",
            hint="go to a folder that only you can write, or name one with --out",
        )


def _copy(exercise: Exercise, folder: Path) -> list[str]:
    """Copy the files that are not there yet, and return their names."""
    shipped = shipped_folder("course")
    new = []
    try:
        _refuse_strangers(folder)
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_strangers(folder)  # a umask may open what was made on the way
        for name in exercise.files:
            content = (shipped / name).read_bytes()
            try:
                with (folder / name).open("xb") as file:
                    file.write(content)
            except FileExistsError:
                note(f"{folder / name} is there already, and stays as it is")
            else:
                new.append(name)
    except OSError as error:
        raise UserError(
            f"{error.filename or folder} cannot be written: {error.strerror or error}",
            hint="name another folder with --out",
        ) from None
    return new
