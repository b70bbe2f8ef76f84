"""`hpcdist course`: the exercises of docs/course/, and their files to start from."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
from msgspec import Struct

from hpcdist.base.errors import UserError
from hpcdist.base.files import shipped_folder
from hpcdist.cli.printing import note, print_columns, writing
from hpcdist.runs.run import refused_doors

_FACES = ("lfw_dataset_solved.py",)
_FASHION = ("fashion_cnn.py",)
_TWO_RANKS = "hpcdist submit {script} --gpus 2 --local"
_PYTHON = "python {script}"


class Exercise(Struct, frozen=True):
    """One exercise; its page is docs/course/NUMBER-NAME.md."""

    name: str
    title: str
    """What is asked, in one line."""
    script: str
    """The file with TODOs; the solved one has `_solved` before its suffix."""
    others: tuple[str, ...] = ()
    """Files that both need."""
    command: str = _PYTHON
    """What to type first."""

    @property
    def files(self) -> tuple[str, ...]:
        stem, _, suffix = self.script.rpartition(".")
        return tuple(dict.fromkeys((self.script, f"{stem}_solved.{suffix}", *self.others)))


_SPAWNED = f"{_PYTHON} --nodes 1 --gpus 2 --epochs 2 --nr 0"
_COMPARED = "hpcdist submit {script} --local --set resources.cpus_per_gpu=1 "
_COMPARED += '--sweep "gpus=1,2" --repeat 3'
EXERCISES = tuple(
    Exercise(*fields)
    for fields in (
        ("dataset", "Photographs as a Dataset: PIL image or tensor?", "lfw_dataset.py"),
        ("workers", "How many workers load fastest?", "workers.py", _FACES),
        ("augmentation", "Do workers help more with augmentation?", "augmentation.py", _FACES),
        ("handover", "What do pin_memory and fork change?", "handover.py", _FACES),
        ("data-parallel", "Why is DataParallel slower?", "data_parallel.py", _FASHION),
        ("ddp", "What does each part of DDP do?", "distributed.py", (), _TWO_RANKS),
        ("spawn", "What to change in mp.spawn's script?", "main.py", _FASHION, _SPAWNED),
        ("two-gpus", "Are two GPUs twice as fast?", "two_gpus.py", _FASHION, _COMPARED),
        (
            "lightning",
            "Which two arguments spread a Lightning training?",
            "lightning_fashion.py",
            _FASHION,
            _TWO_RANKS,
        ),
        ("half-precision", "What does half precision gain and cost?", "half.py", _FASHION),
        ("sharded", "What does sharded training save?", "sharded.py", (), _TWO_RANKS),
        ("fashion", "How much faster is a GPU here?", "fashion_trainer.py", _FASHION),
        (
            "cluster",
            "How to get onto a cluster: modules, conda, free GPUs?",
            "choose_gpus.py",
            ("nvidia-smi.csv",),
            f"{_PYTHON} 2 --listing nvidia-smi.csv",
        ),
        (
            "azure",
            "Is a GPU of Azure faster, and is it cheaper?",
            "price.py",
            ("fashion_trainer_solved.py", *_FASHION),
        ),
    )
)
"""In the order of their numbers, from 1 on."""


@click.command
@click.argument("exercise", required=False)
@click.option("--out", metavar="DIR", help="Copy the files here.  [default: course-N-NAME]")
def course(*, exercise: str | None, out: str | None) -> None:
    """List the exercises of a course on distributed training, or start one.

    \b
    hpcdist course           lists them
    hpcdist course 3         copies exercise 3 to ./course-3-augmentation
    hpcdist course workers   an exercise by its name

    Each has a script with TODOs, which runs as it is, and one that is solved. A file that is there
    is never overwritten. The page of an exercise, docs/course/3-augmentation.md, has the question,
    the commands with what they printed, and the answer.
    """
    numbered = {str(number): one for number, one in enumerate(EXERCISES, start=1)}
    if exercise is None:
        rows = [(number, one.name, one.title) for number, one in numbered.items()]
        print_columns(("N", "NAME", "QUESTION"), rows)
        note("hpcdist course N copies the files of an exercise; docs/course/ has a page for each")
        return
    found = [number for number, one in numbered.items() if exercise in (number, one.name)]
    if not found:
        raise UserError(
            f"there is no exercise {exercise!r}",
            hint=f"it is a number from 1 to {len(numbered)}, or a name: hpcdist course lists them",
        )
    number, chosen = found[0], numbered[found[0]]
    folder = Path(out or f"course-{number}-{chosen.name}")
    uses = {chosen.files[0]: "to fill in", chosen.files[1]: "solved"}
    with writing(folder, hint="name another folder with --out"):
        new = _copy(chosen, folder)
    print(f"exercise {number}: {chosen.title}")
    if new:
        used = [(str(folder / name), uses.get(name, "used by both")) for name in new]
        print_columns(("FILE", "USE"), used)
    command = chosen.command.format(script=chosen.script)
    page = f"course/{number}-{chosen.name}"
    print(f"its page: docs/{page}.md, in the built site {page}.html")
    print(f"begin with: cd {shlex.quote(str(folder))} && {command}")


def _copy(exercise: Exercise, folder: Path) -> list[str]:
    """Copy the files that are not there yet, and return their names."""
    new = []
    for is_made in (False, True):
        if is_made:  # a umask may open what is made on the way
            folder.mkdir(parents=True, exist_ok=True)
        if others := refused_doors(folder):
            raise UserError(
                f"{others[0]}, who could exchange the scripts that you are to run",
                hint="go to a folder that only you can write, or name one with --out",
            )
    for name in exercise.files:
        try:
            with (folder / name).open("xb") as file:
                file.write((shipped_folder("course") / name).read_bytes())
            new.append(name)
        except FileExistsError:
            note(f"{folder / name} is there already, and stays as it is")
    return new
