"""`hpcdist course`: the exercises of docs/course/, and their files to start from."""

from __future__ import annotations

import re
from pathlib import Path

import click

from hpcdist.base.errors import UserError
from hpcdist.base.files import shipped_folder
from hpcdist.cli.printing import note, print_columns, writing
from hpcdist.runs.run import refused_doors

_COMMAND = re.compile(r"^(?: {4}|\$ )(.+)$", re.MULTILINE)
"""A command in a page; the first one starts the exercise, the second one is what to type then."""
_IMPORT = re.compile(r"^(?:from|import) (\w+)", re.MULTILINE)


def pages() -> dict[str, Path]:
    """Return the page of each exercise, NUMBER-NAME.md, by its number."""
    found = shipped_folder("docs/course").glob("[0-9]*.md")
    numbered = {int(page.name.partition("-")[0]): page for page in found}
    return {str(number): numbered[number] for number in sorted(numbered)}


def files_of(page: Path) -> list[str]:
    """Return the files of an exercise: those that the commands of its page name, and what they
    import."""
    commands = "\n".join(_COMMAND.findall(page.read_text()))
    there = {path.name: path for path in shipped_folder("course").iterdir() if path.is_file()}
    files = [name for name in there if re.search(rf"\b{re.escape(name)}\b", commands)]
    for name in files:  # grows meanwhile
        modules = _IMPORT.findall(there[name].read_text())
        files += [f"{one}.py" for one in modules if f"{one}.py" in there.keys() - files]
    return sorted(files)


@click.command
@click.argument("exercise", required=False)
def course(*, exercise: str | None) -> None:
    """List the exercises of a course on distributed training, or start one.

    \b
    hpcdist course           lists them
    hpcdist course 3         copies exercise 3 to ./course-3-augmentation
    hpcdist course workers   an exercise by its name

    Each has a script with TODOs, which runs as it is, and one that is solved. A file that is there
    is never overwritten. The page of an exercise, docs/course/3-augmentation.md, has the question,
    the commands with what they printed, and the answer.
    """
    listed = pages()
    names = {number: page.stem.partition("-")[2] for number, page in listed.items()}
    if exercise is None:
        titles = {n: page.read_text().partition("\n")[0] for n, page in listed.items()}
        rows = [(n, names[n], title.partition(": ")[2]) for n, title in titles.items()]
        print_columns(("N", "NAME", "EXERCISE"), rows)
        note("hpcdist course N copies the files of an exercise; docs/course/ has a page for each")
        return
    found = [number for number in listed if exercise in (number, names[number])]
    if not found:
        raise UserError(
            f"there is no exercise {exercise!r}",
            hint=f"it is a number from 1 to {len(listed)}, or a name: hpcdist course lists them",
        )
    page = listed[found[0]]
    folder = Path(f"course-{page.stem}")
    with writing(folder, hint="go to a folder of your own"):
        _copy(files_of(page), folder)
    print(f"its page: {page}, in the built site course/{page.stem}.html")
    print(f"begin with: cd {folder} && {_COMMAND.findall(page.read_text())[1]}")


def _copy(names: list[str], folder: Path) -> None:
    """Copy the files that are not there yet, and print their names."""
    for is_made in (False, True):
        if is_made:  # a umask may open what is made on the way
            folder.mkdir(parents=True, exist_ok=True)
        if others := refused_doors(folder):
            raise UserError(
                f"{others[0]}, who could exchange the scripts that you are to run",
                hint="go to a folder that only you can write",
            )
    for name in names:
        try:
            with (folder / name).open("xb") as file:
                file.write((shipped_folder("course") / name).read_bytes())
            print(folder / name)
        except FileExistsError:
            note(f"{folder / name} is there already, and stays as it is")
